"""A simulated search does what Ray's would, and what the papers' rules say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.searches import QUICK, Listed, configuration, searched

from fedtune.analysis.simulation.simulated_search import SimulatedRound, SimulatedSearch
from fedtune.core.budget import Budget
from fedtune.core.metrics import METRIC
from fedtune.tuning import plan, schedulers, searchers
from fedtune.tuning.options.search import SearchOptions
from fedtune.tuning.space_types import Space


def simulated(scheduler: str, curves: Sequence[np.ndarray], **more: Any) -> tuple[list[SimulatedRound], Listed]:
    """Each curve as a trial under a scheduler, which judges from the first round on; a shorter one diverges."""
    searcher, rounds = Listed(), len(curves[0])
    judge = schedulers.scheduler(scheduler, Budget("rounds", rounds), 1, Space({}, []))
    of: Any = {"searcher": searcher, "scheduler": judge, "rounds": rounds, "trials": len(curves), **more}
    search = SimulatedSearch(**of, curve=lambda c: curves[c["n"]])
    return list(search.run()), searcher


def noise(trials: int, rounds: int) -> np.ndarray:
    return np.random.default_rng(trials).random((trials, rounds))


def lengths(reports: list[SimulatedRound]) -> dict[int, int]:
    return {r.trial: r.round for r in reports}


@pytest.mark.usefixtures("one_ray")
@pytest.mark.parametrize(
    ("scheduler", "trials"),
    [
        ("asha", 9),
        *(pytest.param(*both, marks=pytest.mark.long) for both in (("promote", 9), ("front", 9), ("median", 6))),
    ],
)
def test_it_is_the_search_that_ray_runs(scheduler: str, trials: int, tmp_path: Path) -> None:
    """With the curves that a search of Ray's logged the same configurations come, go as far, and end alike."""
    words = f"--algo local --rounds 9 --trials {trials} --grace 1 --scheduler {scheduler} --max-concurrent 1 {QUICK}"
    real = searched(tmp_path, words)
    curves = {
        tuple(configuration(t).items()): real.rounds[real.rounds["trial"] == t["trial"]][METRIC].tolist()
        for t in real.trials.to_dict("records")
    }
    options = SearchOptions(
        algo="local", fields={"rounds": 9, "clients": 4}, grace=1, scheduler=scheduler, trials=trials
    )
    p = plan.make(replace(options, storage_path=str(tmp_path), name="other"))
    searcher: Any = searchers.searcher(p.searcher, p.space, p.points, [{}], 0, "study", goal=p.goal)
    judge = schedulers.scheduler(scheduler, p.budget, p.grace, p.space)
    search = SimulatedSearch(
        searcher=searcher, scheduler=judge, curve=lambda c: curves[tuple(c.items())], rounds=9, trials=trials
    )
    last = {r.trial: r for r in search.run()}
    ours = [(last[i].config, last[i].round) for i in range(trials)]
    assert ours == [(configuration(t), t["rounds"]) for t in real.trials.to_dict("records")]
    done = [i for i in range(trials) if last[i].status == "finished"]
    assert done == [i for i, status in enumerate(real.trials["status"]) if status == "finished"]


@pytest.mark.parametrize("slots", [1, 3])
def test_without_a_scheduler_every_trial_runs_to_its_end_on_the_slots_there_are(slots: int) -> None:
    reports, searcher = simulated("none", noise(6, 4), slots=slots)
    assert lengths(reports) == dict.fromkeys(range(6), 4)
    assert [r.trial for r in reports if r.status == "finished"] == list(range(6))
    assert max(r.clock for r in reports) == 24 / slots
    assert all(sum(r.clock == t for r in reports) == slots for t in range(1, 24 // slots + 1))
    assert [searcher.ended[str(i)]["complete"] for i in range(6)] == [True] * 6


def test_asha_in_one_slot_is_its_rule() -> None:
    """A trial goes on from a rung if it is in the best third of those that came there, itself among them."""
    curves = noise(40, 9)
    reports, _ = simulated("asha", curves)
    came: dict[int, list[float]] = {1: [], 3: []}
    for i, curve in enumerate(curves):
        want = 9
        for rung in (1, 3):
            came[rung].append(curve[rung - 1])
            cut = np.nanpercentile(came[rung][:-1], (1 - 1 / 3) * 100) if len(came[rung]) > 1 else -1
            if curve[rung - 1] < cut:
                want = rung
                break
        assert lengths(reports)[i] == want


def test_what_diverges_ends_with_the_worst_value_and_is_told() -> None:
    curves = [np.array([0.5, 0.6, 0.7]), np.array([0.9]), np.array([0.1, 0.2, 0.3])]
    reports, searcher = simulated("none", curves, worst=0.25)
    assert [r.status for r in reports if r.trial == 1] == ["running", "diverged"]
    assert searcher.ended["1"]["diverged"] and searcher.ended["1"][METRIC] == 0.25
    assert not searcher.ended["1"]["complete"] and searcher.ended["2"]["complete"]
