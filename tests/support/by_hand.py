"""Rounds by hand: steps of plain SGD on PyTorch's own layers, means of models, and what clients then score."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.testing import assert_close

from fedtune.experiment.algorithm import Model, Ragged
from support.helpers import client_draws, client_net, own_rows, play
from support.numbers import TIGHT, assert_close_numbers, copied

SEEN = torch.tensor([True, False, True, True])


def three_of_four(values: Tensor) -> Ragged:
    """What is known of three classes [4, D]; the absent one is far off, so that reading it would show."""
    return Ragged(torch.where(SEEN[:, None], values, 1e3), SEEN)


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


def descend(
    net: nn.Module, part: nn.Module, rows: tuple[Tensor, Tensor], steps: int, lr: float, momentum: float = 0.0
) -> None:
    """Steps of PyTorch's SGD of a part of the net, each on all rows: where B = n they are a client's own."""
    optimizer = torch.optim.SGD(part.parameters(), lr=lr, momentum=momentum)
    for _ in range(steps):
        step(optimizer, nn.functional.cross_entropy(net(rows[0]), rows[1]))


def distance(net: nn.Module, values: Mapping[str, Tensor]) -> Tensor:
    """Σ |w - v|² over the parameters: what a proximal term pulls by."""
    return sum(((p - values[n]) ** 2).sum() for n, p in net.named_parameters())


def mean_of(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
    """The weighted mean of models; counters are rounded."""
    total = sum(weights)
    mean = {n: sum(w * s[n] for w, s in zip(weights, states, strict=True)) / total for n in states[0]}
    return {n: t if states[0][n].is_floating_point() else t.round().long() for n, t in mean.items()}


def batches(sim: Any, t: int, k: int) -> list[tuple[Tensor, Tensor]]:
    """Images and labels of client k's mini-batches in round t."""
    f = sim.setup.federation
    return [(f.x[rows], f.y[rows]) for rows in client_draws(sim, t, k).rows[0]]


def mean_accuracy(sim: Any, split: str, logits: Callable[[int, Tensor], Any]) -> float:
    """Over the clients, of the largest of logits(client, images)."""
    rows = [own_rows(sim, k, split) for k in range(sim.setup.task.clients)]
    return float(np.mean([float((logits(k, x).argmax(1) == y).double().mean()) for k, (x, y) in enumerate(rows)]))


def whole_net(sim: Any, k: int) -> Any:
    """Client k's model with what the algorithm added to it, as an ordinary module."""
    group, values = sim.state.groups[0], dict(sim.state.server.get("shared", {}))
    net, values = copy.deepcopy(group.net).double(), values | {n: t[k] for n, t in group.tensors.items()}
    net.load_state_dict({n: values[n].clone() for n in net.state_dict()})
    return net.train()


def rounds(
    sim: Any,
    number: int,
    work: Callable[[int, int, Any], Any],
    nets: Sequence[nn.Module] = (),
    shared: Callable[[str], bool] = lambda name: True,
    weights: Sequence[float] = (),
) -> Iterator[dict[str, Any]]:
    """The rows of rounds in which work(t, k, net) trains client k's net, in place.

    Tensors of these names are averaged by rows, or by these weights, and everybody begins the next round with the mean;
    the others stay with their client.  After each round the server has the one, and the clients the other.
    """
    nets = nets or [client_net(sim, k) for k in range(sim.setup.task.clients)]
    for t in range(1, number + 1):
        for k, net in enumerate(nets):
            work(t, k, net)
        ends = [{n: v for n, v in copied(net.state_dict()).items() if shared(n)} for net in nets]
        mean = mean_of(ends, weights or sim.setup.federation.train.counts.tolist())
        for net in nets:
            net.load_state_dict(net.state_dict() | mean)
        row = play(sim, 1)[0]
        assert_close_numbers(sim.state.server.get("shared", {}), mean)
        if not all(map(shared, nets[0].state_dict())):
            assert_own(sim, [net.state_dict() for net in nets])
        yield row


