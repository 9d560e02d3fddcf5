"""Many runs that are no search, as Ray tasks: each is played once, and left in a file where there is a folder."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ray
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedtune.core.budget import Budget
from fedtune.core.errors import Diverged
from fedtune.core.memory import keep_freed_memory
from fedtune.core.terminal import say
from fedtune.data import federation
from fedtune.data.datasets import Dataset
from fedtune.federated import partitioning
from fedtune.federated.experiment import Experiment
from fedtune.federated.scenario import Scenario
from fedtune.federated.simulation import play
from fedtune.runs import tables
from fedtune.tuning.space import Config


class Run(NamedTuple):
    """One configuration on one seed.  label: unique among those played together, and part of its file's name."""

    label: str
    experiment: Experiment
    config: Config = {}  # noqa: RUF012 - never changed


class Outcome(NamedTuple):
    """What came of a run."""

    rounds: list[dict[str, Any]]  # a row of metrics each
    reason: str  # why it diverged; empty if it did not
    commit: str | None = None  # of the code that played it, where it has been read from its file


def run_all(
    runs: Sequence[Run], data: Mapping[str, Dataset], folder: Path | None = None, cpus: float = 1, gpus: float = 0,
    budget: Budget | None = None, title: str = "runs", concurrent: int | None = None,
) -> dict[str, Outcome]:  # fmt: skip
    """What came of each run, by label; as many at once as Ray has room for, or fewer.

    data: by name, for every run's scenario.  folder: what lies there is not played again, so whatever was interrupted
    goes on; a file is of one label, experiment, configuration and budget.  budget: of each run, which may end before
    its scenario's rounds.
    """
    done: dict[str, Outcome] = {}
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        done = found(runs, folder, budget)
    left = _grouped(r for r in runs if r.label not in done)
    commit = tables.commit()
    for run, outcome in _shown(_played(left, data, cpus, gpus, budget, concurrent), title, len(done), len(runs)):
        done[run.label] = outcome._replace(commit=commit)
        if folder:
            tables.write(_file(folder, run, budget), done[run.label]._asdict())
    return {r.label: done[r.label] for r in runs}


def found(runs: Sequence[Run], folder: Path, budget: Budget | None = None) -> dict[str, Outcome]:
    """What came of those that have been played, by label."""
    files = {run.label: _file(folder, run, budget) for run in runs}
    return {label: Outcome(**json.loads(f.read_text())) for label, f in files.items() if f.exists()}


def replay(experiment: Experiment, config: Config, data: federation.Federation, cpus: float, budget: Budget) -> Outcome:
    """Play one configuration to its end, or until its budget is used up (in a Ray task)."""
    keep_freed_memory()
    torch.set_num_threads(max(1, int(cpus)))
    rows: list[dict[str, Any]] = []
    try:
        seconds = 0.0
        if budget.unit == "seconds":
            next(play(experiment, config, data))  # for nothing: a process's first round takes seconds more
        for row in play(experiment, config, data):
            rows.append(row)
            seconds += row["seconds"] + row["eval_seconds"]
            if budget.reached(row, seconds):
                break
    except Diverged as error:
        return Outcome(rows, str(error))
    return Outcome(rows, "")


def _grouped(runs: Iterable[Run]) -> list[Run]:
    """Those on one federation together, so that each is dealt once."""
    groups: dict[tuple[Scenario, int], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.experiment.scenario, run.experiment.seed), []).append(run)
    return [run for group in groups.values() for run in group]


def _played(
    runs: Sequence[Run], data: Mapping[str, Dataset], cpus: float, gpus: float, budget: Budget | None,
    concurrent: int | None,
) -> Iterator[tuple[Run, Outcome]]:  # fmt: skip
    """Runs as they end.  Only as many are handed to Ray as keep it busy, so that few federations exist at once.

    runs: those on one federation stand together.
    """
    task = ray.remote(num_cpus=cpus, num_gpus=gpus)(replay)
    room = concurrent or 2 * _fit(cpus, gpus)
    waiting: dict[Any, Run] = {}
    latest: Any = None
    dealt: Any = None
    for run in runs:
        e = run.experiment
        if latest != (e.scenario, e.seed):
            latest = e.scenario, e.seed
            dealt = ray.put(partitioning.partition(data[e.scenario.dataset], *latest))
        waiting[task.remote(e, run.config, dealt, cpus, budget or Budget())] = run
        if len(waiting) >= room:
            yield _next(waiting)
    while waiting:
        yield _next(waiting)


def _next(waiting: dict[Any, Run]) -> tuple[Run, Outcome]:
    (done, *_), _ = ray.wait(list(waiting))
    return waiting.pop(done), ray.get(done)


def _fit(cpus: float, gpus: float) -> int:
    have = ray.cluster_resources()
    fits = have["CPU"] / cpus
    return max(1, int(min(fits, have.get("GPU", 0) / gpus) if gpus else fits))


def _shown(
    played: Iterable[tuple[Run, Outcome]], title: str, done: int, total: int
) -> Iterator[tuple[Run, Outcome]]:
    """The same, shown as it goes: a bar in a terminal, lines elsewhere."""
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    terminal = sys.stderr.isatty()
    latest, console = TextColumn("{task.description}"), Console(stderr=True)
    with Progress(*columns, latest, console=console, disable=not terminal) as bar:
        task = bar.add_task("", total=total, completed=done)
        for run, outcome in played:
            yield run, outcome
            done += 1
            bar.update(task, advance=1, description=run.label)
            if not terminal:
                say(f"note: {title}: {done} of {total} done ({run.label})")


def _file(folder: Path, run: Run, budget: Budget | None) -> Path:
    """Named after all that the outcome hangs on, so that another setting under the same label is played, not read."""
    what = [dataclasses.asdict(run.experiment), run.config, budget]
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:10]
    return folder / f"{run.label.replace(' ', '-').replace('/', '_')}-{digest}.json"
