"""Successive halving by promotion: the rule against the paper's, and whole searches of a made-up trainable."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pandas as pd
import pytest
import ray
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from ray import tune
from ray.tune.experiment import Trial
from support.searches import Listed, command, copy_at, copy_to, rounds_by_configuration

from fedtune.analysis.simulation.simulated_search import SimulatedSearch, SimulatedTrial
from fedtune.cluster import ray_start
from fedtune.commands import resume
from fedtune.core.metrics import METRIC, OBJECTIVES
from fedtune.runs import logs
from fedtune.tuning.optuna_searcher import OptunaSearcher
from fedtune.tuning.promotion import Promotion, Rungs, RunningLimit
from fedtune.tuning.space_types import Space

Curve = Callable[[int, int], float]  # trial, round -> value


def halving(trials: int, grace: int, limit: int, eta: int, value: Curve) -> list[tuple[int, int]]:
    """Algorithm 2 with one worker, from the paper: (trial, round it plays to) of each job; then our end of a search."""
    ends = [grace * eta**i for i in range(99) if grace * eta**i < limit] + [limit]
    came: list[list[int]] = [[] for _ in ends]
    left: list[set[int]] = [set() for _ in ends]
    jobs, new = [], iter(range(trials))

    def promoted(share: int) -> tuple[int, int] | None:
        """The best of so many parts of a rung, from the highest on, that has not left it."""
        for k in range(len(ends) - 2, -1, -1):
            best = sorted(came[k], key=lambda t: (-value(t, ends[k]), came[k].index(t)))
            if ready := [t for t in best[: len(came[k]) // share] if t not in left[k]]:
                left[k].add(ready[0])
                return ready[0], k + 1
        return None

    def job() -> tuple[int, int] | None:
        if found := promoted(eta):
            return found
        if (fresh := next(new, None)) is not None:
            return fresh, 0
        return None if came[-1] else promoted(1)

    while (found := job()) is not None:
        trial, k = found
        came[k].append(trial)
        jobs.append((trial, ends[k]))
    return jobs


def noise(trial: int, round: int) -> float:
    """Curves that cross often."""
    return random.Random(1000 * trial + round).random()


def steps(trial: int, round: int) -> float:
    """Many ties."""
    return random.Random(1000 * trial + round).randrange(3) / 2


def simulated(
    scheduler: Promotion, trials: int, limit: int, value: Curve, diverging: Mapping[int, int] | None = None
) -> SimulatedSearch:
    """A search in one slot.  diverging: the round in which a trial diverges."""

    def curve(config: dict[str, Any]) -> list[float]:
        end = (diverging or {}).get(n := config["n"], limit + 1)
        return [value(n, r) for r in range(1, end)]

    searcher: Any = Listed()
    return SimulatedSearch(searcher=searcher, scheduler=scheduler, curve=curve, rounds=limit, trials=trials)


def play(search: SimulatedSearch) -> Iterator[tuple[int, int]]:
    """Trial and round, as they have been played."""
    return ((r.trial, r.round) for r in search.run())


def killed(first: SimulatedSearch, scheduler: Promotion, value: Curve, last: int, lost: int) -> SimulatedSearch:
    """Another driver's, after this one died: of the trial that played last so many rounds were not saved yet."""
    other = simulated(scheduler, first.left, first.rounds, value)
    for old in first.trials:
        trial = SimulatedTrial(old.trial_id, old.config, old.curve, {})
        trial.status, trial.last_result = old.status, dict(old.last_result)
        if int(trial.trial_id) == last and lost:
            trial.status, left = Trial.RUNNING, trial.last_result["training_iteration"] - lost
            trial.last_result = {"training_iteration": left} if left > 0 else {}
        trial.status = Trial.TERMINATED if trial.status == Trial.TERMINATED else Trial.PENDING
        other.trials.append(trial)
        scheduler.on_trial_add(other, trial)  # type: ignore[arg-type]
    return other


def promotion(grace: int, limit: int, eta: int) -> Promotion:
    judged = {"time_attr": "training_iteration", "metric": METRIC, "mode": OBJECTIVES[METRIC]}
    return Promotion(**judged, max_t=limit, grace_period=grace, reduction_factor=eta)


