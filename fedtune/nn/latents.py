"""FedKTL's server: a generator of rows that stays as it is, and a transformer of prototypes to its latents."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtune.core import randomness
from fedtune.core.errors import UserError
from fedtune.core.trees import Ragged
from fedtune.nn.divergences import mmd
from fedtune.nn.generators import Net, descend, start_memory
from fedtune.nn.prototypes import class_means

WIDTHS = (10.0, 15.0, 20.0, 50.0)  # of MMD's kernels, as in FedKTL's code


def as_numbers(x: Tensor) -> Tensor:
    """The rows; UserError for tokens, which no generator makes."""
    if x.is_floating_point():
        return x
    raise UserError("fedktl generates numbers, so it needs images, series or vectors, but these rows are tokens")


def new_nets(classes: int, latents: int, numbers: int, seed: int) -> dict[str, Net]:
    """The transformer, and the generator of rows of so many numbers."""
    return {
        "transformer": new_transformer(classes, latents, randomness.number(seed, "transformer")),
        "generator": new_generator(latents, numbers, randomness.stream(seed, "generator")),
    }


def new_generator(latents: int, numbers: int, stream: torch.Generator) -> Net:
    """W latents -> 4 W, ReLU -> a row's numbers; for normal latents these have mean 0 and variance 1."""
    hidden = 4 * latents
    return {
        "in": torch.randn(hidden, latents, generator=stream) / latents**0.5,
        "out": torch.randn(numbers, hidden, generator=stream) * (2 / hidden) ** 0.5,
    }


def generate(generator: Net, latents: Tensor) -> Tensor:
    """Rows [n, d] of latents [n, W]."""
    return F.linear(F.linear(latents, generator["in"]).relu(), generator["out"])


def filled(pictures: Ragged, rows: Tensor) -> Tensor:
    """A picture of every class [C, …]; where there is none, one of the rows [B, …], for BatchNorm's statistics only."""
    some = rows[torch.arange(len(pictures.present), device=rows.device) % len(rows)]
    return torch.where(pictures.present.view(-1, *[1] * (rows.ndim - 1)), pictures.values, some)


def new_transformer(classes: int, latents: int, seed: int) -> Net:
    """C numbers -> C, LayerNorm, ReLU -> W latents, with PyTorch's default start."""
    with randomness.seeded(seed):
        first, norm, last = nn.Linear(classes, classes), nn.LayerNorm(classes), nn.Linear(classes, latents)
        layers = {"first": first, "norm": norm, "last": last}
    return {f"{part}.{n}": t.detach() for part, layer in layers.items() for n, t in layer.named_parameters()}


def transform(transformer: Net, p: Tensor) -> Tensor:
    """Latents [n, W] of prototypes p [n, C]."""
    h = F.linear(p, transformer["first.weight"], transformer["first.bias"])
    h = F.layer_norm(h, h.shape[1:], transformer["norm.weight"], transformer["norm.bias"]).relu()
    return F.linear(h, transformer["last.weight"], transformer["last.bias"])


def centres(transformer: Net, p: Tensor, y: Tensor, last: Ragged) -> Ragged:
    """The mean latents [C, W] of every class's prototypes, p [n, C] of classes y [n]; without any the old ones."""
    means, counts = class_means(transform(transformer, p), y, torch.ones_like(y, dtype=torch.bool), len(last.present))
    return Ragged(torch.where(counts[:, None] > 0, means, last.values), last.present | (counts > 0))


def align(
    transformer: Net,
    previous: Ragged,
    p: Tensor,
    y: Tensor,
    epochs: int,
    batch: int,
    lr: float,
    lam: float,
    stream: torch.Generator,
) -> tuple[Net, Ragged]:
    """The transformer after these epochs of Adam over prototypes p [n, C] of classes y [n], shuffled, in batches.

    And the classes' centres [C, W] then; old: those of before.  The loss is MMD² between latents and as many normal
    draws, and λ times their mean square distance to their classes' centres, which begin where p puts them and move too.
    Source: Zhang et al. (FedKTL), CVPR 2024, equation 3, and its code.
    """
    order = [rows for _ in range(epochs) for rows in torch.randperm(len(y), generator=stream).split(batch)]

    def loss(net: Net, step: int) -> tuple[Tensor, None]:
        rows = order[step].to(y.device)
        q = transform(net, p[rows])
        drawn = torch.randn(q.shape, generator=stream, dtype=q.dtype).to(q.device)
        return mmd(q, drawn, WIDTHS) + lam * F.mse_loss(q, net["centres"][y[rows]]), None

    begin = centres(transformer, p, y, previous)
    start = transformer | {"centres": begin.values}
    memory = {n: t.to(begin.values) for n, t in start_memory(start).items()}
    trained, _ = descend(start, memory, loss, len(order), lr)
    net = {n: trained[n] for n in transformer}
    return net, centres(net, p, y, begin)
