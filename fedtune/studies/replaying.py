"""Replaying a search: every trial is trained again, as far as it went, and every number compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedtune.core.errors import UserError
from fedtune.core.metrics import JUDGED
from fedtune.core.objectives import TEST
from fedtune.core.terminal import say, several
from fedtune.runs import frames, provenance
from fedtune.runs.files import RunFiles
from fedtune.runs.folder import StudyFolder
from fedtune.runs.logs import logged, suggestions
from fedtune.runs.tables import rounds_frame
from fedtune.studies import resuming, search_study
from fedtune.tuning import plan, schedulers

CLOCK = ["trial", "seconds", "eval_seconds", JUDGED]  # columns whose values differ in every run


def replay(path: Path, name: str | None, changed: Mapping[str, Any], trust: bool = False) -> int:
    """Train a run's trials again in a new folder beside it; 0 if every number is the same, else 1.

    name: of the new folder.  changed: options with new values.  trust: also if another user wrote the folder.
    """
    run = StudyFolder(path)
    record = resuming.record_of(run, trust, "scheduler")
    options = resuming.options_of(run, changed)
    name = name or f"{options.name}-replayed"
    options = dataclasses.replace(options, name=name, choose_seeds=1, final_seeds=0, logger=(), test_every=1)
    before = rounds_frame(logged(path))
    length = before.groupby("trial")["round"].max()
    tried = [
        plan.EarlierTrial(t["trial"], t["config"], int(length[t["trial"]]))
        for t in suggestions(path)
        if t["trial"] in length
    ]
    if not tried:
        raise UserError(f"only a search that has suggestions and rounds can be repeated, but {path} has none")
    if schedulers.moves_hyperparameters(record["scheduler"]) or any(_continues(run, t.trial) for t in tried):
        raise UserError(
            f"a trial is repeated from its first round, but trials of {path} continued others (pbt, --rounds); "
            "repeat the first search"
        )
    whole: dict[str, Any] = {"budget_unit": "rounds", "budget": None, "grace": None, "time_budget": None}
    whole |= {"subject_to": "", "trials_drawn": None}  # what decided there which trials there are, and how long
    options = dataclasses.replace(options, objective=options.objective.split(",")[0], **whole)
    planned = plan.make(options, after=plan.EarlierSearch(path, tuple(tried), replayed=True))
    if not planned.workload.traits.repeatable:
        raise UserError(
            f"every number is compared, but {planned.workload.name} has no seed and gives others each time; "
            "write {seed} in its command if it takes one"
        )
    status = search_study.run_with_ray(planned, {"replays": run.name})
    nothing = status == 1 and record["state"] == "nothing found"  # the search had found nothing either
    return compare(before, planned, record) if nothing or not status else status


def compare(before: pd.DataFrame, p: plan.SearchPlan, record: Mapping[str, Any]) -> int:
    """Say whether every round of every trial has the same numbers; 0 if so, else 1.  record: of the run before."""
    files = RunFiles(p.folder)
    now = pd.read_parquet(files.rounds_file)
    names = pd.read_parquet(files.trials_file)["trial"]
    columns = [c for c in now if c in before and c not in CLOCK]
    tests = [c for c in columns if c.startswith(TEST)]  # the search may have tested in some rounds only
    far: dict[str, pd.Series] = {}
    if len(names) < len(p.replayed):
        say(f"repeated: only {len(names)} of {several(len(p.replayed), 'trial')}, because it was interrupted")
        return 1
    for old, new in zip(p.replayed, names, strict=True):
        one, other = (f[f["trial"] == t][columns].reset_index(drop=True) for f, t in ((before, old.trial), (now, new)))
        other[tests] = other[tests].where(one[tests].notna()) if len(one) == len(other) else other[tests]
        if not one.equals(other):
            far[old.trial] = _distance(one, other)
    if far:
        say(f"repeated: {len(far)} of {several(len(p.replayed), 'trial')} have different numbers: {', '.join(far)}")
        say(f"repeated: {_how_far(list(far.values()))}{_unlike(record, StudyFolder(p.folder).record)}")
        return 1
    say(f"repeated: all {several(len(p.replayed), 'trial')}, {several(len(now), 'round')}, are the same bit for bit")
    return 0


def _distance(one: pd.DataFrame, other: pd.DataFrame) -> pd.Series:
    """The largest relative difference in each column, inf where one lacks a value; empty if one has fewer rounds."""
    if len(one) != len(other):
        return pd.Series(dtype=float)
    one, other = one.select_dtypes("number"), other.select_dtypes("number")
    relative = (one - other).abs() / np.fmax(one.abs(), other.abs())
    return relative.mask(one == other, 0.0).mask(one.isna() & other.isna(), 0.0).fillna(np.inf).max()


def _how_far(distances: Sequence[pd.Series]) -> str:
    largest = pd.concat([d[d < np.inf] for d in distances]).sort_values()
    odd = sum(d.empty or bool((d == np.inf).any()) for d in distances)
    text = [f"the largest relative difference is {largest.iloc[-1]:.2g}, in {largest.index[-1]}"] * bool(largest.any())
    text += [f"{several(odd, 'trial')} with rounds or values that only one of the two runs has"] * bool(odd)
    return "; ".join(text) or "values that are not numbers differ"


def _unlike(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    before, after = provenance.trained_by(then), provenance.trained_by(now)
    others = [n for n in before if n in after and before[n] != after[n]]
    was, is_ = (", ".join(f"{n} {of[n]}" for n in others) for of in (before, after))
    return f"; trained by {was}, now by {is_}" if others else ""


def _continues(run: RunFiles, trial: str) -> bool:
    columns = frames.trials_table(run) if run.trials_file.exists() else pd.DataFrame()
    return "continues" in columns and bool(columns.loc[columns["trial"] == trial, "continues"].notna().any())
