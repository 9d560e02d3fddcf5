"""What a search leaves in its folder: trials.parquet, rounds.parquet, best.yaml, run.json."""

from __future__ import annotations

import dataclasses
import datetime
import errno
import json
import math
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import pandas as pd
import torch
import yaml
from ray.tune import ResultGrid
from ray.tune.result import AUTO_RESULT_KEYS, DEFAULT_RESULT_KEYS

import fedtune
from fedtune.core.budget import Budget
from fedtune.core.errors import UserError
from fedtune.core.metrics import METRIC, METRICS
from fedtune.federated.experiment import Experiment
from fedtune.federated.scenario import Scenario
from fedtune.federated.scenarios import find as find_scenario
from fedtune.runs.disk import TROUBLE
from fedtune.runs.trial_states import status
from fedtune.tuning import space

# what Tune adds to every result; its training_iteration is our round
_TUNES = {*AUTO_RESULT_KEYS, *DEFAULT_RESULT_KEYS, "checkpoint_dir_name", "should_checkpoint"}
_TUNES |= {"trial_id", "done", "complete", "diverged", "reason", TROUBLE, "experiment_tag"}
SUGGESTIONS = "suggestions.jsonl"  # every configuration in the order in which it was suggested
CONFIG = "config/"  # prefix of the columns that hold hyperparameters


def rounds_frame(reported: dict[str, list[dict[str, Any]]]) -> pd.DataFrame:
    """A row per trial and round: trial, round, and every metric.  Empty if nothing was reported.

    reported: what each trial reported, as the driver saw it.  (Tune's own log of a trial is written anew from a stale
    copy whenever population based training restores it.)  A round played again counts as it was played last.
    """
    frames = []
    for trial, results in reported.items():
        rows = [r for r in results if "round" in r]
        if not rows:
            continue
        frame = pd.DataFrame([{k: v for k, v in r.items() if k not in _TUNES} for r in rows])
        frames.append(frame.drop_duplicates("round", keep="last").sort_values("round").assign(trial=trial))
    if not frames:
        return pd.DataFrame(columns=["trial", "round", *METRICS])
    whole = pd.concat(frames, ignore_index=True)
    first = ["trial", "round", *(m for m in METRICS if m in whole)]
    return whole[first + [c for c in whole if c not in first]]


