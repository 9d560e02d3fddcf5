"""Replaying a search: every trial is trained again, as far as it went, and every number compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from fedtune.core.budget import Budget
from fedtune.core.errors import UserError
from fedtune.core.metrics import JUDGED
from fedtune.core.objectives import TEST, Goal
from fedtune.core.terminal import say, several
from fedtune.runs import frames, provenance
from fedtune.runs.files import RunFiles
from fedtune.runs.folder import RunFolder
from fedtune.runs.logs import logged, suggestions
from fedtune.runs.tables import rounds_frame
from fedtune.studies import resuming, search_study
from fedtune.tuning import plan, schedulers

CLOCK = ["trial", "seconds", "eval_seconds", JUDGED]  # columns that differ each time


def replay(path: Path, name: str | None, changed: Mapping[str, Any], trust: bool = False) -> int:
    """Train a run's trials again in a new folder beside it; 0 if every number is the same, else 1.

    name: of the new folder.  changed: options that may be others now.  trust: also where another user wrote the folder.
    """
    run = RunFolder(path)
    record = resuming.record_of(run, trust, "scheduler")
    options = resuming.options_of(run, changed)
    name = name or f"{options.name}-replayed"
    options = dataclasses.replace(options, name=name, final_seeds=0, logger=(), test_every=1)
    before = rounds_frame(logged(path))
    length = before.groupby("trial")["round"].max()
    tried = [
        plan.EarlierTrial(t["trial"], t["config"], int(length[t["trial"]]))
        for t in suggestions(path)
        if t["trial"] in length
    ]
    if not tried:
        raise UserError(f"a search is replayed from its suggestions and rounds, but {path} has none; search anew")
    if schedulers.moves_hyperparameters(record["scheduler"]) or any(_continues(run, t.trial) for t in tried):
        raise UserError(
            f"a trial is replayed from its first round, but those of {path} went on from others (pbt, --rounds); "
            "replay the first search"
        )
    planned = plan.make(options)
    planned = dataclasses.replace(
        planned, again=tuple(tried), trials=len(tried), points=[], outside=[], searcher="replay", scheduler="none",
        budget=Budget("rounds", planned.experiment.scenario.rounds, 1), time_budget=None,
        goal=Goal(planned.goal.objectives[:1], planned.goal.constraints),
    )  # fmt: skip
    status = search_study.run_with_ray(planned, {"replays": run.name})
    nothing = status == 1 and record["state"] == "nothing found"  # then too
    return compare(before, planned, record) if nothing or not status else status


def compare(before: pd.DataFrame, p: plan.Plan, record: Mapping[str, Any]) -> int:
    """Say whether every round of every trial has the same numbers; 0 if so, else 1.  record: of the run before."""
    files = RunFiles(p.folder)
    now = pd.read_parquet(files.rounds_file)
    names = pd.read_parquet(files.trials_file)["trial"]
    columns = [c for c in now if c in before and c not in CLOCK]
    apart, differences = [], []
    if len(names) < len(p.again):
        say(f"replayed: only {len(names)} of {len(p.again)} trials, for it was interrupted")
        return 1
    for old, new in zip(p.again, names, strict=True):
        one, other = (f[f["trial"] == t][columns].reset_index(drop=True) for f, t in ((before, old.trial), (now, new)))
        tests = [c for c in columns if c.startswith(TEST)]  # of every round now; then perhaps of some
        other[tests] = other[tests].where(one[tests].notna()) if len(one) == len(other) else other[tests]
        if not one.equals(other):
            apart.append(old.trial)
            differences.append((one.select_dtypes("number") - other.select_dtypes("number")).abs().max())
    if apart:
        say(f"replayed: {len(apart)} of {len(p.again)} trials have other numbers: {', '.join(apart)}")
        say(_why(pd.concat(differences), record, RunFolder(p.folder).record))
        return 1
    say(f"replayed: all {several(len(p.again), 'trial')}, {several(len(now), 'round')}, are the same bit for bit")
    return 0


def _why(differences: pd.Series, then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """How far numbers are apart, and whether they come from like machines.  differences: largest ones, by column."""
    largest = differences.max()
    size = f"the largest difference is {largest:.2g}, in {differences.idxmax()}" if largest > 0 else "rounds differ"
    before, after = provenance.trained_on(then), provenance.trained_on(now)
    unlike = f"; trained with {before}, now with {after}, which may round differently" if before != after else ""
    return f"replayed: {size}{unlike}"


def _continues(run: RunFiles, trial: str) -> bool:
    """Whether the trial went on from another one."""
    columns = frames.trials_table(run) if run.trials_file.exists() else pd.DataFrame()
    return "continues" in columns and bool(columns.loc[columns["trial"] == trial, "continues"].notna().any())
