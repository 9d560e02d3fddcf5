"""Small generators and heads, as PyTorch's own layers, and their cross-entropies row by row."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from fedtune.data.federation import Federation
from fedtune.nn.generators import new_net
from support.helpers import randn, random_federation

Z, C, H, D = 5, 4, 7, 6
SHIFTS = {"in": 0, "norm": 1, "out": 3}  # a generator's layers, as positions in a Sequential


def module(net: dict[str, Tensor]) -> nn.Sequential:
    """The generator as PyTorch's own layers, in training mode, with the bias before BatchNorm held still."""
    hidden, width = net["in.weight"].shape
    layers = nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, len(net["out.bias"]))
    whole = nn.Sequential(*layers).double()
    values = {f"{SHIFTS[n.split('.')[0]]}.{n.split('.')[1]}": t.clone() for n, t in net.items()}
    whole.load_state_dict(values | {"1.num_batches_tracked": torch.zeros((), dtype=torch.long)})
    whole[0].bias.requires_grad_(False)
    return whole


def as_net(whole: nn.Sequential) -> dict[str, Tensor]:
    """The way back."""
    names = {str(i): part for part, i in SHIFTS.items()}
    state = {n: t.detach() for n, t in whole.state_dict().items() if "num_batches" not in n}
    return {f"{names[n.split('.')[0]]}.{n.split('.')[1]}": t for n, t in state.items()}


def inputs(noise: Tensor, y: Tensor, classes: int = C) -> Tensor:
    return torch.cat([noise, torch.eye(classes, dtype=torch.float64)[y]], 1)


def fresh(seed: int = 0, heads: int = 1) -> dict[str, Tensor]:
    """A small float64 net with nothing at its start value."""
    net = new_net(Z, C, H, D, heads, seed)
    net = {n: t.double() + 0.3 * randn(*t.shape, seed=seed + i) for i, (n, t) in enumerate(net.items())}
    return net | {"norm.running_var": net["norm.running_var"].abs() + 0.2}


def two_clients() -> Federation:
    """Client 0 has 2 rows of each class, client 1 has 6 of class 0 and of class 1.

    Rows of a class add up to powers of two, so that shares are exact in any precision.
    """
    return random_federation([8, 12], [[0, 1, 2, 3], [0, 1]])


def labels(n: int, seed: int = 0) -> Tensor:
    return torch.randint(C, (n,), generator=torch.Generator().manual_seed(seed))


def heads(m: int, seed: int = 0, d: int = D) -> dict[str, Tensor]:
    return {"head.weight": randn(m, C, d, seed=seed), "head.bias": randn(m, C, seed=seed + 1)}


def cross_entropies(shared: dict[str, Tensor], h: Tensor, y: Tensor) -> np.ndarray:
    """[m, B], row by row."""
    out = np.zeros((len(shared["head.weight"]), len(h)))
    for k, (w, b) in enumerate(zip(shared["head.weight"].numpy(), shared["head.bias"].numpy(), strict=True)):
        for i, (row, c) in enumerate(zip(h.detach().numpy(), y.tolist(), strict=True)):
            logits = w @ row + b
            out[k, i] = np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[c]
    return out