@pytest.mark.parametrize("value", [noise, steps])
@pytest.mark.parametrize(
    ("trials", "grace", "limit", "eta"),
    [
        *((trials, 1, 9, 3) for trials in (1, 2, 3)),
        *((30, 1, 27, 3), (81, 1, 81, 3), (40, 2, 30, 2), (50, 1, 64, 4), (7, 5, 5, 3), (20, 4, 100, 3)),
    ],
)
def test_one_worker_plays_the_papers_jobs_in_the_papers_order(
    trials: int, grace: int, limit: int, eta: int, value: Curve
) -> None:
    search, noted = simulated(promotion(grace, limit, eta), trials, limit, value), list[str]()
    search._tune_controller = SimpleNamespace(_mark_trial_to_checkpoint=lambda t: noted.append(t.trial_id))
    reports = list(search.run())
    want, at, of = jobs(trials, grace, limit, eta, value)
    assert [(r.trial, r.round) for r in reports] == want
    assert max(at.values()) == limit  # somebody has played to the end
    following = [trial for trial, _ in of[1:]] + [-1]
    assert [r.trial for r in reports if r.status == "paused"] == [  # whoever goes on at once does not pause
        trial for (trial, end), then in zip(of, following, strict=True) if end < limit and then != trial
    ]
    ended: Any = search.searcher.ended  # type: ignore[attr-defined]
    assert sorted(noted, key=int) == [str(t) for t in range(trials) if at[t] < limit]
    assert noted == [name for name, result in ended.items() if not result["done"]]


@pytest.mark.parametrize("value", [noise, steps])
@pytest.mark.parametrize("lost", [0, 1, 4])
def test_a_new_driver_goes_on_where_the_last_one_was_killed(lost: int, value: Curve) -> None:
    """After every round once; a trial that has come to a rung may have died before it was saved there."""
    undisturbed = list(play(simulated(promotion(1, 9, 3), 12, 9, value)))
    for killed_after in range(1, len(undisturbed)):
        first = simulated(promotion(1, 9, 3), 12, 9, value)
        played = list(itertools.islice(play(first), killed_after))
        new = promotion(1, 9, 3)
        new.remember([(str(t), r, value(t, r)) for t, r in played])
        played += play(killed(first, new, value, played[-1][0], lost))
        # rounds that were lost are played twice, and not necessarily at once
        assert sorted(set(played)) == sorted(undisturbed)
        if lost == 0:
            assert played == undisturbed


def test_a_new_driver_knows_which_trial_ended_before_its_budget() -> None:
    """A trial of few rounds may not use up its megabytes."""
    first = simulated(promotion(1, 9, 3), 2, 6, noise)
    played = list(itertools.islice(play(first), 7))
    assert played[-1][1] == 6
    new = promotion(1, 9, 3)
    new.remember([(str(t), r, noise(t, r)) for t, r in played])
    assert not list(play(killed(first, new, noise, played[-1][0], 0)))


def test_the_best_diverges_so_the_next_best_is_played_to_the_end() -> None:
    """Two trials, of whom no third part can go on; the first is the better at every rung."""
    one = play(simulated(promotion(1, 9, 3), 2, 9, lambda trial, round: -float(trial), {0: 5}))
    assert list(one) == [(0, 1), (1, 1)] + [(0, r) for r in range(2, 6)] + [(1, r) for r in range(2, 10)]
    both = play(simulated(promotion(1, 9, 3), 2, 9, lambda trial, round: -float(trial), {0: 5, 1: 2}))
    assert list(both)[-1] == (1, 2)


def test_a_search_that_goes_on_from_one_that_is_over_knows_its_rungs() -> None:
    """Whoever came before counts, but cannot go on; one of them was played to its end."""
    new = promotion(1, 9, 3)
    new.remember([(f"old{i}", 1, 0.1 * i) for i in range(5)] + [("old4", r, 0.4) for r in range(2, 10)])
    search = simulated(new, 3, 9, lambda trial, round: [0.05, 0.7, 0.2][trial])
    assert list(play(search)) == [(0, 1), (1, 1), (1, 2), (1, 3), (2, 1)]


