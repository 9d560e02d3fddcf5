"""The logs of a search: every trial's results, logged by Ray, and every suggestion, logged by the searcher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedtune.runs import reading
from fedtune.runs.files import RunFiles


def logged(run: Path) -> dict[str, list[dict[str, Any]]]:
    """The results of every trial, from Tune's logs; a line that was truncated when its writer died is skipped."""
    results: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(run.glob("*/result.json")):
        for row in reading.rows(file):
            results.setdefault(row["trial_id"], []).append(row)
    return results


def suggestions(run: Path) -> list[dict[str, Any]]:
    """The suggestions of a run in order: trial and config.  One repeated after a resume counts once."""
    by_trial = {
        row["trial"]: {"trial": row["trial"], "config": row["config"]}
        for row in reading.suggestions(RunFiles(run).suggestions_file)
    }
    return list(by_trial.values())


def metric_history(
    logged: dict[str, list[dict[str, Any]]], attribute: str, metric: str
) -> list[tuple[str, float, float]]:
    """Trial, used budget and metric (entries of a result) of every logged round, in order of time.

    The order matters, because of equal values at a rung the earlier one ranks higher.
    """
    needed = {metric, attribute, "timestamp"}
    rows = [r for results in logged.values() for r in results if needed <= r.keys() and not r.get("diverged")]
    rows.sort(key=lambda r: r["timestamp"])
    return [(r["trial_id"], r[attribute], r[metric]) for r in rows]
