"""What a phase can say besides its loss, by closed forms in float64; its optimisers are torch.optim's bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support.helpers import DIGITS, own_rows, play, simulate
from support.numbers import TIGHT
from support.user_algorithms import known_as
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from fedtune.core import randomness
from fedtune.engine import batches
from fedtune.engine.batches import Pool
from fedtune.engine.optimizers import Optimizers
from fedtune.experiment.algorithm import Algorithm, Batch, Data, Model, Phase, Task, hyper
from fedtune.experiment.scenario import Scenario

BOTH = pytest.mark.parametrize("executor", ["stack", "loop"])
PLAIN = DIGITS.override(momentum=0.9, lr=0.1)


@dataclass(frozen=True)
class Falling(Algorithm):
    """The head's bias b begins at 0 and falls along a slope of one; everything else stays."""

    says: str = hyper("momentum", choices=("momentum", "plain", "project", "bounds", "until", "both"))
    shared = ("body", "head")

    def keep(self, task: Task) -> dict:
        return {n: torch.zeros(()) for n in ("rows", "steps", "path", "tallied", "b", "passes")}

    def loss(self, m: Model, batch: Batch, down: dict) -> Any:  # type: ignore[override]
        return m["head.bias"].sum() + 0 * m.head(m.body(batch.x)).sum(), {"steps": batch.x.new_ones(())}

    def zero(self, m: Model, down: dict) -> dict:
        return {"head.bias": torch.zeros_like(m["head.bias"])}

    def halved(self, m: Model, down: dict) -> dict:
        return {"head.bias": m["head.bias"] / 2}

    def low(self, losses: Tensor, m: Model) -> Tensor:
        return losses.diff().abs().sum() > 0.05 * m.kept["rows"]

    def phases(self, task: Task) -> tuple[Phase, ...]:
        phase = Phase(self.loss, ("head",), begin=self.zero, momentum=0.5, steps=3)
        said = {
            "momentum": phase,
            "plain": phase._replace(momentum=None),
            "project": phase._replace(project=self.halved, momentum=0.0),
            "bounds": phase._replace(bounds={"head": (-0.15, 0.02)}, momentum=0.0),
            "until": phase._replace(until=self.low, window=2, momentum=0.0, steps=40),
            "both": phase._replace(until=self.low, window=2, momentum=0.0, steps=None, epochs=9),
        }
        return (said[self.says],)

    def remember(self, m: Model, data: Data, down: dict) -> dict:
        tallied = data.tally["steps"]
        return {
            "rows": data.mask.sum().to(tallied),
            "steps": data.client.steps.to(tallied),
            "b": m["head.bias"][0],
            "path": data.client.path["head"],
            "tallied": tallied,
            "passes": m.kept["passes"] + 1,
        }


@dataclass(frozen=True)
class Majority(Algorithm):
    """Scores the class that most of a client's rows had, and the round's number by its own: what it keeps."""

    shared = ("body", "head")

    def keep(self, task: Task) -> dict:
        return {"class": torch.zeros(task.classes)}

    def remember(self, m: Model, data: Data, down: dict) -> dict:
        held = (F.one_hot(data.y, len(m.kept["class"])) * data.mask[:, None]).sum(0)
        return {"class": F.one_hot(held.argmax(), len(held)).to(data.client.lr) + m.kept["class"]}

    def predict(self, m: Model, x: Tensor, down: dict) -> Tensor:
        return m.head(m.body(x)) * 1e-6 + m.kept["class"]


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    known_as(monkeypatch, falling=Falling, majority=Majority)


def kept(sim: Any) -> dict[str, Tensor]:
    return sim.state.groups[0].kept


@BOTH
def test_a_phase_has_a_momentum_of_its_own_and_its_path_knows_it(executor: str) -> None:
    for says, beta in (("momentum", 0.5), ("plain", 0.9)):
        sim = simulate("falling", PLAIN, executor=executor, says=says)
        play(sim, 1)
        far = 0.1 * sum(1 + beta * (1 + beta) if s == 2 else 1 + beta * (s == 1) for s in range(3))
        assert_close(kept(sim)["b"], torch.full_like(kept(sim)["b"], -far), **TIGHT)
        assert_close(kept(sim)["path"], torch.full_like(kept(sim)["b"], far), **TIGHT)


