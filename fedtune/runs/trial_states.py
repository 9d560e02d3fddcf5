"""How the trials of a run stand: finished, stopped, diverged or failed, or still running, waiting or paused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedtune.core import bounded

STATUSES = ("finished", "stopped", "diverged", "failed")  # of trials that have ended
TROUBLE = "trouble"  # an entry of a trial's result: what went wrong in it without ending it
BROKEN = "broken"  # one that says: it met what cannot heal
STACK = "stack"  # and where, at length
SNAPSHOTS = "experiment_state-*.json"  # Ray's: a search's trials and its controller, one file of each driver
ALIVE = {"RUNNING": "running", "PENDING": "waiting", "PAUSED": "paused"}  # Ray's names for the others


def status(result: dict[str, Any]) -> str:
    """How a trial that Ray saw no error of ended: finished, failed, diverged, or stopped by scheduler or clock."""
    if result.get(BROKEN):
        return "failed"
    if result.get("diverged"):
        return "diverged"
    return "finished" if result.get("complete") else "stopped"


def trained(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the rounds that a trial trained: one that diverged, or met what cannot heal, ends with another row.

    That one holds what searchers and schedulers are told, chance or the worst there is, in the place of a figure.
    """
    return [row for row in rows if not row.get("diverged")]


def ended(run: Path, logged: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    """How each trial ended, or that it runs or waits: by Ray's last snapshot, and by what was logged since."""
    states: dict[str, str] = {}
    try:
        for trial in snapshot(run):
            states[str(trial["trial_id"])] = ALIVE.get(str(trial["status"]), str(trial["status"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass  # it is being written, or damaged
    for name, rows in logged.items():
        state = states.get(name, "running")
        over = rows[-1].get("diverged") or rows[-1].get("complete") or state == "TERMINATED"
        states[name] = status(rows[-1]) if over else state
    words = {"ERROR": "failed", "TERMINATED": "not started"}  # the latter without a row
    return {name: words.get(state, state) for name, state in states.items()}


def snapshot(run: Path) -> list[dict[str, Any]]:
    """The trials of Ray's last snapshot; none if it has made none."""
    files = sorted(run.glob(SNAPSHOTS))
    return trials_in(files[-1]) if files else []


def trials_in(snapshot: Path) -> list[dict[str, Any]]:
    """The trials of a snapshot of Ray's; an error if it is damaged."""
    return [json.loads(text) for text, _ in json.loads(bounded.read(snapshot))["trial_data"]]
