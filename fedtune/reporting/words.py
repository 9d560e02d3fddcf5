"""Words for what a record holds: how a search searched, and where in its range a value lies."""

from __future__ import annotations

import math
import re
from typing import Any

from fedtune.core.objectives import BY_ACCURACY, Goal
from fedtune.core.terminal import short
from fedtune.tuning.messages import said

EDGE = 0.05  # of a range, on its scale: whatever lies nearer to an end counts as at it


def search_settings(record: dict[str, Any]) -> str:
    """Trial length, searcher, scheduler and rungs, in words."""
    budget = record.get("budget") or {}
    unit = {"mb": "MB", "seconds": "s"}.get(str(budget.get("unit")))
    most = f"up to {record['scenario']['rounds']} rounds" + (f" or {short(budget['limit'])} {unit}" if unit else "")
    rungs = ", ".join(short(x) for x in record.get("rungs") or [])
    scheduler = str(record.get("scheduler", "")) + (f" with rungs at {rungs}" if rungs else "")
    parts = [most, str(record.get("searcher", "")), scheduler]
    if (goal := Goal.from_record(record)) != BY_ACCURACY:
        parts.append("for " + said(goal))
    return ", ".join(p for p in parts if p)


def edge(value: Any, text: str) -> str:
    """Whether a value lies at the `lower` or `upper` end of a range, written as in run.json; "" if at none."""
    written = re.match(r"(\S+) … (\S+)( \(log\))?", str(text))
    if not written or isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    try:
        low, high, at = float(written[1]), float(written[2]), float(value)
        if written[3]:
            low, high, at = math.log(low), math.log(high), math.log(at) if at > 0 else -math.inf
    except ValueError:
        return ""
    if not low < high:
        return ""
    share = (at - low) / (high - low)
    return "lower" if share <= EDGE else "upper" if share >= 1 - EDGE else ""
