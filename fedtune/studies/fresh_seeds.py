"""What searches found, played again on seeds that none of them has seen."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from fedtune.core.metrics import METRIC, METRICS
from fedtune.data.datasets import Dataset
from fedtune.federated import experiment
from fedtune.runs import tables
from fedtune.studies import ray_tasks
from fedtune.tuning.plan import Plan
from fedtune.tuning.space import Config

DEFAULT = "default"
# what is kept of a run, beside what its last round has
LAST = ("val_acc", "test_acc", "test_acc_std", "test_acc_worst10", "comm_mb")
NEAR = 0.95  # of its last accuracy: when a run is said to have got there


class Candidate(NamedTuple):
    """A configuration that is played again."""

    name: str  # default, or "top 1" for the search's best, "top 2" …
    config: Config
    trial: str = ""
    score: float = math.nan  # its validation accuracy in the search


def candidates(p: Plan, top: int) -> list[Candidate]:
    """The default and a search's best so many, from its tables.  The default has a score if its trial was finished."""
    trials = pd.read_parquet(p.folder / "trials.parquet")
    ranked = tables.best_trials(trials, p.budget.unit)[:top]
    default = p.default()
    found = [Candidate(DEFAULT, default)]
    for row in trials[trials["status"] == "finished"].to_dict("records"):
        if _values(p, row) == default:
            found = [Candidate(DEFAULT, default, row["trial"], row[f"last_{METRIC}"])]
    for i, row in enumerate(ranked.to_dict("records")):
        found.append(Candidate(f"top {i + 1}", _values(p, row), row["trial"], row[f"last_{METRIC}"]))
    return found


def _values(p: Plan, row: dict[Any, Any]) -> Config:
    """A trial's values of what was searched."""
    tried = {k.removeprefix(tables.CONFIG): v for k, v in row.items() if k.startswith(tables.CONFIG)}
    whole = p.experiment.configuration(tables.plain(tried))
    return {n: v for n, v in whole.items() if n in p.space.names}


def evaluate(
    plans: Sequence[Plan], data: Dataset, seeds: int, top: int, folder: Path
) -> tuple[pd.DataFrame, pd.DataFrame, list[ray_tasks.Outcome]]:
    """A row per algorithm, candidate and fresh seed; a row per round of each; and the runs that these stand for.

    One run may be of two candidates, when the search's best is the default.

    Of the search's best so many, the one of highest mean validation accuracy on the fresh seeds is `chosen`: no test
    figure is looked at.  But validation and test of one run go together, so that with more than one to choose from its
    test accuracy there is a little too good.
    folder: of a file per run; what is in there is not played again.
    """
    runs, of = [], {}
    tried = [(p, c, seed) for p in plans for c in candidates(p, top) for seed in p.fresh(seeds)]
    for p, c, seed in tried:
        same = (p.experiment.algorithm, json.dumps(c.config, sort_keys=True), seed)
        if same not in of:
            label = f"{p.experiment.algorithm} {c.name} seed {seed}"
            of[same] = ray_tasks.Run(label, experiment.with_seed(p.experiment, seed), c.config)
            runs.append(of[same])
    first = plans[0]
    outcomes = ray_tasks.run_all(
        runs, {first.experiment.scenario.dataset: data}, folder, first.cpus, first.gpus, first.budget, "fresh seeds",
        first.concurrent,
    )  # fmt: skip
    rows, rounds = [], []
    for p, c, seed in tried:
        run = of[p.experiment.algorithm, json.dumps(c.config, sort_keys=True), seed]
        who = {"algorithm": p.experiment.algorithm, "configuration": c.name, "seed": seed}
        outcome = outcomes[run.label]
        config = {tables.CONFIG + n: v for n, v in c.config.items()}
        rows.append(who | {"trial": c.trial, "score": c.score} | summed(outcome) | config)
        rounds += [who | row for row in outcome.rounds]
    frame = pd.DataFrame(rows)
    frame.insert(3, "chosen", chosen(frame))
    return frame, pd.DataFrame(rounds, columns=_columns(rounds)), list(outcomes.values())


def seconds(outcome: ray_tasks.Outcome) -> float:
    """The time that a run's rounds took, with scoring."""
    return sum(r["seconds"] + r["eval_seconds"] for r in outcome.rounds)


def summed(outcome: ray_tasks.Outcome) -> dict[str, Any]:
    """What a run comes to.  Nothing of a run that diverged, but how far it came and what that cost."""
    rows = outcome.rounds
    found: dict[str, Any] = {"rounds": len(rows), "seconds": seconds(outcome)}
    if outcome.reason or not rows:
        return found | dict.fromkeys((*LAST, "rounds_to_95", "mb_to_95", "mb_per_round"), math.nan) | {
            "reason": outcome.reason
        }
    last = rows[-1]
    there = next(r for r in rows if r["test_acc"] >= NEAR * last["test_acc"])
    return found | {n: last[n] for n in LAST} | {
        "rounds_to_95": there["round"], "mb_to_95": there["comm_mb"], "mb_per_round": last["comm_mb"] / len(rows),
        "reason": "",
    }  # fmt: skip


def chosen(frame: pd.DataFrame) -> pd.Series:
    """Whether a row is of its algorithm's tuned configuration; the default's rows never are.

    Where every candidate diverged on some seed, the search's best stays, and its row says so.
    """
    tuned = frame[frame["configuration"] != DEFAULT]
    scores = tuned.groupby(["algorithm", "configuration"], sort=False)[METRIC].agg(lambda v: v.mean(skipna=False))
    best = {(a, scores[a].fillna(-math.inf).idxmax()) for a in scores.index.unique("algorithm")}
    return pd.Series([pair in best for pair in zip(frame["algorithm"], frame["configuration"], strict=True)])


def _columns(rounds: list[dict[str, Any]]) -> list[str]:
    named = ["algorithm", "configuration", "seed", "round", *METRICS]
    seen = {name for row in rounds for name in row}
    return [n for n in named if n in seen] + sorted(seen - set(named))