@BOTH
def test_what_is_set_after_every_step_is_where_the_next_one_begins(executor: str) -> None:
    sim = simulate("falling", PLAIN, executor=executor, says="project")
    play(sim, 2)  # what is set before the first step lets both rounds begin at 0
    assert_close(kept(sim)["b"], torch.full_like(kept(sim)["b"], -0.1 * (1 / 2 + 1 / 4 + 1 / 8)), **TIGHT)
    assert_close(sim.state.server["shared"]["head.bias"][0], kept(sim)["b"][0], **TIGHT)


@BOTH
def test_parameters_are_cut_to_their_bounds_after_every_step(executor: str) -> None:
    """Three steps of 0.1 end at -0.15; the head's weights, which have no gradient, are cut too, the body's are not."""
    sim = simulate("falling", PLAIN, executor=executor, says="bounds")
    before = {n: t.clone() for n, t in sim.state.server["shared"].items()}
    play(sim, 1)
    assert_close(kept(sim)["b"], torch.full_like(kept(sim)["b"], -0.15), **TIGHT)
    after = sim.state.server["shared"]
    assert_close(after["head.weight"], before["head.weight"].clamp(-0.15, 0.02), **TIGHT)
    assert not torch.equal(after["head.weight"], before["head.weight"])
    assert_close(*({n: t for n, t in tree.items() if n.startswith("body.")} for tree in (after, before)), **TIGHT)


@BOTH
def test_a_client_stops_where_its_own_losses_say_so_and_holds_still(executor: str) -> None:
    sim = simulate("falling", PLAIN, executor=executor, says="until")
    classes = sim.setup.task.classes
    play(sim, 1)  # nobody has counted rows yet: two losses that differ are enough
    assert kept(sim)["steps"].tolist() == [2.0] * 5
    play(sim, 1)
    rows = sim.setup.federation.train.counts.double()
    assert len(set(rows.tolist())) > 1
    # losses fall by 0.1 · classes a step: never by more than 0.05 rows, unless a client has few
    stop = torch.where(0.1 * classes > 0.05 * rows, 2, 40).double()
    assert_close(kept(sim)["steps"], stop, **TIGHT)
    assert len(set(stop.tolist())) == 2 or pytest.fail("the clients must differ")
    for name, want in (("tallied", stop), ("b", -0.1 * stop), ("path", 0.1 * stop)):
        assert_close(kept(sim)[name], want, **TIGHT)


