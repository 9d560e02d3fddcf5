"""The searches' best configurations, trained again on seeds that none of the searches has seen."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from fedtune.core.metrics import METRICS, figures
from fedtune.core.objectives import BY_ACCURACY, WORST, Goal
from fedtune.experiment.experiment import Experiment
from fedtune.runs import tables
from fedtune.runs.folder import StudyFolder
from fedtune.runs.tables import BORROWED, DEFAULT, SEARCH, UNTUNED
from fedtune.studies import ray_tasks
from fedtune.tuning.plan import SearchPlan, StartedSearch
from fedtune.tuning.space_types import Config

NOTHING = "nothing found"  # the state of a search without a best trial
NEAR = 0.95  # share of a run's last test accuracy; `rounds_to_95` is the first round, of those tested, that reaches it


class Candidate(NamedTuple):
    """A configuration that is trained on fresh seeds."""

    name: str  # default, borrowed, or "top 1" for the search's best, "top 2" …
    config: Config
    trial: str = ""
    score: float = math.nan  # the first objective in the search


def candidates(p: SearchPlan, top: int) -> list[Candidate]:
    """The default configuration and the best `top` of a search, from its tables.

    The default has a score if one of the search's finished trials was of it.
    """
    trials = pd.read_parquet(p.files.trials_file)
    ranked = _best(p, trials)[:top]
    default, score = p.default(), p.goal.first.column
    first = Candidate(DEFAULT, default)
    for row in trials[trials["status"] == "finished"].to_dict("records"):
        if values(p, row) == default:
            first = Candidate(DEFAULT, default, row["trial"], row[score])
    best = enumerate(ranked.to_dict("records"), 1)
    return [first, *(Candidate(f"top {i}", values(p, row), row["trial"], row[score]) for i, row in best)]


def borrowed(p: SearchPlan, tuned: Config) -> Candidate:
    """An algorithm's defaults with another one's tuned values of what both have; UserError if it refuses one."""
    config = p.default({n: v for n, v in tuned.items() if n in p.workload.hyperparameters()})
    if isinstance(p.workload, Experiment):
        p.workload.check(config)
    return Candidate(BORROWED, config)


def _best(p: SearchPlan, trials: pd.DataFrame) -> pd.DataFrame:
    """A search's best trials, the best first: only the one that it names, if it chooses by further seeds."""
    if p.files.record_file.exists() and p.files.record.get("state") == NOTHING:
        return trials[:0]
    if p.choosing:
        return trials[trials["trial"] == str(StudyFolder(p.folder).best["found"]["trial"])]
    return tables.best_trials(trials, p.budget.unit, p.goal)


def values(p: SearchPlan, row: dict[Any, Any]) -> Config:
    """The searched hyperparameters of a trial, from its row in the table of trials."""
    tried = {k.removeprefix(tables.CONFIG): v for k, v in row.items() if k.startswith(tables.CONFIG)}
    config = p.workload.configuration(tables.plain(tried))
    return {n: v for n, v in config.items() if n in p.space.names}


def evaluate(
    plans: Sequence[Mapping[str, SearchPlan]],
    data: Mapping[str, Any],
    seeds: int,
    top: int,
    folder: Path,
    more: Mapping[tuple[int, str], Candidate],
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, list[ray_tasks.Outcome]]:
    """Train the default and the best configurations of each search on fresh seeds.

    Returns a row per algorithm, search, candidate and seed; a row per round of each; a row per client of each (see
    tables.CLIENTS); and the outcomes of the runs.  One run may serve two candidates, when the best is the default.

    Among a search's candidates, the one with the best mean of the objective on the fresh seeds is `chosen`; no test
    figure is used.  But validation and test accuracy of a run are correlated, so with more than one candidate the test
    accuracy is slightly too optimistic.

    plans    of the algorithms' first searches by the algorithms' names, of their second ones, …
    top      candidates of each search, beside the default.
    folder   where each run leaves a file; a run whose file is there is not run again.
    more     a further candidate, by the number of a search, 1, 2, …, and its algorithm.
    """
    entries = [
        (k, name, p, workload.with_seed(seed, checking=True), c, seed)
        for k, of in enumerate(plans, 1)
        for name, p in of.items()
        for workload in [p.workload_as_begun()]
        for c in [*candidates(p, top), *([more[k, name]] if (k, name) in more else [])]
        for seed in p.fresh(seeds)
    ]
    runs: dict[tuple[str, str, int], ray_tasks.RunTask] = {}
    for _, name, p, workload, c, seed in entries:
        label = f"{name} {c.name} {p.run_word} {seed}"  # an algorithm may be searched under two names
        runs.setdefault(_key(p, c, seed), ray_tasks.RunTask(label, workload, c.config))
    first = next(iter(plans[0].values()))
    at: Any = {"gpus": first.gpus, "concurrent": first.options.max_concurrent, "objective": first.goal.first}
    outcomes = _outcomes(first, runs.values(), data, folder, title="fresh seeds", **at)
    rows, rounds, scored = [], [], []
    for k, name, p, _, c, seed in entries:
        outcome = outcomes[runs[_key(p, c, seed)].label]
        whose = {"algorithm": name, "configuration": c.name, "seed": seed}
        summary = run_summary(outcome, p.goal, p.workload.measures.figures)
        config = {tables.CONFIG + n: v for n, v in c.config.items()}
        rows.append(whose | {SEARCH: k, "trial": c.trial, "score": c.score} | summary | config)
        rounds += [whose | row for row in outcome.rounds]
        scored.append((whose, outcome.clients))
    frame = pd.DataFrame(rows)
    frame.insert(3, "chosen", is_tuned(frame, first.goal))
    return frame, _rounds_frame(rounds), tables.clients_frame(scored), list(outcomes.values())


