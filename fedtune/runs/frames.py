"""Study folders as data frames: a row per trial, or a row per round, of finished, running or interrupted runs.

    from fedtune.runs import frames
    trials, rounds = frames.load("runs/gfpl-digits-w4-20261121-050812")
    trials, rounds = frames.load("runs/a", "runs/b")     # the column `run` tells them apart
    clients = frames.clients("runs/a")                   # each client's results in the fresh-seed runs

Columns of `trials` (TRIALS) and `rounds` (ROUNDS) always exist, with these dtypes.  `config/NAME` holds a searched
hyperparameter, and `rounds` also has the metrics that an algorithm reports itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from fedtune.core.errors import UserError
from fedtune.core.metrics import METRICS
from fedtune.core.objectives import Goal
from fedtune.core.terminal import say
from fedtune.runs import logs, reading, tables
from fedtune.runs.files import RunFiles
from fedtune.runs.reading import rounds_of
from fedtune.runs.tables import load_clients as clients
from fedtune.runs.trial_states import STATUSES, trial_statuses

CONFIG = tables.CONFIG
__all__ = ["CONFIG", "ROUNDS", "STATUSES", "TRIALS", "clients", "hyperparameters", "load", "record"]

TRIALS: dict[str, str] = {  # column -> dtype
    "run": "str",  # the folder's name
    "algorithm": "str",
    "scenario": "str",  # its data set; overridden fields are in run.json
    "trial": "str",
    "status": "category",  # one of STATUSES
    "rounds": "int64",  # trained
    "best_round": "float64",  # the round of the best objective; NaN if none was trained
    **{f"best_{name}": "float64" for name, m in METRICS.items() if m.best},  # in that round
    **{f"last_{name}": "float64" for name, m in METRICS.items() if m.last},
    "test_round": "float64",  # the round of the last test figures; NaN if there are none
    tables.CHOICE: "float64",  # the objective's mean over all seeds, of trials that --choose-seeds chose among
    "seconds": "float64",  # of training and evaluation
    "comm_mb": "float64",  # sent and received by all clients
    "reason": "str",  # why it failed or diverged
}
ROUNDS: dict[str, str] = {"run": "str", "trial": "str", "round": "int64"} | dict.fromkeys(METRICS, "float64")


def load(*runs: str | Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Trials and rounds of these study folders; UserError if one is not a study folder.

    >>> from fedtune.analysis import frames
    >>> trials, rounds = frames.load("runs/NAME")
    >>> len(trials), len(rounds)
    (24, 603)
    """
    if not runs:
        raise UserError("there must be at least one study folder, but none was given")
    both = [_one(Path(run)) for run in runs]
    trials, rounds = (pd.concat([pair[i] for pair in both], ignore_index=True) for i in (0, 1))
    return _shaped(trials, TRIALS), _shaped(rounds, ROUNDS)


def record(run: str | Path) -> dict[str, Any]:
    """A search's record; UserError if it is missing or damaged.

    >>> from fedtune.analysis import frames
    >>> frames.record("runs/NAME")["algorithm"]
    'gfpl'
    """
    files = RunFiles(run)
    if files.is_comparison:
        one = f"{run}/ALGORITHM"
        raise UserError(f"RUN must be a search's folder, but {run} is a comparison's; give one inside it, {one}")
    content = files.record_with("algorithm")
    try:
        rounds_of(content)
    except (KeyError, TypeError, ValueError) as error:
        raise files.damaged("it does not say how many rounds a trial has") from error
    return content


def hyperparameters(trials: pd.DataFrame) -> list[str]:
    """The hyperparameters that vary among the trials.

    >>> from fedtune.analysis import frames
    >>> trials, _ = frames.load("runs/NAME")
    >>> frames.hyperparameters(trials)[:3]
    ['lam', 'components', 'threshold']
    """
    names = [c for c in trials if c.startswith(CONFIG) and trials[c].dropna().nunique() > 1]
    return [c.removeprefix(CONFIG) for c in names]


def _one(run: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    about, files = record(run), RunFiles(run)
    state = files.state_in(about)
    stale = about.get("state") in ("running", "failed")  # earlier versions left tables from before a resume
    over = files.trials_file.exists() and files.rounds_file.exists() and not stale
    trials, rounds = (over and _tables(files, state)) or _logs(run, state, Goal.from_record(about))
    dataset = about.get("scenario", {}).get("dataset", "")
    return trials.assign(run=files.name, algorithm=about["algorithm"], scenario=dataset), rounds.assign(run=files.name)


def _tables(files: RunFiles, state: str) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """The tables written at a search's end; None if they are damaged and Ray's logs can replace them."""
    try:
        trials, rounds = trials_table(files), rounds_table(files)
    except UserError as error:
        if not any(files.path.glob("*/result.json")):
            raise
        say(f"note: {error}; meanwhile the trials' own logs are used instead")
        return None
    if state == "interrupted":  # earlier versions wrote that its open trials were stopped
        trials = tables.with_open(trials, trial_statuses(files.path, logs.logged(files.path), state))
    return trials, rounds.drop_duplicates(["trial", "round"], keep="last")


def trials_table(files: RunFiles) -> pd.DataFrame:
    """The content of trials.parquet; UserError if it is damaged."""
    return reading.table(files.trials_file, ("trial", "status", "rounds"), _kinds(TRIALS))


def rounds_table(files: RunFiles) -> pd.DataFrame:
    """The content of rounds.parquet; UserError if it is damaged."""
    return reading.table(files.rounds_file, ("trial", "round", "seconds", "eval_seconds"), _kinds(ROUNDS))


def _kinds(columns: dict[str, str]) -> dict[str, str]:
    return {n: reading.NUMBER if t in ("int64", "float64") else reading.TEXT for n, t in columns.items()}


def _logs(run: Path, state: str, goal: Goal) -> tuple[pd.DataFrame, pd.DataFrame]:
    logged = logs.logged(run)
    how, rounds = trial_statuses(run, logged, state), tables.rounds_frame(logged)
    by_trial = dict(iter(rounds.groupby("trial", sort=False)))
    rows = []
    for trial, status in how.items():
        last = logged[trial][-1] if trial in logged else {}
        config, reason = last.get("config", {}), last.get("reason") or ""
        rows.append(tables.trial_row(trial, status, config, by_trial.get(trial), goal, reason))
    return pd.DataFrame(rows, columns=None if rows else ["trial", "status", "rounds"]), rounds


def _shaped(frame: pd.DataFrame, columns: dict[str, str]) -> pd.DataFrame:
    frame = frame.reindex(columns=[*columns, *(c for c in frame if c not in columns)])
    for name, dtype in columns.items():
        if dtype == "category":
            frame[name] = pd.Categorical(frame[name], STATUSES)
        elif dtype == "int64":
            frame[name] = frame[name].fillna(0).astype("int64")
        else:
            frame[name] = frame[name].fillna("").astype("str") if dtype == "str" else frame[name].astype(dtype)
    return frame
