"""Estimate the remaining time of a run: its trials, fresh-seed runs, a comparison's searches, or a reproduction."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtune.runs.choice import usual_runs
from fedtune.runs.files import RunFiles
from fedtune.runs.trial_states import ALIVE

READ = 20  # files of finished fresh-seed runs that are read to estimate a run's duration
Logged = Mapping[str, list[dict[str, Any]]]


def of_search(files: RunFiles, record: Mapping[str, Any], logged: Logged, how: Mapping[str, str]) -> float | None:
    """Remaining seconds of a search with its choice and its final check; None before the first trial has ended."""
    durations = {t: rows[-1].get("time_total_s", 0.0) for t, rows in logged.items() if how[t] not in ALIVE.values()}
    if not durations:
        return None
    searched = files.choice_folder.exists() or files.final_folder.exists()
    trials = 0.0 if searched else _of_trials(record, logged, how, sum(durations.values()) / len(durations))
    fresh = (record.get("options") or {}).get("final_seeds") or 0
    more = 0 if files.final_folder.exists() else usual_runs(record.get("choose_seeds") or 1)
    complete = [seconds for t, seconds in durations.items() if how[t] == "finished"] or [max(durations.values())]
    mean = sum(complete) / len(complete)
    choice = _of_runs(files.choice_folder, more, mean, record)
    return trials + choice + _of_runs(files.final_folder, 2 * fresh, mean, record)


def _of_trials(record: Mapping[str, Any], logged: Logged, how: Mapping[str, str], mean: float) -> float:
    """Remaining seconds of trials, assuming that each takes as long as those that ended."""
    alive = [t for t in how if how[t] in ("running", "waiting")]  # most paused trials never continue
    spent = [logged[t][-1].get("time_total_s", 0.0) if t in logged else 0.0 for t in alive]
    rest = sum(max(mean - s, 0) for s in spent) + mean * max(record["trials"] - len(how), 0)
    return rest / max(record["concurrent"] or 1, 1)


def of_comparison(
    files: RunFiles, record: Mapping[str, Any], begun: Sequence[RunFiles], left: Sequence[float | None]
) -> float | None:
    """Remaining seconds of a comparison's searches and fresh-seed runs; None before the first search is over.

    begun: the searches that have begun.  left: the remaining seconds of each running search.
    """
    over = [r for search in begun if (r := search.record)["state"] != "running" and "seconds" in r]
    known_seconds = [seconds for seconds in left if seconds is not None]
    if not over or len(known_seconds) < len(left) or not all(name in record for name in ("top_k", "seeds", "trials")):
        return None
    mean = sum(float(r["seconds"]) for r in over) / len(over)
    algorithms = len(record["algorithms"]) * record.get("searches", 1)  # times its number of searches
    searches = mean * max(algorithms * (1 + ("widened" in record)) - len(begun), 0)
    at_once = over[-1].get("concurrent") or 1
    trial = mean * at_once / max(record["trials"], 1)  # estimates the duration of a run if none has ended
    borrowed = len(record.get("borrowers", ())) * record.get("searches", 1)
    runs = (algorithms * (1 + record["top_k"]) + borrowed) * record["seeds"]
    return sum(known_seconds) + searches + _of_runs(files.evaluations_folder, runs, trial, over[-1])


def of_reproduction(files: RunFiles, record: Mapping[str, Any]) -> float | None:
    """Remaining seconds of a reproduction's runs; None before one has ended."""
    took = _seconds(files.runs_folder)
    return _of_runs(files.runs_folder, record["runs"], 0.0, record) if took else None


def _of_runs(folder: Path, runs: int, mean: float, record: Mapping[str, Any]) -> float:
    """Remaining seconds of runs that leave one file each in the folder.  mean: a run's duration if no file shows it."""
    ended = len(list(folder.glob("*.json")))
    seconds = _seconds(folder)
    mean = sum(seconds) / len(seconds) if seconds else mean
    return mean * max(runs - ended, 0) / max(record.get("concurrent") or 1, 1)


def _seconds(folder: Path) -> list[float]:
    durations = []
    for file in sorted(folder.glob("*.json"), key=lambda f: f.stat().st_mtime)[-READ:]:
        try:
            rounds = json.loads(file.read_text())["rounds"]
            durations.append(sum(row["seconds"] + row["eval_seconds"] for row in rounds))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # for example an incomplete file
    return durations