def assert_means_of_steps(
    sim: Any, number: int, loss: Callable[[int, nn.Module, nn.Module, Tensor, Tensor], Any]
) -> None:
    """In each round clients take steps of SGD on loss(client, net, net received, x, y), and are averaged by rows."""

    def work(t: int, k: int, net: nn.Module) -> None:
        received = copy.deepcopy(net)
        for x, y in batches(sim, t, k):
            sgd_step(loss(k, net, received, x, y), net, sim.setup.scenario.lr)

    for _ in rounds(sim, number, work):
        pass


def assert_one_step(sim: Any, loss: Callable[[int, nn.Module, Tensor, Tensor, dict[str, Tensor]], Tensor]) -> None:
    """In the next round each client takes one step of SGD on loss(client, net, x, y, noise); means are by rows."""
    f, ends, losses = sim.setup.federation, [], []
    for k in range(sim.setup.task.clients):
        steps, net = client_draws(sim, sim.state.round + 1, k), client_net(sim, k)
        assert steps.steps == [1]
        rows = steps.rows[0, 0]
        at = loss(k, net, f.x[rows], f.y[rows], {n: e[0, 0] for n, e in steps.eps.items()})
        losses.append(at.item())
        sgd_step(at, net, sim.setup.scenario.lr)
        ends.append(copied(net.state_dict()))
    row = play(sim, 1)[0]
    assert_close_numbers(sim.state.server["shared"], mean_of(ends, f.train.counts.tolist()))
    assert_close(row["train_loss"], sum(losses) / len(losses), **TIGHT)


def assert_own(sim: Any, states: Sequence[Mapping[str, Tensor]]) -> None:
    """All tensors that a client holds itself are those of its state here."""
    for group in sim.state.groups:
        assert group.tensors
        for row, k in enumerate(group.ids.tolist()):
            for n, t in group.tensors.items():
                assert_close(t[row], states[k][n].detach(), **TIGHT, msg=lambda m, n=n: f"{n}: {m}")


def movable(m: Model) -> Model:
    """The model, by all of whose tensors a loss has a slope."""
    return Model(m.net, {n: t.clone().requires_grad_() for n, t in m.tensors.items()})


def assert_loss(got: Tensor, want: Tensor, m: Model) -> None:
    """Two losses of a movable model have one value, and one slope."""
    assert_close(got, want, **TIGHT)
    leaves, how = list(m.tensors.values()), {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    slopes = (torch.autograd.grad(loss, leaves, **how) for loss in (got, want))
    for n, a, b in zip(m.tensors, *slopes, strict=True):
        assert_close(a, b, **TIGHT, msg=lambda msg, n=n: f"slope by {n}: {msg}")


def slope(
    net: nn.Module, at: Mapping[str, Tensor], x: Tensor, y: Tensor, create_graph: bool = False
) -> dict[str, Tensor]:
    """The gradient of the cross-entropy where the net's parameters are these."""
    at = dict(at) if create_graph else {n: t.detach().requires_grad_() for n, t in at.items()}
    loss = nn.functional.cross_entropy(functional_call(net, at, (x,)), y)
    return dict(zip(at, torch.autograd.grad(loss, list(at.values()), create_graph=create_graph), strict=True))


def head_on(m: Model | nn.Module, z: np.ndarray) -> np.ndarray:
    """The head's logits of features."""
    weight, bias = (m[n] if isinstance(m, Model) else m.get_parameter(n) for n in ("head.weight", "head.bias"))
    return z @ weight.detach().numpy().T + bias.detach().numpy()


def cross_entropy(logits: np.ndarray, y: Iterable[int]) -> float:
    """The mean over rows, one by one."""
    return float(np.mean([np.log(np.exp(r).sum()) - r[int(c)] for r, c in zip(logits, y, strict=True)]))


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
