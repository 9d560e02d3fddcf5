"""Rounds by hand: steps of plain SGD on PyTorch's own layers, means of models, and what clients then score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedtune.experiment.algorithm import Model
from support.helpers import assert_close_numbers, client_draws, client_net, copied, own_rows, play


def sgd_step(loss: Tensor, moving: nn.Module | Iterable[Tensor], lr: float) -> None:
    """One step of plain SGD, in place; what the loss does not depend on stays."""
    leaves = [*(moving.parameters() if isinstance(moving, nn.Module) else moving)]
    grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    with torch.no_grad():
        for p, g in zip(leaves, grads, strict=True):
            p -= lr * g


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step of an optimiser of PyTorch's."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def distance(net: nn.Module, values: Mapping[str, Tensor]) -> Tensor:
    """Σ |w - v|² over the parameters: what a proximal term pulls by."""
    return sum(((p - values[n]) ** 2).sum() for n, p in net.named_parameters())


def mean_of(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
    """The weighted mean of models."""
    total = sum(weights)
    return {n: sum(w * s[n] for w, s in zip(weights, states, strict=True)) / total for n in states[0]}


def batches(sim: Any, t: int, k: int) -> list[tuple[Tensor, Tensor]]:
    """Images and labels of client k's mini-batches in round t."""
    f = sim.setup.federation
    return [(f.x[rows], f.y[rows]) for rows in client_draws(sim, t, k).rows[0]]


def mean_accuracy(sim: Any, split: str, logits: Callable[[int, Tensor], Any]) -> float:
    """Over the clients, of the largest of logits(client, images)."""
    rows = [own_rows(sim, k, split) for k in range(sim.setup.task.clients)]
    return float(np.mean([float((logits(k, x).argmax(1) == y).double().mean()) for k, (x, y) in enumerate(rows)]))


def assert_means_of_steps(
    sim: Any, rounds: int, loss: Callable[[int, nn.Module, nn.Module, Tensor, Tensor], Any]
) -> None:
    """In each round clients take steps of SGD on loss(client, net, net received, x, y), and are averaged by rows."""
    net, received, rows = client_net(sim, 0), client_net(sim, 0), sim.setup.federation.train.counts.tolist()
    for t in range(1, rounds + 1):
        ends = []
        for k in range(len(rows)):
            net.load_state_dict(received.state_dict())
            for x, y in batches(sim, t, k):
                sgd_step(loss(k, net, received, x, y), net, sim.setup.scenario.lr)
            ends.append(copied(net.state_dict()))
        received.load_state_dict(mean_of(ends, rows))
        play(sim, 1)
        assert_close_numbers(sim.state.server["shared"], received.state_dict())


def slope(
    net: nn.Module, at: Mapping[str, Tensor], x: Tensor, y: Tensor, create_graph: bool = False
) -> dict[str, Tensor]:
    """The gradient of the cross-entropy where the net's parameters are these."""
    at = dict(at) if create_graph else {n: t.detach().requires_grad_() for n, t in at.items()}
    loss = nn.functional.cross_entropy(functional_call(net, at, (x,)), y)
    return dict(zip(at, torch.autograd.grad(loss, list(at.values()), create_graph=create_graph), strict=True))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def common_model(sim: Any) -> dict[str, Tensor]:
    """What the server sends beside models of clients' own, under the names of an ordinary model."""
    return {n.removeprefix("common."): t for n, t in sim.state.server["shared"].items()}


def first_client(sim: Any) -> tuple[Model, Tensor, Tensor]:
    """Its model as a loss is given it, and its images and labels."""
    group = sim.state.groups[0]
    own = sim.state.server.get("shared", {}) | {n: t[0] for n, t in group.tensors.items()}
    return Model(group.net, own), *own_rows(sim, 0)
