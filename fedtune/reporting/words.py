"""Words for what a record holds: how a search searched."""

from __future__ import annotations

from typing import Any

from fedtune.core.objectives import BY_ACCURACY, Goal
from fedtune.core.terminal import several, short
from fedtune.tuning.messages import said


def search_settings(record: dict[str, Any]) -> str:
    """Trial length, searcher, scheduler and rungs, in words."""
    budget = record.get("budget") or {}
    unit = {"mb": "MB", "seconds": "s"}.get(str(budget.get("unit")))
    most = f"up to {several(record['scenario']['rounds'], 'round')}"
    most += f" or {short(budget['limit'])} {unit}" if unit else ""
    rungs = ", ".join(short(x) for x in record.get("rungs") or [])
    scheduler = str(record.get("scheduler", "")) + (f" with rungs at {rungs}" if rungs else "")
    parts = [most, str(record.get("searcher", "")), scheduler]
    if (goal := Goal.from_record(record)) != BY_ACCURACY:
        parts.append("for " + said(goal))
    return ", ".join(p for p in parts if p)
