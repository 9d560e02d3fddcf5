"""Many runs outside a search, as Ray tasks; where there is a folder, each leaves a file and is run only once."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import ray
import torch

from fedtune.core.budget import Budget
from fedtune.core.errors import Diverged, UserError
from fedtune.core.memory import keep_freed_memory
from fedtune.core.objectives import Objective
from fedtune.core.terminal import say
from fedtune.data import federation
from fedtune.data.datasets import Dataset
from fedtune.federated import partitioning
from fedtune.federated.experiment import Experiment
from fedtune.federated.scenario import Scenario
from fedtune.federated.simulation import Round, Simulation, play
from fedtune.runs import clients, provenance
from fedtune.runs.files import write_json

if TYPE_CHECKING:  # what a worker need not load to train: Ray Tune, pandas and rich take it 1.5 s
    from fedtune.tuning.space_types import Config


class SeededRun(NamedTuple):
    """One configuration on one seed.  label: unique among the runs of one call, and part of the file's name."""

    label: str
    experiment: Experiment
    config: Config = {}  # noqa: RUF012 - never changed


class Outcome(NamedTuple):
    """The result of a run: its rounds, or as many as there were before it diverged."""

    rounds: list[dict[str, Any]]  # a row of metrics each
    reason: str  # why it diverged; empty if it did not
    commit: str | None = None  # of the code that ran it
    clients: list[dict[str, Any]] = []  # noqa: RUF012 - never changed: columns of the last and the best round

    @property
    def seconds(self) -> float:
        """Wall time of its rounds, evaluation included."""
        return sum(r["seconds"] + r["eval_seconds"] for r in self.rounds)


def run_all(
    runs: Sequence[SeededRun], data: Mapping[str, Dataset], folder: Path | None = None, cpus: float = 1,
    gpus: float = 0, budget: Budget | None = None, title: str = "runs", concurrent: int | None = None,
    objective: Objective | None = None,
) -> dict[str, Outcome]:  # fmt: skip
    """The outcome of each run, by label.

    data         data sets by name, for every run's scenario.
    folder       where each outcome is written.  A run whose file is there already is not run again, so an interrupted
                 call continues; a file belongs to one label, experiment, configuration and budget.
    cpus, gpus   of each run.
    budget       of each run, which may end before its scenario's rounds.
    concurrent   runs at once at most; as many as Ray has room for, if not given.
    objective    by which a run's best round is told; without one, outcomes hold nothing of single clients.
    """
    done: dict[str, Outcome] = {}
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        done = finished(runs, folder, budget)
    left = _by_federation(r for r in runs if r.label not in done)
    commit = provenance.commit()
    outcomes = _outcomes(left, data, cpus, gpus, budget, concurrent, objective)
    for run, outcome in _with_progress(outcomes, title, len(done), len(runs)):
        done[run.label] = outcome._replace(commit=commit)
        if folder:
            write_json(outcome_file(folder, run, budget), done[run.label]._asdict())
    return {r.label: done[r.label] for r in runs}


def finished(runs: Sequence[SeededRun], folder: Path, budget: Budget | None = None) -> dict[str, Outcome]:
    """The outcomes that earlier calls left in the folder, by label."""
    files = {run.label: outcome_file(folder, run, budget) for run in runs}
    return {label: Outcome(**json.loads(f.read_text())) for label, f in files.items() if f.exists()}


def train(
    experiment: Experiment, config: Config, data: federation.Federation, cpus: float, budget: Budget,
    objective: Objective | None = None,
) -> Outcome:  # fmt: skip
    """Train one configuration to its last round, or until its budget is used up (in a Ray task)."""
    keep_freed_memory()
    torch.set_num_threads(max(1, int(cpus)))
    rows: list[dict[str, Any]] = []
    try:
        seconds = 0.0
        if budget.unit == "seconds":
            next(play(experiment, config, data))  # unused: a process's first round takes seconds more
        simulation = Simulation(experiment, config, data)
        best: Round | None = None
        for _ in range(simulation.setting.scenario.rounds):
            row = simulation.step()
            rows.append(row)
            seconds += row["seconds"] + row["eval_seconds"]
            if objective and (best is None or _improved(objective, row, best.row)):
                best = simulation.last.kept()
            if budget.reached(row, seconds):
                break
        rows[-1] = simulation.test()
        if best is None:
            return Outcome(rows, "")
        best = simulation.tested(best)
    except Diverged as error:
        return Outcome(rows, str(error))
    of_clients = [clients.columns(how, done.row["round"], done.clients)
                  for how, done in (("last", simulation.last), ("best", best))]  # fmt: skip
    return Outcome(rows, "", clients=of_clients)


