"""FML: without mutual learning it is Local beside FedAvg of the meme; the losses, the clipping and the mean by hand."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.distillation import MIXED, WHOLE, cut, divergence, grads_of, nets_of, stepped
from support.helpers import DIGITS, own_rows, play, random_federation, simulate
from support.numbers import TIGHT, assert_close_numbers, assert_same_numbers, copied, randn
from torch import Tensor
from torch.testing import assert_close

from fedtune.engine import evaluation
from fedtune.engine.simulation import Simulation
from fedtune.experiment.algorithm import Batch, Model
from fedtune.experiment.scenario import Scenario
from fedtune.nn import architectures
from fedtune.nn.divergences import imitate
from fedtune.trainables.fml import FML


@pytest.mark.parametrize("over", ["rows", "elements"])
@pytest.mark.parametrize("coupled", [False, True])
def test_imitation_is_pytorchs_divergence_and_moves_the_teacher_only_when_coupled(coupled: bool, over: str) -> None:
    logits, teacher = randn(5, 4).requires_grad_(), randn(5, 4, seed=1).requires_grad_()
    got, want = imitate(logits, teacher, coupled, over), divergence(teacher, logits, over)
    assert_close(got, want, **TIGHT)
    found = torch.autograd.grad(got, [logits, teacher], materialize_grads=True, allow_unused=True)
    whole = torch.autograd.grad(want, [logits, teacher])
    assert_close(found[0], whole[0], **TIGHT)
    assert whole[1].abs().min() > 0
    assert_close(found[1], whole[1] if coupled else torch.zeros_like(teacher), **TIGHT)


@pytest.mark.parametrize(
    ("rows", "weighing"), [([9, 9, 9], "clients"), ([5, 13, 7], "rows")], ids=["plain mean, equal rows", "by rows"]
)
@pytest.mark.parametrize("model", ["mlp", "fedgen-cnn"])
@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_trusting_labels_alone_it_is_local_beside_fedavg_of_the_meme(
    executor: str, model: str, rows: list[int], weighing: str
) -> None:
    config: dict[str, Any] = {"executor": executor, "momentum": 0.5, "lr": 0.1}
    scenario, data = Scenario(model=model, features=8, participation=0.7), random_federation(rows)
    both = simulate(
        "fml", scenario, data, meme="fedgen-cnn", labels_own=1.0, labels_meme=1.0, clip=0.0, weighing=weighing, **config
    )
    local = simulate("local", scenario, data, **config)
    avg = simulate("fedavg", scenario.override(model="fedgen-cnn"), data, **config)
    start = {n.removeprefix("meme."): t.clone() for n, t in both.state.server["shared"].items()}
    assert start.keys() == avg.state.server["shared"].keys()
    avg.state = avg.state._replace(server={"shared": start})
    got, alone, common = (play(s, 3) for s in (both, local, avg))
    assert_close_numbers(both.state.groups[0].tensors, local.state.groups[0].tensors)
    assert_close_numbers(
        {n.removeprefix("meme."): t for n, t in both.state.server["shared"].items()}, avg.state.server["shared"]
    )
    for mine, one, a in zip(got, alone, common, strict=True):
        assert mine["val_acc"] == mine["val_acc_own"] == one["val_acc"] and mine["test_acc_meme"] == a["test_acc"]
        assert abs(mine["train_loss"] - one["train_loss"] - a["train_loss"]) < 1e-12
        assert all(mine[n] == a[n] for n in a if n.startswith(("up_", "down_")))


def test_memes_of_unequal_clients_count_alike_unless_weighed() -> None:
    alg, plain = FML(), FML(weighing="rows")
    up = {"shared": {"w": torch.tensor([[0.0], [6.0]])}, "rows": torch.tensor([2, 1]), "ids": torch.tensor([0, 1])}
    assert alg.aggregate({}, up, None)["shared"]["w"].item() == 3  # type: ignore[arg-type]
    assert plain.aggregate({}, up, None)["shared"]["w"].item() == 2  # type: ignore[arg-type]


def one_batch(**config: Any) -> tuple[FML, Model, Batch, architectures.Net, architectures.Net]:
    sim = simulate("fml", DIGITS, random_federation([6, 9]), **config)
    state, (own, meme, _) = sim.state, nets_of(sim, 1, "meme")
    tensors = {n: t[1] for n, t in state.groups[0].tensors.items()} | state.server["shared"]
    leaves = {n: t.clone().requires_grad_() for n, t in tensors.items()}
    return sim.setup.algorithm, Model(state.groups[0].net, leaves), Batch(*own_rows(sim, 1), {}), own, meme


@pytest.mark.parametrize("over", ["rows", "elements"])
def test_the_loss_by_numpy(over: str) -> None:
    alg, m, batch, own, meme = one_batch(labels_own=0.3, labels_meme=0.9, kl_over=over)
    x, y = batch.x, batch.y.numpy()
    p, q = (np.exp(net(x).detach().numpy()) for net in (own, meme))
    p, q = p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
    ce = [-np.log(s[np.arange(len(y)), y]).mean() for s in (p, q)]
    kl = [(a * np.log(a / b)).sum(1).mean() / {"rows": 1, "elements": 4}[over] for a, b in ((q, p), (p, q))]
    want = 0.3 * ce[0] + 0.7 * kl[0] + 0.9 * ce[1] + 0.1 * kl[1]
    assert abs(kl[0] - kl[1]) > 1e-6
    assert_close(alg.loss(m, batch, {}).item(), want, **TIGHT)


def losses(
    own: architectures.Net, meme: architectures.Net, x: Tensor, y: Tensor, a: float, b: float
) -> tuple[Tensor, Tensor]:
    """L of the own net, L of the meme; nothing held constant."""
    mine, theirs = own(x), meme(x)
    first = a * F.cross_entropy(mine, y) + (1 - a) * divergence(theirs, mine)
    return first, b * F.cross_entropy(theirs, y) + (1 - b) * divergence(mine, theirs)


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("scenario", [DIGITS, MIXED], ids=["one", "three architectures"])
@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_a_round_by_hand_each_net_of_each_client_clipped_by_itself(
    executor: str, scenario: Scenario, coupled: bool
) -> None:
    """Coupled, both losses move both nets; else the gradient of a net is that of its own loss alone."""
    weights = {"labels_own": 0.3, "labels_meme": 0.8, "coupled": coupled, "meme": "cnn8"}
    data = random_federation([4, 8, 6])

    def by_hand(sim: Simulation, bound: float) -> tuple[list, list[float]]:
        trained, norms = [], []
        for k in range(3):
            own, meme, _ = nets_of(sim, k, "meme")
            mine, theirs = losses(own, meme, *own_rows(sim, k), 0.3, 0.8)
            moved = []
            for net, loss in ((own, mine), (meme, theirs)):
                grads = grads_of(mine + theirs if coupled else loss, net)
                norms.append(float(sum((g**2).sum() for g in grads) ** 0.5))
                moved.append(stepped(net, cut(grads, bound), 0.1))
            trained.append(moved)
        return trained, norms

    config = {"executor": executor, **WHOLE, **weights}
    _, norms = by_hand(simulate("fml", scenario, data, clip=0.0, **config), 0.0)
    for bound in (0.0, float(np.median(norms))):  # the middle one cuts some and leaves others
        sim = simulate("fml", scenario, data, clip=bound, **config)
        want, norms = by_hand(sim, bound)
        assert not bound or min(norms) < bound < max(norms)
        play(sim, 1)
        for k in range(3):
            assert_close_numbers(dict(nets_of(sim, k, "meme")[0].state_dict()), want[k][0])
        mean = {f"meme.{n}": sum(w[1][n] for w in want) / 3 for n in want[0][1]}
        assert_close_numbers(sim.state.server["shared"], mean)


def test_only_the_meme_is_sent_and_predicts_nothing() -> None:
    sim = simulate("fml", MIXED, random_federation([5, 9, 6, 7]), meme="cnn8")
    row = play(sim, 1)[0]
    size = sum(p.numel() for p in architectures.build("cnn8", (1, 8, 8), 4, 12).parameters())
    assert row["up_floats"] == row["down_floats"] == 4 * size and row["up_ints"] == 4
    before = evaluation.score(sim.setup, sim.state).row
    worse = {n: torch.zeros_like(t) for n, t in sim.state.server["shared"].items()}
    worse["meme.head.bias"][3] = 1.0  # a class of which there are no test rows
    after = evaluation.score(sim.setup, sim.state._replace(server={"shared": worse})).row
    apart = {n for n in before if before[n] != after[n]}
    assert apart and all(n.endswith("_meme") for n in apart)


@pytest.mark.parametrize(("meme", "want"), [("", "mlp"), ("cnn8-wide", "cnn8-wide")])
def test_the_meme_is_the_scenarios_first_model_or_the_one_named_and_starts_alike(meme: str, want: str) -> None:
    sim = simulate("fml", MIXED, meme=meme)
    form = architectures.build(want, (1, 8, 8), sim.setup.task.classes, 12)
    shared = sim.state.server["shared"]
    assert {n.removeprefix("meme."): t.shape for n, t in shared.items()} == {
        n: t.shape for n, t in form.state_dict().items()
    }
    again, other = simulate("fml", DIGITS, meme=want), simulate("fml", DIGITS, meme=want, seed=1)
    assert_same_numbers(again.state.server["shared"], shared)  # whatever else there is
    assert not torch.equal(other.state.server["shared"]["meme.head.weight"], shared["meme.head.weight"])
    nets = [n for g in sim.state.groups for n in copied(g.tensors)]
    assert not any(n.startswith("meme") for n in nets)
