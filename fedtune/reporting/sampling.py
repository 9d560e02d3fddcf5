"""A report on thousands of trials shows a sample of them, and says so, to bound its size and time."""

from __future__ import annotations

import dataclasses
from typing import Any

import pandas as pd

from fedtune.analysis import importances
from fedtune.reporting.findings import Findings

DRAWN = 400  # trials in figures: half of them the best, the others drawn at random
LISTED = 1_000  # trials in the table, the best ones


def drawn(f: Findings) -> Findings:
    """The findings with the trials that figures show."""
    if len(f.trials) <= DRAWN:
        return f
    best = listed(f, DRAWN // 2)
    rest = f.trials.drop(best.index).sample(DRAWN - len(best), random_state=0)
    sample = f.trials.loc[sorted([*best.index, *rest.index])]
    return dataclasses.replace(f, trials=sample, rounds=f.rounds[f.rounds["trial"].isin(set(sample["trial"]))])


def listed(f: Findings, count: int = 0) -> pd.DataFrame:
    """The best trials, the first one first; as many as the table shows, or `count`."""
    first = f.goal.first
    return f.trials.sort_values(first.column, ascending=first.sign < 0, kind="stable").head(count or LISTED)


def note(f: Findings) -> str:
    """A note on the sample; "" if all trials are shown."""
    if len(f.trials) <= DRAWN:
        return ""
    table = f"; the table has the best {LISTED:,}" if len(f.trials) > LISTED else ""
    return (
        f"this shows {DRAWN} of {len(f.trials):,} trials, the best {DRAWN // 2} and others drawn at random{table}; "
        "frames.load returns all of them"
    )


def of_study(study: Any, f: Findings) -> Any:
    """A study of the trials that figures show."""
    if study is None or len(study.trials) <= DRAWN:
        return study
    names = set(drawn(f).trials["trial"])
    some = [t for t in study.get_trials(deepcopy=False) if t.user_attrs.get("trial") in names]
    return importances.study_of(some, study.directions, study.metric_names)
