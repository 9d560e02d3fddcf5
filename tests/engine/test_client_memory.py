"""What a client keeps between rounds and knows of its own training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support.helpers import DIGITS, play, simulate
from support.numbers import TIGHT, assert_same_numbers, copied, numbers
from support.user_algorithms import known_as
from torch.nn import functional as F
from torch.testing import assert_close

from fedtune.core.errors import Diverged, UserError
from fedtune.core.trees import Ragged
from fedtune.engine import engine
from fedtune.engine.simulation import Simulation
from fedtune.experiment.algorithm import DOWN, UP, Algorithm, Batch, Data, Model, Phase, Task, hyper

PLAIN = DIGITS.override(momentum=0.0, lr=0.05)


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    known_as(monkeypatch, counter=Counter, slope=Slope, forgetful=Forgetful, lost=Lost)


@dataclass(frozen=True)
class Counter(Algorithm):
    """Keeps a Ragged table, whole numbers and what it was told of its rate and steps; sends nothing."""

    def keep(self, task: Task) -> dict:
        table = Ragged(torch.zeros(task.classes, 2), torch.zeros(task.classes, dtype=torch.bool))
        size = sum(s.numel() for s in task.shapes.values())
        none = torch.zeros(())
        return {"rounds": torch.tensor(0), "size": torch.tensor(size), "met": table, "lr": none, "seen": none}

    def phases(self, task: Task) -> tuple[Phase, ...]:
        return (Phase(self.loss), Phase(self.loss, train=("head",), epochs=2, lr=0.5))

    def loss(self, m: Model, batch: Batch, down: dict) -> Any:  # type: ignore[override]
        return super().loss(m, batch, down), {"lr": batch.client.lr, "steps": batch.client.steps.double()}

    def remember(self, m: Model, data: Data, down: dict) -> dict:
        old = data.client.kept
        here = F.one_hot(data.y, len(old["met"].present)).bool() & data.mask[:, None]
        sums = old["met"].values + torch.where(here[:, :, None], m["head.bias"][:2], 0).sum(0)
        return {
            "rounds": old["rounds"] + 1,
            "size": old["size"],
            "met": Ragged(sums, old["met"].present | here.any(0)),
            "lr": data.client.lr,
            "seen": data.tally["steps"] / data.client.steps,
        }


def ran(rounds: int = 3, **options: Any) -> Simulation:
    sim = simulate("counter", **({"scenario": DIGITS.override(participation=0.4, lr_decay=0.9)} | options))
    play(sim, rounds)
    return sim


def test_a_client_knows_its_rate_and_steps_and_counts_its_own_rounds() -> None:
    sim = ran()
    took = torch.zeros(5, dtype=torch.int64)
    for t in (1, 2, 3):
        took[engine.participants(sim.setup, t)] += 1
    kept = sim.state.groups[0].kept
    assert kept["rounds"].tolist() == took.tolist() and 0 in took and kept["size"].dtype == torch.int64
    assert kept["lr"].tolist() == [0.5 if n else 0.0 for n in took]  # a phase with its own rate is not cooled
    steps = [2 * -(-n // 4) for n in sim.setup.federation.train.counts.tolist()]
    assert kept["seen"].tolist() == [float(s) if n else 0.0 for s, n in zip(steps, took, strict=True)]
    assert sim.state.bytes == 0


def test_the_scenarios_rate_is_told_as_it_has_cooled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counter, "phases", lambda self, task: (Phase(self.loss),))
    sim = simulate("counter", PLAIN.override(lr_decay=0.9))
    for lr in (0.05, 0.045):
        play(sim, 1)
        assert sim.state.groups[0].kept["lr"].tolist() == pytest.approx([lr] * 5)


@dataclass(frozen=True)
class Slope(Algorithm):
    """Its loss has gradient one by every parameter; it keeps how far its parts went, and the path it was told."""

    trained: str = hyper("all", choices=("all", "head", "none"))

    shared = ("body", "head")

    def round(self, task: Task) -> tuple:
        head = Phase(self.loss, train=("head",), epochs=2, lr_scale={"head": 0.25})
        return (DOWN, *{"all": (Phase(self.loss),), "head": (head,), "none": ()}[self.trained], UP)

    def keep(self, task: Task) -> dict:
        none = {part: torch.zeros(()) for part in self.shared}
        return {"told": none, "told in a step": none, "went": none}

    def loss(self, m: Model, batch: Batch, down: dict) -> Any:  # type: ignore[override]
        return sum(m[n].sum() for n in down["shared"]), {"path": batch.client.path}

    def remember(self, m: Model, data: Data, down: dict) -> dict:
        went = {part: down["shared"][f"{part}.bias"] - m[f"{part}.bias"] for part in ("head",)}
        went["body"] = down["shared"]["body.1.bias"] - m["body.1.bias"]
        told, steps = data.client.path, data.client.steps.clamp(min=1)
        in_a_step = {part: t / steps for part, t in data.tally.get("path", told).items()}
        return {"told": told, "told in a step": in_a_step, "went": {part: t.mean() for part, t in went.items()}}


@pytest.mark.parametrize("executor", ["stack", "loop"])
@pytest.mark.parametrize("trained", ["all", "head", "none"])
@pytest.mark.parametrize("options", [{"momentum": 0.0}, {"momentum": 0.9, "lr_decay": 0.9, "body_lr_scale": 0.3}])
def test_a_path_is_how_far_a_gradient_of_one_carries(trained: str, options: dict, executor: str) -> None:
    sim = simulate("slope", DIGITS.override(lr=0.05, **options), executor=executor, trained=trained)
    play(sim, 2)
    kept = sim.state.groups[0].kept
    for part, moves in (("head", trained != "none"), ("body", trained == "all")):
        assert_close(kept["told"][part], kept["went"][part], **TIGHT)
        assert (kept["told"][part] > 0).all() == moves and (moves or not kept["told"][part].any())
        if trained != "none":
            assert_close(kept["told in a step"][part], kept["told"][part], **TIGHT)


def test_who_sits_out_is_left_in_place() -> None:
    sim = ran(0)
    before = copied({n: t for n, t in numbers(sim.state).items() if "kept" in n})
    place = sim.state.groups[0].kept["rounds"].data_ptr()
    play(sim, 1)
    chosen = {f"client {k}" for k in engine.participants(sim.setup, 1).tolist()}
    after = numbers(sim.state)
    assert_same_numbers(*({n: d[n] for n in before if n.split("/")[0] not in chosen} for d in (after, before)))
    assert sim.state.groups[0].kept["rounds"].data_ptr() == place


@dataclass(frozen=True)
class Forgetful(Algorithm):
    """Forgets half of what it kept."""

    def keep(self, task: Task) -> dict:
        return {"a": torch.zeros(3), "b": torch.zeros(())}

    def remember(self, m: Model, data: Data, down: dict) -> dict:
        return {"a": torch.zeros(2, dtype=data.x.dtype)}


def test_what_is_remembered_must_have_the_form_of_what_was_kept() -> None:
    with pytest.raises(UserError, match=r"Forgetful.remember must return what keep returns.*a float64 \[3\].*\[2\]"):
        play(simulate("forgetful"), 1)


class Lost(Algorithm):
    """Keeps what is no number."""

    def keep(self, task: Task) -> dict:
        return {"a": torch.ones(())}

    def remember(self, m: Model, data: Data, down: dict) -> dict:
        return {"a": data.client.kept["a"] + torch.inf}


def test_memory_that_leaves_the_finite_numbers_is_divergence() -> None:
    with pytest.raises(Diverged, match=r"round 1: the memory of 5 clients \(0, 1, 2, 3, 4\)"):
        play(simulate("lost"), 1)