def _improved(objective: Objective, row: dict[str, Any], best: dict[str, Any]) -> bool:
    """Whether a round is better than the best before it; of seconds, which add up, the first is."""
    return objective.name != "seconds" and objective.better(row[objective.name], best[objective.name])


def _by_federation(runs: Iterable[SeededRun]) -> list[SeededRun]:
    """The runs in an order in which those on the same federation follow each other, so that each is made once."""
    groups: dict[tuple[Scenario, int], list[SeededRun]] = {}
    for run in runs:
        groups.setdefault((run.experiment.scenario, run.experiment.seed), []).append(run)
    return [run for group in groups.values() for run in group]


def _outcomes(
    runs: Sequence[SeededRun], data: Mapping[str, Dataset], cpus: float, gpus: float, budget: Budget | None,
    concurrent: int | None, objective: Objective | None,
) -> Iterator[tuple[SeededRun, Outcome]]:  # fmt: skip
    """Runs with their outcomes, as they end; those on the same federation must follow each other.

    Only as many are handed to Ray as keep it busy, so that few federations exist at once.
    """
    task = ray.remote(num_cpus=cpus, num_gpus=gpus)(train)
    room = concurrent or 2 * _slots(cpus, gpus)
    waiting: dict[Any, SeededRun] = {}
    latest: Any = None
    shared: Any = None
    for run in runs:
        e = run.experiment
        if latest != (e.scenario, e.seed):
            latest = e.scenario, e.seed
            shared = ray.put(partitioning.partition(data[e.scenario.dataset], *latest))
        waiting[task.remote(e, run.config, shared, cpus, budget or Budget(), objective)] = run
        if len(waiting) >= room:
            yield _next(waiting)
    while waiting:
        yield _next(waiting)


def _next(waiting: dict[Any, SeededRun]) -> tuple[SeededRun, Outcome]:
    """The next run to end, which waits no longer; UserError for what cannot heal."""
    (done, *_), _ = ray.wait(list(waiting))
    try:
        return waiting.pop(done), ray.get(done)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise error.cause from error  # its line alone
        raise


def _slots(cpus: float, gpus: float) -> int:
    """How many runs Ray has room for."""
    have = ray.cluster_resources()
    fits = have["CPU"] / cpus
    return max(1, int(min(fits, have.get("GPU", 0) / gpus) if gpus else fits))


def _with_progress(
    outcomes: Iterable[tuple[SeededRun, Outcome]], title: str, done: int, total: int
) -> Iterator[tuple[SeededRun, Outcome]]:
    """Pass outcomes on and show the progress: a bar in a terminal, lines elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    terminal = sys.stderr.isatty()
    latest, console = TextColumn("{task.description}"), Console(stderr=True)
    with Progress(*columns, latest, console=console, disable=not terminal) as bar:
        task = bar.add_task("", total=total, completed=done)
        for run, outcome in outcomes:
            yield run, outcome
            done += 1
            bar.update(task, advance=1, description=run.label)
            if not terminal:
                say(f"note: {title}: {done} of {total} done ({run.label})")


def outcome_file(folder: Path, run: SeededRun, budget: Budget | None = None) -> Path:
    """The file of a run's outcome; its name depends on all that the outcome does, not on the label alone."""
    what = [run.experiment.to_plain(), run.config, budget]
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:10]
    return folder / f"{run.label.replace(' ', '-').replace('/', '_')}-{digest}.json"
