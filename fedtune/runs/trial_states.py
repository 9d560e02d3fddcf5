"""The states of a search's trials: how they ended, or that they run, wait, are paused, or are left open."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtune.runs.files import OVER

TROUBLE = "trouble"  # an entry of a trial's result: a problem that did not end the trial
BROKEN = "broken"  # an entry for a trial with a permanent error, which tables call failed
FAILED = "failed: "  # begins the reason of a run on a fresh seed that did not diverge, but failed
UNHEARD = (
    "every upload of every round was lost or late, so nothing was learned; give more --deadline or less --lost-share"
)
UNTRAINED = "not trained"  # the state of a trial that was known to break a constraint; begins its reason, too
TRACEBACK = "stack"  # the entry with that error's traceback
SNAPSHOTS = "experiment_state-*.json"  # Ray's files with a search's trials and its controller, one per driver
ENDED = ("finished", "stopped", "diverged", "failed", UNTRAINED)  # states of trials that have ended
ALIVE = {"RUNNING": "running", "PENDING": "waiting", "PAUSED": "paused"}  # Ray's names for those that have not
OPEN = "open"  # the state of those in a search that broke off
STATUSES = [*ENDED, *ALIVE.values(), OPEN, "not started"]  # in the order in which they are counted


def status(result: dict[str, Any]) -> str:
    """How a trial ended without an error in Ray: as ENDED has it; stopped is by scheduler or clock."""
    if result.get(BROKEN):
        return "failed"
    if result.get("diverged"):
        return UNTRAINED if str(result.get("reason")).startswith(UNTRAINED) else "diverged"
    return "finished" if result.get("complete") else "stopped"


def loss_word(reasons: Iterable[Any]) -> str:
    """How runs on fresh seeds ended that have no figures, in a word.  reasons: of all runs; "" of those that have."""
    given = [reason for reason in reasons if isinstance(reason, str) and reason]
    kinds = {"failed" if reason.startswith(FAILED) else "diverged" for reason in given}
    return " or ".join(sorted(kinds)) or "diverged"


def lost(runs: Any, metric: str) -> str:
    """How many runs on fresh seeds, of a frame, have no figure: `diverged in 2 of 3`; "" if all have one."""
    count = int(runs[metric].isna().sum())
    return f"{loss_word(runs.get('reason', ()))} in {count} of {len(runs)}" if count else ""


def reason(error: str) -> str:
    """The last line of a traceback, which says what happened; without the name of a class of ours."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return re.sub(r"^fedtune\.[\w.]+: ", "", lines[-1]) if lines else "no reason given"


def trained(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of rounds that were trained, without the last row of a trial that diverged or had a permanent error.

    That row reports chance level or the worst value to searchers and schedulers, not a measurement.
    """
    return [row for row in rows if not row.get("diverged")]


def unheard(rows: Sequence[Mapping[str, Any]], asked: int) -> bool:
    """Whether no upload counted in any round, as all were lost or late.  asked: at least so many clients a round."""
    gone = [row.get("lost", 0) + row.get("late", 0) for row in rows]
    trained = (row.get("train_loss") for row in rows)  # some algorithms never train, and some rounds ask nobody
    return any(gone) and min(gone) >= asked and all(loss is None or math.isnan(loss) for loss in trained)


def trial_statuses(run: Path, logged: dict[str, list[dict[str, Any]]], study: str = "running") -> dict[str, str]:
    """How each trial ended, or that it runs or waits: from Ray's last snapshot and the results logged since.

    study: the search's state.  What had not ended when its driver stopped is stopped if the search is over, else open.
    """
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
    words = {"ERROR": "failed", "TERMINATED": "not started"}  # not started: without any row
    if study != "running":
        words |= dict.fromkeys(ALIVE.values(), "stopped" if study in OVER else OPEN)
    return {name: words.get(state, state) for name, state in states.items()}


def counts_in_words(counts: Mapping[str, int]) -> str:
    """How many trials have each state, in words."""
    return ", ".join(f"{counts[how]} {how}" for how in STATUSES if counts.get(how))


def snapshot(run: Path) -> list[dict[str, Any]]:
    """The trials in Ray's last snapshot; none if there is none."""
    files = sorted(run.glob(SNAPSHOTS))
    return trials_in(files[-1]) if files else []


def trials_in(snapshot: Path) -> list[dict[str, Any]]:
    """The trials in one of Ray's snapshots; raises an error if it is damaged."""
    return [json.loads(text) for text, _ in json.loads(snapshot.read_bytes())["trial_data"]]