def test_what_is_less_can_be_better_and_time_need_not_be_whole() -> None:
    rungs = Rungs(0.5, 10, 4, "min")
    assert [r.milestone for r in rungs.rungs] == [0.5, 2, 8]
    for i, value in enumerate((3.0, 1.0, 1.0, 2.0)):
        rungs.record(str(i), 0.51, value)
    assert rungs.promotable("0123") == "1" and rungs.promotable("023") is None and rungs.furthest("023") == "2"
    rungs.record("4", 2.5, 0.5)  # past two rungs at once: it waits at the higher
    assert rungs.waiting("4") is rungs.rungs[1] and rungs.furthest("01234") == "4"
    assert rungs.promotable("01234") is None  # five came, one of them may go on, and that one is further
    rungs.promote("4")
    assert rungs.waiting("4") is None


def test_higher_rungs_come_first_and_whoever_was_seen_beyond_a_rung_was_let_on() -> None:
    rungs = Rungs(1, 9, 3)
    for i, trial in enumerate("abcdef"):
        rungs.record(trial, 1, i)
    for i, trial in enumerate("abc"):
        rungs.record(trial, 3, i)
    assert rungs.promotable("abcdef") == "c" and rungs.promotable("abdef") == "f"
    assert rungs.waiting("a") is rungs.rungs[1] and rungs.waiting("d") is rungs.rungs[0]
    rungs.record("d", 2, 9.0)
    rungs.record("f", 1, 9.0)  # played again
    assert rungs.waiting("d") is None and rungs.waiting("f") and rungs.rungs[0].reached["f"] == (1, 5)


def test_a_trial_that_plays_its_last_rounds_again_pauses_where_it_was() -> None:
    search = simulated(promotion(3, 9, 3), 2, 9, noise)
    playing = play(search)
    assert [next(playing) for _ in range(3)][-1] == (0, 3)
    trial: Any = search.trials[0]
    assert trial.status == Trial.PAUSED
    trial.status, trial.last_result = Trial.PENDING, {"training_iteration": 1}  # its worker died before it was saved
    search.scheduler.on_trial_error(search, trial)  # type: ignore[arg-type]
    search.scheduler.on_trial_add(search, trial)  # type: ignore[arg-type]
    assert trial.status == Trial.PENDING
    assert [next(playing) for _ in range(3)] == [(0, 2), (0, 3), (1, 1)]


class Walk(tune.Trainable):
    """A curve that depends on all of its past.  Where it finds a file `step` or `save` it takes it and dies of it."""

    def setup(self, config: dict, folder: Path) -> None:
        self.folder = folder
        self.reset_config(config)

    def reset_config(self, config: dict) -> bool:
        self.x, self.rounds = config["x"], 0
        return True

    def step(self) -> dict[str, Any]:
        self.rounds += 1
        if self.rounds == 5:
            self.die("step")
        if self.rounds == 1 and (self.folder / "two").exists():  # not before two have begun
            (self.folder / f"began-{self.x}").touch()
            while len(list(self.folder.glob("began-*"))) < 2:
                time.sleep(0.05)
        self.x = 3.9 * self.x * (1 - self.x)
        return {METRIC: self.x, "done": self.rounds == LIMIT, "complete": self.rounds == LIMIT}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        if self.rounds == 3:
            self.die("save")
        (Path(checkpoint_dir) / "state.json").write_text(json.dumps([self.x, self.rounds]))

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.x, self.rounds = json.loads((Path(checkpoint) / "state.json").read_text())

    def die(self, cause: str) -> None:
        if (self.folder / cause).exists():
            (self.folder / cause).unlink()
            os.kill(os.getpid(), signal.SIGKILL)


LIMIT = 27  # rounds