def trained(
    s: StartedSearch,
    configs: Mapping[str, Config],
    seeds: Sequence[int],
    folder: Path,
    checking: bool = False,
    **more: Any,
) -> dict[tuple[str, int], ray_tasks.Outcome]:
    """The outcomes of a search's named configurations on these seeds, by both.

    checking: whether a program's command of its final check runs.  more: of `ray_tasks.run_all`.
    """
    p = s.plan
    runs = {
        (name, seed): ray_tasks.RunTask(f"{name}, {p.run_word} {seed}", s.workload.with_seed(seed, checking), config)
        for name, config in configs.items()
        for seed in seeds
    }
    done = _outcomes(p, runs.values(), s.data, folder, gpus=s.gpus, concurrent=s.concurrent, **more)
    return {key: done[run.label] for key, run in runs.items()}


def _outcomes(
    p: SearchPlan, runs: Iterable[ray_tasks.RunTask], data: Mapping[str, Any], folder: Path, **more: Any
) -> dict[str, ray_tasks.Outcome]:
    """The outcomes of runs, by label, each trained as a search's trials are."""
    more |= {"cpus": p.options.cpus_per_trial, "budget": p.budget, "timed": "seconds" in p.goal.names}
    return ray_tasks.run_all(list(runs), data, folder, **more)


def _key(p: SearchPlan, c: Candidate, seed: int) -> tuple[str, str, int]:
    """The key of a run: candidates with the same key share one run."""
    return p.workload.name, json.dumps({**p.workload.pinned, **c.config}, sort_keys=True), seed


def run_summary(
    outcome: ray_tasks.Outcome, goal: Goal = BY_ACCURACY, figures: tables.Figures = figures
) -> dict[str, Any]:
    """A run in one row: its last metrics and what they cost; of one that diverged, only its rounds and seconds."""
    rows = outcome.rounds
    length: dict[str, Any] = {"rounds": rows[-1]["round"] if rows else 0, "seconds": outcome.seconds}
    last = {} if outcome.reason or not rows else rows[-1]
    near = [r for r in rows if last and r.get("test_acc", -math.inf) >= NEAR * last.get("test_acc", math.inf)]
    first = near[0] if near else {}
    costs = {
        "rounds_to_95": first.get("round", math.nan),
        "mb_to_95": first.get("comm_mb", math.nan),
        "mb_per_round": last.get("comm_mb", math.nan) / max(1, length["rounds"]),
    }
    metrics = {n: v for n, v in last_round(outcome, goal, figures).items() if n not in (*length, "reason")}
    return length | metrics | costs | {"reason": outcome.reason}


def last_round(outcome: ray_tasks.Outcome, goal: Goal, figures: tables.Figures = figures) -> dict[str, Any]:
    """The metrics of a run's last round that are kept, with those of the goal; not numbers if it diverged."""
    last = outcome.rounds[-1] if outcome.rounds and not outcome.reason else {}
    row = {name: last.get(name, math.nan) for name in dict.fromkeys([*figures(last), *goal.names])}
    if last and "seconds" in row:
        row["seconds"] = outcome.seconds
    return row | {"reason": outcome.reason}


def is_tuned(frame: pd.DataFrame, goal: Goal = BY_ACCURACY) -> pd.Series:
    """Which rows belong to the tuned configuration of their search; those of no candidate of a search never do.

    Candidates that violate a constraint in the mean rank behind all that satisfy them.  If every candidate diverged on
    some seed, the search's best is kept, and its row says so.
    """
    keys = [frame["algorithm"], frame.get(SEARCH, pd.Series(1, frame.index, name=SEARCH)), frame["configuration"]]
    tuned = ~frame["configuration"].isin(UNTUNED)
    of = [column[tuned] for column in keys]
    means = frame[tuned].groupby(of, sort=False)[goal.names].agg(lambda v: v.mean(skipna=False))
    scores = goal.first.sign * means[goal.first.name]
    for constraint in goal.constraints:
        scores -= WORST * means[constraint.name].map(constraint.excess).clip(lower=0)
    best = {group.fillna(-math.inf).idxmax() for _, group in scores.groupby(level=[0, 1], sort=False)}
    return pd.Series([row in best for row in zip(*keys, strict=True)])


def _rounds_frame(rounds: list[dict[str, Any]]) -> pd.DataFrame:
    named = ["algorithm", "configuration", "seed", "round", *METRICS]
    present = {name for row in rounds for name in row}
    return pd.DataFrame(rounds, columns=[n for n in named if n in present] + sorted(present - set(named)))