def logged(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What Tune wrote down of every trial's results; a line that was cut off when its writer died is left out."""
    found: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(folder.glob("*/result.json")):
        for line in file.read_text(errors="replace").splitlines():
            try:
                row = json.loads(line)
                found.setdefault(row["trial_id"], []).append(row)
            except (json.JSONDecodeError, KeyError, TypeError):
                continue
    return found


def suggestions(folder: Path) -> list[dict[str, Any]]:
    """What a run suggested, in its order: trial and config.  What was suggested twice, after a resume, counts once."""
    file, found = folder / SUGGESTIONS, {}
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            row = json.loads(line)
            found[row["trial"]] = {"trial": row["trial"], "config": row["config"]}
        except (json.JSONDecodeError, KeyError, TypeError):
            continue  # cut off when its writer died
    return list(found.values())


def seen(logged: dict[str, list[dict[str, Any]]], attribute: str) -> list[tuple[str, float, float]]:
    """Trial, used budget (a result's attribute) and metric of every round that was logged, in the order of time.

    Of equal values at a rung the earlier one is the better, so that order counts.
    """
    rows = [r for results in logged.values() for r in results if METRIC in r and not r.get("diverged")]
    rows.sort(key=lambda r: r["timestamp"])
    return [(r["trial_id"], r[attribute], r[METRIC]) for r in rows]


def frames(
    grid: ResultGrid, reported: dict[str, list[dict[str, Any]]], earlier: Path | None, onward: list[str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables of rounds and trials.  Those of an earlier run that this one goes on from stand above.

    onward: the earlier trials that ours play on, in our trials' order.  Such a trial stands there once, under our name,
    with its earlier rounds; `continues` names the earlier one.  What had finished and was not played on counts as
    stopped, since it is shorter than a trial is now.
    """
    rounds = rounds_frame(reported)
    if not earlier:
        return rounds, trials_frame(grid, rounds)
    before, old = (pd.read_parquet(earlier / f"{name}.parquet") for name in ("rounds", "trials"))
    ours = dict(zip(onward, map(trial_id, _each(grid)), strict=False))
    before["trial"] = before["trial"].replace(ours)
    rounds = pd.concat([before, rounds], ignore_index=True).drop_duplicates(["trial", "round"], keep="last")
    rounds = rounds.sort_values(["trial", "round"], ignore_index=True)
    trials = trials_frame(grid, rounds)
    if onward:
        trials["continues"] = trials["trial"].map({new: name for name, new in ours.items()})
        old = old[~old["trial"].isin(ours)]
        short = old["status"] == "finished"
        old.loc[short, "reason"] = "had finished a shorter run"
        old.loc[short, "status"] = "stopped"
    return rounds, pd.concat([old, trials], ignore_index=True)


def trials_frame(grid: ResultGrid, rounds: pd.DataFrame) -> pd.DataFrame:
    """A row per trial: status, configuration, best and last metrics, rounds, seconds, communication, reason.

    The best of a trial is its round of highest validation accuracy; its test accuracy there is only reported.
    """
    by_trial = dict(iter(rounds.groupby("trial")))
    rows = []
    for result in _each(grid):
        name, last = trial_id(result), result.metrics or {}
        row: dict[str, Any] = {"trial": name, "status": _status(result)}
        row |= {CONFIG + k: v for k, v in (result.config or {}).items()}
        row |= summed(by_trial.get(name))
        row["reason"] = str(last.get("reason") or result.error or "")
        rows.append(row)
    return pd.DataFrame(rows)


def summed(played: pd.DataFrame | None) -> dict[str, Any]:
    """What a trial's rounds, in their order, come to: rounds, last and best metrics, seconds, communication."""
    if played is None or played.empty:
        return {"rounds": 0}
    end, best = played.iloc[-1], played.loc[played[METRIC].idxmax()]
    row: dict[str, Any] = {"rounds": int(played["round"].max())}
    row |= {f"last_{m}": end[m] for m in ("val_acc", "val_loss", "test_acc", "test_acc_std", "train_loss")}
    row |= {f"best_{m}": best[m] for m in ("round", "val_acc", "test_acc")}
    return row | {"seconds": played["seconds"].sum() + played["eval_seconds"].sum(), "comm_mb": end["comm_mb"]}


def best_trial(trials: pd.DataFrame, unit: str = "rounds") -> pd.Series | None:
    """The trial to trust, the first of `best_trials`; None if there is none."""
    ranked = best_trials(trials, unit)
    return None if ranked.empty else ranked.iloc[0]


def best_trials(trials: pd.DataFrame, unit: str = "rounds") -> pd.DataFrame:
    """Those of the finished, or else of those that went furthest, by their last validation accuracy, highest first.

    A trial that was stopped early is never chosen over one that was not: its figure is of another training length.
    Ties go to the lower validation loss.  Empty if no trial reported anything finite.  unit: of their budget.
    """
    fine = trials[~trials["status"].isin(["diverged", "failed"]) & (trials["rounds"] > 0)]
    longest = fine[fine["status"] == "finished"]
    if longest.empty and len(fine):
        used = fine[{"mb": "comm_mb"}.get(unit, unit)]
        longest = fine[used == used.max()]
    if longest.empty:
        return longest  # perhaps without the columns that are sorted by
    return longest.sort_values(["last_val_acc", "last_val_loss"], ascending=[False, True])


def plain(config: dict[str, Any]) -> dict[str, Any]:
    """Values as Python's own types, without the columns that this trial did not have: no number, or no bool."""
    found = {k: v.item() if hasattr(v, "item") else v for k, v in config.items()}
    return {k: v for k, v in found.items() if v is not None and not (isinstance(v, float) and math.isnan(v))}


def trial_id(result: Any) -> str:
    """The trial's id, from the name of its folder if it never reported."""
    return str((result.metrics or {}).get("trial_id") or Path(result.path).name.split("-")[-1])


def write_best(
    run: Path, experiment: Experiment, scenario: str, best: pd.Series, budget: Budget, **found: Any
) -> dict[str, Any]:
    """Write best.yaml: what `fedtune run --config` needs to play the configuration again, and how it was found.

    Where a trial's length was not told in rounds, it will be as many as the best one had.  found: more of how it was
    found.  Returns the values of what was searched.
    """
    named, actual = find_scenario(scenario), experiment.scenario
    overrides = {
        f.name: getattr(actual, f.name)
        for f in dataclasses.fields(Scenario)
        if getattr(actual, f.name) != getattr(named, f.name)
    }
    if budget.unit != "rounds":
        overrides["rounds"] = int(best["rounds"])
    chosen = {k.removeprefix(CONFIG): best[k] for k in best.index if k.startswith(CONFIG)}
    whole = experiment.configuration(plain(chosen))
    found = {
        "trial": best["trial"], "rounds": int(best["rounds"]), "val_acc": float(best["last_val_acc"]),
        "test_acc": float(best["last_test_acc"]), "run": run.name,
    } | found  # fmt: skip
    content = {
        "algorithm": experiment.algorithm, "scenario": scenario, "overrides": overrides, "seed": experiment.seed,
        "hyperparameters": whole, "found": found,
    }  # fmt: skip
    write(run / "best.yaml", content)
    return {n: v for n, v in whole.items() if n in plain(chosen)}


class Record:
    """A run's run.json as it grows."""

    def __init__(self, run: Path, content: dict[str, Any], name: str = "run.json") -> None:
        """content: what it holds from the start."""
        self.run, self.content, self.name = run, content, name

    def add(self, **more: Any) -> None:
        """Remember more for the next time that it is written."""
        self.content |= more

    def write(self, state: str, **more: Any) -> None:
        """Write it: what is remembered, the state, and what holds only now."""
        self.run.mkdir(parents=True, exist_ok=True)  # it may have vanished meanwhile
        write(self.run / self.name, self.content | {"state": state} | more)


def kept(record: dict[str, Any]) -> dict[str, Any]:
    """What stays of a record when its run is gone on with: how it began; and when it was gone on with."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    began = {n: record[n] for n in ("options", "command", "started") if n in record}
    commits = dict.fromkeys([*record.get("earlier_commits", []), record.get("git_commit")])
    return began | {"resumed": [*record.get("resumed", []), now], "earlier_commits": list(commits)}


def make_folder(run: Path) -> None:
    """Make a run's folder, or take that of a driver which died before it began; UserError if another's is there."""
    run.mkdir(parents=True, exist_ok=True)
    if not {f.name for f in run.iterdir()} <= {"driver.lock", space.KEPT}:
        raise UserError(f"a run needs a new folder, but {run} was just made by another; give another --name")


def provenance(command: list[str], experiment: Experiment, extra: dict[str, Any]) -> dict[str, Any]:
    """Where a search's numbers come from: command, versions, commit, setting, seeds, hardware."""
    return origin(command) | {
        "algorithm": experiment.algorithm,
        "scenario": dataclasses.asdict(experiment.resolve({})[1]),
        "pinned": experiment.pinned,
        "preset": experiment.preset,
        "scored": experiment.describe_scoring(),
        "seed": experiment.seed,
        "executor": experiment.executor,
        "device": experiment.device,
    } | extra


def origin(command: list[str]) -> dict[str, Any]:
    """What was run when, by which code, on what."""
    packages = ("ray", "optuna", "torch", "torchvision", "numpy", "scikit-learn", "pandas")
    versions = {p: version(p) for p in packages}
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "command": command,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {"fedtune": fedtune.__version__, "python": platform.python_version()} | versions,
        "git_commit": commit(),
        "hardware": {"machine": platform.machine(), "cpus": os.cpu_count(), "gpus": gpus, "system": platform.system()},
    }


def told(record: Mapping[str, Any], commits: Iterable[str | None]) -> str:
    """Command, version and commits in a line.  commits: of what was played, which may be of another day."""
    found = " and ".join(dict.fromkeys(c or "not known" for c in commits))
    return f"`{shlex.join(record['command'])}`, fedtune {record['versions']['fedtune']}, commit {found}"


@contextmanager
def sole_driver(run: Path) -> Iterator[None]:
    """Holds the run's folder for one driver; the lock goes with its process.  UserError if another one has it."""
    with (run / "driver.lock").open("a") as file:
        if not _lock(file):
            raise UserError(f"a run has one driver, but another is at work in {run}; wait until it ends, or stop it")
        yield


def driven(run: Path) -> bool:
    """Whether a driver is at work on this machine, or on another that shares the folder and its locks."""
    try:
        with (run / "driver.lock").open("r+") as file:
            return not _lock(file)
    except OSError:
        return False


def _lock(file: IO[str]) -> bool:
    try:
        import fcntl
    except ImportError:  # not on Windows
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)  # others: a file system without locks
    return True


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a .yaml or .json file whole or not at all."""
    text = (
        yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        if path.suffix == ".yaml"
        else json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    )
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(text)
    part.replace(path)


def _each(grid: ResultGrid) -> list[Any]:
    return [grid[i] for i in range(len(grid))]


def _status(result: Any) -> str:
    if result.error is not None:
        return "failed"
    return status(result.metrics) if result.metrics else "not started"


def commit() -> str | None:
    """The commit of the code that runs, if it is a checkout; "+" marks uncommitted changes."""
    here = Path(__file__).resolve().parents[2]
    if not (here / ".git").exists():
        return None
    try:
        git = ["git", "-C", str(here)]
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=10)
        dirty = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + ("+" if dirty.strip() else "")


def command_line() -> list[str]:
    """The command as it was typed, without this machine's paths."""
    program = Path(sys.argv[0])
    start = ["python", "-m", f"fedtune.{program.stem}"] if program.suffix == ".py" else [program.name]
    return start + sys.argv[1:]