class Log(tune.Callback):
    """What the driver saw, in order."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}  # trial -> which it was to be suggested
        self.rows: list[tuple[int, int, float]] = []  # trial, round, value
        self.running = 0  # at most, at once

    def on_trial_result(self, iteration: int, trials: list, trial: Trial, result: dict, **info: Any) -> None:
        number = self.numbers[trial.trial_id] = int(trial.experiment_tag.split("_")[0]) - 1
        self.rows.append((number, result["training_iteration"], result[METRIC]))
        self.running = max(self.running, sum(t.status == Trial.RUNNING for t in trials))

    def played(self) -> list[tuple[int, int]]:
        return [(trial, round) for trial, round, _ in self.rows]


def walks() -> OptunaSearcher:
    """Where walks begin; always the same ones in the same order."""
    space = Space({"x": tune.uniform(0.01, 0.99)}, [])
    return OptunaSearcher(space=space, sampler=optuna.samplers.RandomSampler(seed=3), study="s")


def searched(folder: Path, trials: int, slots: int = 1) -> SimpleNamespace:
    """A whole search of walks, in which every slot has half of the machine."""
    found, log = walks(), Log()
    grid = tune.Tuner(
        tune.with_resources(tune.with_parameters(Walk, folder=folder), {"cpu": 1}),
        tune_config=tune.TuneConfig(
            search_alg=RunningLimit(found, slots),
            scheduler=promotion(1, LIMIT, 3),
            num_samples=trials,
            max_concurrent_trials=slots,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="run",
            storage_path=str(folder),
            verbose=0,
            callbacks=[log],
            failure_config=tune.FailureConfig(max_failures=3),
            checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
        ),
    ).fit()
    return SimpleNamespace(grid=grid, log=log, study=found.study)


@pytest.fixture(scope="module")
def ray_here(one_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test
    with ray_start.connected(None, 1, 0, dashboard=False):
        yield tmp_path_factory.mktemp("walks")
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def whole() -> Curve:
    """Every configuration that a search suggests, played to its end without Ray."""
    found, curves = walks(), []
    for number in range(30):
        suggested = found.suggest(str(number))
        assert isinstance(suggested, dict)
        walk = Walk.__new__(Walk)  # no trial of Ray's
        walk.folder = Path("/none")
        walk.reset_config(suggested)
        curves.append([walk.step()[METRIC] for _ in range(LIMIT)])
    return lambda trial, round: curves[trial][round - 1]


def jobs(*rule: Any) -> tuple[list[tuple[int, int]], Counter[int], list[tuple[int, int]]]:
    """What the paper's algorithm plays: trial and round, in order; each trial's last round; and the jobs."""
    at, played, of = Counter[int](), [], halving(*rule)
    for trial, end in of:
        played += [(trial, round) for round in range(at[trial] + 1, end + 1)]
        at[trial] = end
    return played, at, of


def assert_as_whole(got: SimpleNamespace, whole: Curve) -> None:
    """Every round is bit for bit what it is in a trial that never paused; the study was told how trials ended."""
    assert not got.grid.errors and all(value == whole(trial, round) for trial, round, value in got.log.rows)
    last: dict[int, int] = {}
    for trial, round in sorted(got.log.played()):
        last[trial] = round
    for trial in got.study.trials:
        number = got.log.numbers[trial.user_attrs["trial"]]
        assert trial.state.name == ("COMPLETE" if last[number] == LIMIT else "PRUNED")
        assert trial.value == whole(number, last[number])
        assert set(range(1, min(last[number] + 1, LIMIT))) <= set(trial.intermediate_values)
    assert sorted(r.metrics["training_iteration"] for r in got.grid) == sorted(last.values())


def test_dead_workers_change_no_number(ray_here: Path, whole: Curve) -> None:
    """One dies in the middle, one while its trial is to pause."""
    (ray_here / "dead").mkdir()
    for cause in ("step", "save"):
        (ray_here / "dead" / cause).touch()
    got = searched(ray_here / "dead", 20)
    want, _, _ = jobs(20, 1, LIMIT, 3, whole)
    assert not list((ray_here / "dead").glob("s*")) and len(got.log.rows) > len(want)
    assert list(dict.fromkeys(got.log.played())) == want  # some were played again
    assert_as_whole(got, whole)


def test_two_slots_are_filled_and_no_more(ray_here: Path, whole: Curve) -> None:
    (ray_here / "two").mkdir()
    (ray_here / "two" / "two").touch()
    got = searched(ray_here / "two", 15, slots=2)
    assert got.log.running == 2
    assert_as_whole(got, whole)
    ends = Counter(r.metrics["training_iteration"] for r in got.grid)
    came = {rung: sum(n for end, n in ends.items() if end >= rung) for rung in (1, 3, 9, LIMIT)}
    assert sum(ends.values()) == came[1] == 15 and set(ends) <= set(came)
    # with two workers a rung's best may change between promotions, so more than every third may have gone on
    assert came[1] // 3 <= came[3] < came[1] and 1 <= came[LIMIT] <= came[9] <= came[3]


# one slot and random draws, so that what is tried and who goes on depends on nothing else
ARGUMENTS = (
    "--algo fedproto --clients 8 --rounds 9 --grace 1 --trials 9 --searcher random --scheduler promote "
    "--max-concurrent 1 --set local_epochs=3 --set lr=0.02 --set momentum=0.5 --final-seeds 0 --no-dashboard"
)


@pytest.fixture(scope="module")
def promoting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with such a search in `run`, and what a kill would have left of it after so many rounds."""
    folder = tmp_path_factory.mktemp("promoting")
    process = command("fedtune", "search", *ARGUMENTS.split(), "--storage-path", str(folder), "--name", "run")
    for moment in (2, 12):
        copy_at(moment, process, folder / "run", folder / f"after-{moment}")
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    return folder


