"""A loop of plain PyTorch, written without fedtune, trains what fedtune trains on a user's own data.

It reads the user's files with Pillow and NumPy, brings them to scale itself, and has from fedtune the rows of each
client, the first weights, and the addresses of the batches' streams.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from support.helpers import numbers, play, simulate
from support.user_data import made, saved, taken
from torch import Tensor, nn

from fedtune.data import datasets
from fedtune.experiment import partitioning
from fedtune.experiment.scenario import Scenario
from fedtune.user_code import user_files

ROUNDS, CLIENTS, BATCH, RATE, MOMENTUM, PULL = 2, 3, 4, 0.05, 0.5, 0.1
RNG = np.random.default_rng(0)
Y = np.arange(42) % 3
NET = """
from torch import nn

class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 5, padding_idx=0)
    def forward(self, x):
        real = (x > 0).unsqueeze(2)
        return (self.table(x) * real).sum(1) / real.sum(1)

def net(shape, classes, norm=False, tokens=False):
    net = nn.Module()
    if tokens:
        net.body = Padded()
    elif len(shape) == 3:
        between = [nn.BatchNorm2d(5)] if norm else []
        net.body = nn.Sequential(nn.Conv2d(shape[0], 5, 3), *between, nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    else:
        between = [nn.BatchNorm1d(5)] if norm else []
        net.body = nn.Sequential(nn.Linear(shape[0], 5), *between, nn.Tanh())
    net.head = nn.Linear(5, classes)
    return net
"""


def pictures(folder: Path, deep: bool) -> tuple[Path, np.ndarray]:
    """Class folders of pictures, and their pixels as Pillow gives them, by class and name."""
    pixels = []
    for c in range(3):
        (folder / "pets" / f"class{c}").mkdir(parents=True)
        for i in range(14):
            file = folder / "pets" / f"class{c}" / f"{i:02}.png"
            shade = RNG.integers(900, 1500, (6, 6)) + 400 * c if deep else RNG.integers(0, 160, (6, 6, 3)) + 40 * c
            Image.fromarray(shade.astype(np.uint16 if deep else np.uint8)).save(file)
            seen = np.asarray(Image.open(file), np.float64)
            pixels.append(np.stack([seen] * 3) if deep else seen.transpose(2, 0, 1))
    return folder / "pets", np.array(pixels)


def table(folder: Path) -> tuple[Path, np.ndarray]:
    """Columns of 1e-9, of 1e9 that differ by little, and of whole numbers that float32 does not hold."""
    says = RNG.normal(size=(42, 3)) + Y[:, None]
    x = np.stack([says[:, 0] * 1e-9, 1e9 + says[:, 1], np.round(2**30 + 9 * says[:, 2])], 1)
    return saved(folder / "table.npz", x=x, y=Y), x


def tokens(folder: Path) -> tuple[Path, np.ndarray]:
    """Words of each class, padded with 0 to one length."""
    x = RNG.integers(1, 8, (42, 9)) + 6 * Y[:, None]
    x[np.arange(9) >= RNG.integers(2, 9, 42)[:, None]] = 0
    return saved(folder / "words.npz", x=x, y=Y), x


DATA: dict[str, tuple[Callable[[Path], tuple[Path, np.ndarray]], dict[str, Any], str]] = {
    "pictures of 8 bits": (lambda folder: pictures(folder, deep=False), {}, "net"),
    "pictures of 16 bits": (lambda folder: pictures(folder, deep=True), {}, "net"),
    "a table": (table, {}, "net"),
    "tokens with padding": (tokens, {"x_as": "tokens"}, "net(tokens=True)"),
    "pictures, BatchNorm": (lambda folder: pictures(folder, deep=False), {}, "net(norm=True)"),
    "a table, BatchNorm": (table, {}, "net(norm=True)"),
}


def batches(t: int, k: int, rows: int) -> Tensor:
    """Places among a client's rows, [steps, BATCH]: the stream of (seed, "train", round, phase, client)."""
    seed = int.from_bytes(hashlib.blake2b(f"0/train/{t}/0/{k}".encode(), digest_size=8).digest(), "little") >> 1
    generator = torch.Generator().manual_seed(seed)
    need = -(-rows // BATCH) * BATCH
    passes = [torch.randperm(rows, generator=generator) for _ in range(-(-need // rows))]
    return torch.cat(passes)[:need].view(-1, BATCH)


def scaled(x: np.ndarray, trained: np.ndarray) -> Tensor:
    """Rows as a model is given them: features of mean 0 and spread 1 over what is trained on, tokens as they are."""
    if x.dtype == np.int64:
        return torch.as_tensor(x)
    over = (0, *range(2, x.ndim))
    mean, spread = (how(x[trained], axis=over, keepdims=True) for how in (np.mean, np.std))
    return torch.as_tensor((x - mean) / spread)


def trained(algorithm: str, models: list[nn.Module], x: Tensor, y: Tensor, rows: list[np.ndarray]) -> list[nn.Module]:
    """The clients' models after the rounds; those of FedAvg and FedProx are one."""
    for t in range(1, ROUNDS + 1):
        received = deepcopy(models[0])
        for k, model in enumerate(models):
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
            for batch in batches(t, k, len(rows[k])):
                index = torch.as_tensor(rows[k])[batch]
                loss = F.cross_entropy(model.head(model.body(x[index])), y[index])
                if algorithm == "fedprox":
                    pairs = zip(model.parameters(), received.parameters(), strict=True)
                    loss = loss + PULL / 2 * sum(((w - v.detach()) ** 2).sum() for w, v in pairs)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        if algorithm != "local":
            share = torch.tensor([float(len(r)) for r in rows], dtype=torch.float64)
            states = [model.state_dict() for model in models]
            mean = {
                name: (torch.stack([s[name].double() for s in states], -1) * share).sum(-1) / share.sum()
                for name in states[0]
            }
            for model in models:
                model.load_state_dict({name: value.to(states[0][name].dtype) for name, value in mean.items()})
    return models


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "local"])
@pytest.mark.parametrize("kind", DATA)
def test_plain_pytorch_agrees(kind: str, algorithm: str, tmp_path: Path) -> None:
    write, fields, call = DATA[kind]
    path, x = write(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    model = user_files.take(f"{tmp_path}/net.py:{call}")[0]
    scenario: Scenario = taken(
        path, "dirichlet", clients=CLIENTS, alpha=5.0, model=model, batch=BATCH, lr=RATE, momentum=MOMENTUM, **fields
    )
    config = {"mu": PULL} if algorithm == "fedprox" else {}
    sim = simulate(algorithm, scenario, made(scenario), **config)
    data = datasets.load(scenario.dataset)
    rows = partitioning.rows_of_clients(data, scenario, 0).train
    assert len({len(r) for r in rows}) > 1 and (data.y == np.sort(Y)).all() == path.is_dir()

    space: dict[str, Any] = {}
    exec(NET, space)
    shape, options = x.shape[1:], user_files.call_options(model)
    models = [space["net"](shape, 3, **options).double() for _ in range(CLIENTS)]

    def held(k: int) -> dict[str, Tensor]:
        found = numbers(sim.state)
        place = f"client {k}/" if algorithm == "local" else "server/shared/"
        return {n.removeprefix(place): v.clone() for n, v in found.items() if n.startswith(place)}

    for k, one in enumerate(models):
        one.load_state_dict(held(k))
    models = trained(algorithm, models, scaled(x, np.concatenate(rows)), torch.as_tensor(data.y), rows)
    before = held(0)
    play(sim, ROUNDS)
    for k, one in enumerate(models):
        for name, value in one.state_dict().items():
            if value.is_floating_point():
                torch.testing.assert_close(held(k)[name], value, rtol=0, atol=1e-6)
    assert any((held(0)[name] - value).abs().max() > 1e-3 for name, value in before.items())
