"""Test rows are scored when they are due: the figures are those of every round, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.actors import LocalActor
from support.helpers import CLOCK, DIGITS, EARLY
from support.rows import first
from torch.testing import assert_close

from fedtune.core.budget import Budget
from fedtune.data.federation import Split
from fedtune.engine import chunks, evaluation
from fedtune.engine.simulation import Seeds, Simulation
from fedtune.experiment import partitioning
from fedtune.experiment.experiment import Experiment

SOME = DIGITS.override(rounds=5, participation=0.6, all_classes=20)
ALGORITHMS = first(["fedproto", "fedavgft", "gfpl", "fedgenp", "fedensemble"], 2)


def simulation(name: str, test_every: int, seed: int = 0) -> Simulation:
    experiment = Experiment(algorithm=name, scenario=SOME, seed=seed, test_every=test_every)
    return Simulation(experiment, EARLY[name], partitioning.make(SOME, seed))


def bare(row: dict[str, Any], tests: bool = True) -> dict[str, Any]:
    """A row without times, perhaps without what test rows gave."""
    return {n: v for n, v in row.items() if n not in CLOCK and (tests or not n.startswith("test_"))}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_figures_of_the_rounds_that_are_scored_are_those_of_every_round(name: str) -> None:
    every, some = simulation(name, 1), simulation(name, 2)
    for t in range(1, 6):
        want, got = every.step(), some.step()
        due = t in (2, 4, 5)  # every other round, and the last
        assert bare(got) == bare(want, tests=due)  # bit for bit
        assert list(got) == [n for n in want if due or not n.startswith("test_")]  # in the same order
        assert ("test_acc_all" in got) == due and ("test_acc" in some.last.clients) == due


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_round_can_be_tested_when_it_is_over(name: str) -> None:
    every, late = simulation(name, 1), simulation(name, 100)
    for _ in range(2):
        want, untested = every.step(), late.step()
    tested = late.test()
    assert bare(tested) == bare(want) and list(tested) == list(want)
    assert tested["eval_seconds"] > untested["eval_seconds"]
    for column, values in every.last.clients.items():
        assert torch.equal(late.last.clients[column], values), column
    assert late.test() is tested  # nothing is done twice
    assert bare(late.step(), tests=False) == bare(every.step(), tests=False)  # it left no trace


def test_a_kept_round_can_be_tested_after_its_clients_were_overwritten() -> None:
    every, late = simulation("ditto", 1), simulation("ditto", 100)
    want = every.step()
    late.step()
    kept, lost = late.last.kept(), late.last
    wanted = every.last.clients
    for _ in range(3):
        late.step()
    found = late.tested(kept)
    assert bare(found.row) == bare(want)
    assert all(torch.equal(found.clients[n], wanted[n]) for n in wanted)
    assert bare(late.tested(lost).row) != bare(want)  # as clients that sit a round out are written to in place


def test_seeds_are_tested_together() -> None:
    data = {seed: partitioning.make(SOME, seed) for seed in (0, 1)}
    every, late = (Seeds(Experiment(algorithm="fedproto", scenario=SOME, test_every=n), {}, data) for n in (1, 100))
    want, got = every.step(), late.step()
    assert bare(got) == bare(want, tests=False) and "test_acc_se" not in got
    assert bare(late.test()) == bare(want) and "test_acc_se" in want


class RungActor(LocalActor):
    """A trial whose test rows are scored at rungs and at its end."""

    def _begin(self, config: dict[str, Any]) -> None:
        super()._begin(config)
        for run in self.run.runs:
            run.test_every = 100


def rounds_tested(actor: LocalActor) -> list[int]:
    """The rounds of a trial, up to its end, in which test rows were scored."""
    found = []
    while True:
        row = actor.train()
        found += [row["round"]] if "test_acc" in row else []
        if row["done"]:
            return found


def test_a_trial_is_tested_at_its_rungs_in_rounds_or_megabytes_and_when_it_ends() -> None:
    first = RungActor({})
    used = [first.train()["comm_mb"] for _ in range(4)]  # after each round
    actors = [RungActor({}) for _ in range(3)]
    actors[1].rungs = (2, 4)
    actors[2].rungs, actors[2].budget = ((used[0] + used[1]) / 2,), Budget("mb", (used[2] + used[3]) / 2)
    assert [rounds_tested(actor) for actor in actors] == [[5], [2, 4, 5], [2, 4]]


@pytest.mark.parametrize(("unit", "since"), [("rounds", 1), ("mb", 1), ("mb", 3), ("seconds", 1)])
def test_a_rung_is_passed_once(unit: str, since: int) -> None:
    rows = [
        {"round": t, "comm_mb": 2.0 * t, "up_bytes": 1.5e6, "down_bytes": 0.5e6, "seconds": 1.5, "eval_seconds": 0.5}
        for t in range(1, 8)
    ]
    budget, rungs = Budget(unit, 100, since), {"rounds": (2, 5)}.get(unit, (3.0, 10.0))
    passed = [row["round"] for row in rows if budget.passed(rungs, row, 2.0 * row["round"])]
    assert passed == ([3, 5] if since == 3 else [2, 5])


def test_rows_that_are_kept_are_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulation("fedproto", 1)
    sim.step()
    s, state = sim.setup, sim.state
    with_them = evaluation.score(s, state)
    monkeypatch.setattr(chunks, "CACHED_BYTES", 0)
    monkeypatch.setattr(chunks, "_BANDS", type(chunks._BANDS)())
    without = evaluation.score(s, state)
    assert with_them.row == without.row
    fewer = Split(s.federation.val.rows.clone(), s.federation.val.counts.clamp(max=2))  # another table, the same net
    other = evaluation.score(s._replace(federation=s.federation._replace(val=fewer)), state)
    assert other.row["val_acc"] != without.row["val_acc"] or other.row["val_loss"] != without.row["val_loss"]
    assert_close(other.clients["val_rows"], fewer.counts)