@pytest.mark.long  # a search of Ray's
def test_a_promoting_search_ends_with_what_the_rule_lets_on(promoting: Path) -> None:
    undisturbed = promoting / "run"
    trials = pd.read_parquet(undisturbed / "trials.parquet")
    rounds = pd.read_parquet(undisturbed / "rounds.parquet")
    played = rounds.groupby("trial")["round"].apply(list).to_dict()
    assert played == {t.trial: list(range(1, t.rounds + 1)) for t in trials.itertuples()}
    value = rounds.set_index(["trial", "round"])[METRIC]
    last = dict(halving(9, 1, 9, 3, lambda t, r: value[trials["trial"][t], r]))
    assert trials["rounds"].to_dict() == last
    assert (trials["status"] == trials["rounds"].map(lambda r: "finished" if r == 9 else "stopped")).all()
    rows = [row for rows in logs.logged(undisturbed).values() for row in rows]
    assert len({row["timestamp"] for row in rows}) == len(rows)  # else equals at a rung would change places on resume
    record = json.loads((undisturbed / "run.json").read_text())
    assert record["rungs"] == [1, 3] and record["scheduler"] == "promote"
    journal = JournalStorage(JournalFileBackend(str(undisturbed / "study.journal")))
    states = {t.user_attrs["trial"]: t.state.name for t in optuna.load_study(study_name=None, storage=journal).trials}
    told = {"finished": "COMPLETE", "stopped": "PRUNED"}
    assert states == {t.trial: told[t.status] for t in trials.itertuples()}


@pytest.mark.usefixtures("one_ray")
@pytest.mark.long  # searches of Ray's
@pytest.mark.parametrize("moment", [2, 12])
def test_a_promoting_search_is_resumed_from_what_a_kill_left(moment: int, promoting: Path, tmp_path: Path) -> None:
    """What was paused stays paused, and goes on as it would have.

    A trial that Ray's last snapshot did not see yet, the best of its rung, takes nobody's place there.
    """
    undisturbed, run = promoting / "run", copy_to(tmp_path, promoting / f"after-{moment}")
    row = next(iter(logs.logged(run).values()))[0] | {"trial_id": "unseen", METRIC: 1.0}
    (run / "fedproto-unseen").mkdir()
    (run / "fedproto-unseen" / "result.json").write_text(json.dumps(row) + "\n")
    assert resume.main([str(run), "--no-dashboard"]) == 0
    got, want = rounds_by_configuration(run), rounds_by_configuration(undisturbed)
    assert got.keys() == want.keys() and len(got) == 9
    assert (run / "lost" / "fedproto-unseen").is_dir()
    for name, rows in want.items():
        assert rows["round"].tolist() == list(range(1, len(rows) + 1))
        pd.testing.assert_frame_equal(got[name], rows, check_exact=True)
    columns = ["status", "rounds", "last_val_acc"]
    had, have = (pd.read_parquet(at / "trials.parquet")[columns].value_counts() for at in (undisturbed, run))
    assert have.sort_index().equals(had.sort_index())