@BOTH
def test_a_phase_of_passes_is_asked_after_each_of_its_losses_mean(executor: str) -> None:
    sim = simulate("falling", PLAIN, executor=executor, says="both")
    play(sim, 1)
    each = -(-sim.setup.federation.train.counts // sim.setup.scenario.batch)
    assert_close(kept(sim)["steps"], 2.0 * each.double(), **TIGHT)


def test_all_losses_are_there_before_a_window_is_full_and_are_nan_before_the_first() -> None:
    seen: list[list[float]] = []

    @dataclass(frozen=True)
    class Watched(Falling):
        def low(self, losses: Tensor, m: Model) -> Tensor:
            seen.append(losses.tolist())
            return losses[-1] < -1e9

        def phases(self, task: Task) -> tuple[Phase, ...]:
            return (Phase(self.loss, ("head",), begin=self.zero, momentum=0.0, steps=3, until=self.low, window=2),)

    with pytest.MonkeyPatch.context() as patch:
        known_as(patch, watched=Watched)
        play(simulate("watched", PLAIN.override(clients=2), executor="loop"), 1)
    fall = -0.1 * 10
    assert str(seen[:3]) == str([[float("nan"), 0.0], [0.0, seen[1][1]], [seen[1][1], seen[2][1]]])
    assert abs(seen[1][1] - fall) < 1e-12 and abs(seen[2][1] - 2 * fall) < 1e-12


def test_a_share_of_the_rows_is_drawn_anew_for_every_phase() -> None:
    rows = torch.arange(40).view(2, 20)
    pool = Pool(torch.zeros(40, 1), torch.zeros(40), rows, torch.tensor([20, 7]))
    work, phase = Scenario(batch=4), Phase(lambda *_: None)  # type: ignore[arg-type, return-value]

    def drawn(phase: Phase, t: int) -> list[set[int]]:
        plan = batches.plan([pool], phase, work, 3, [randomness.stream(t, k) for k in range(2)])
        return [set(plan.rows[k, : plan.steps[k]].flatten().tolist()) for k in range(2)]

    for t in (1, 2):
        assert [len(of) for of in drawn(phase._replace(share=0.3), t)] == [6, 2]
        assert drawn(phase._replace(share=0.3), t)[1] <= set(range(20, 27))
        assert [len(of) for of in drawn(phase._replace(share=0.01), t)] == [1, 1]
    assert drawn(phase._replace(share=0.3), 1) != drawn(phase._replace(share=0.3), 2)
    whole, same = (
        batches.plan([pool], phase, work, 3, [randomness.stream(0, k) for k in range(2)])
        for phase in (phase, phase._replace(share=1.0))
    )
    assert torch.equal(whole.rows, same.rows) and whole.steps == [15, 6]


@BOTH
def test_what_a_client_keeps_is_known_when_it_predicts(executor: str) -> None:
    sim = simulate("majority", DIGITS.override(all_classes=2), executor=executor)
    for row in play(sim, 5):  # noted and replayed meanwhile
        shares = []
        for k in range(sim.setup.task.clients):
            most = own_rows(sim, k)[1].bincount(minlength=10).argmax()
            shares.append((own_rows(sim, k, "val")[1] == most).double().mean())
        assert abs(row["val_acc"] - torch.stack(shares).mean()) < 1e-12
        table, y = sim.setup.everywhere, sim.setup.federation.y  # the same rows for all, whose memories differ
        labels = [y[table.rows[k, : int(table.counts[k])]] for k in range(sim.setup.task.clients)]
        most = [own_rows(sim, k)[1].bincount(minlength=10).argmax() for k in range(len(labels))]
        right = torch.stack([(of == m).double().mean() for of, m in zip(labels, most, strict=True)])
        assert abs(row["test_acc_all"] - right.mean()) < 1e-12


SHAPES = {"body.weight": (3, 7, 2), "body.bias": (3, 7), "head.weight": (3, 5)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("work", [{"momentum": 0.0}, {"momentum": 0.9}, {"optimizer": "adam"}], ids=str)
def test_steps_are_those_of_torch_optim(work: dict[str, Any], decay: float, dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(0)
    ours = [torch.randn(s, generator=rng, dtype=dtype) for s in SHAPES.values()]
    theirs = [t.clone().requires_grad_() for t in ours]
    scenario = Scenario(lr=0.03, weight_decay=decay, **work)
    optimizers = Optimizers(
        phase=Phase(lambda m, b, d: None, lr_scale={"head": 0.5}),
        work=scenario,
        cooled=1.0,
        names=[*SHAPES],
        leaves=ours,
        lead=1,
    )  # type: ignore[arg-type, return-value]
    groups = [{"params": theirs[2:], "lr": 0.03 * 0.5}, {"params": theirs[:2], "lr": 0.03}]
    kind: Any = torch.optim.Adam if scenario.optimizer == "adam" else torch.optim.SGD
    given = {} if scenario.optimizer == "adam" else {"momentum": scenario.momentum}
    reference = kind(groups, weight_decay=decay, **given)
    for step in range(5):
        grads = [torch.randn(t.shape, generator=rng, dtype=dtype) for t in ours]
        if step < 2:
            grads[1] = None  # type: ignore[call-overload]  # a leaf that the loss does not reach yet
        for leaf, grad in zip(theirs, grads, strict=True):
            leaf.grad = None if grad is None else grad.clone()
        reference.step()
        optimizers.step(grads)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)


def test_clients_that_have_finished_are_left_behind_with_what_is_remembered_of_them() -> None:
    whole, part = torch.ones(3, 2), torch.ones(2, 2)
    phase = Phase(lambda m, b, d: None)  # type: ignore[arg-type, return-value]
    both = [
        Optimizers(phase=phase, work=Scenario(momentum=0.5), cooled=1.0, names=["body.w"], leaves=[t], lead=1)
        for t in (whole, part)
    ]
    both[0].step([torch.ones(3, 2)])
    both[1].step([torch.ones(2, 2)])
    both[0].cut([whole[:2]])
    for optimizers in both:
        optimizers.step([torch.full((2, 2), 2.0)])
    assert torch.equal(whole[:2], part) and torch.equal(whole[2], torch.full((2,), 1 - 0.01))
