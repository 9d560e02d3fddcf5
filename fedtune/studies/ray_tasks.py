"""Many runs outside a search, as Ray tasks; with a folder, each leaves a file and is run only once.

Seeds of one configuration share a task where they can train together: see `engine.seed_stack`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import ray
import torch

from fedtune.cluster import local_ray
from fedtune.core.budget import Budget
from fedtune.core.errors import Diverged, UserError
from fedtune.core.memory import keep_freed_memory
from fedtune.core.objectives import Objective
from fedtune.core.terminal import progress, say
from fedtune.core.workload import Place, Run, Workload
from fedtune.runs import provenance
from fedtune.runs.files import RunFiles, write_json
from fedtune.runs.trial_states import FAILED

if TYPE_CHECKING:  # what a worker need not load to train: Ray Tune, pandas and rich take it 1.5 s
    from fedtune.tuning.space_types import Config

LINES = 10  # that say how far they are, where no bar does
RETRIES = 3  # of a run that is ended from outside, as many as a trial has


class RunTask(NamedTuple):
    """One configuration on one seed.  label: unique among the runs of one call, and part of the file's name."""

    label: str
    workload: Workload
    config: Config = {}  # noqa: RUF012 - never changed


class Outcome(NamedTuple):
    """The result of a run: its rounds, or as many as there were before it diverged or failed."""

    rounds: list[dict[str, Any]]  # a row of metrics each
    reason: str  # why it diverged, or after FAILED why it failed; empty if neither
    commit: str | None = None  # of the code that ran it
    clients: list[dict[str, Any]] = []  # noqa: RUF012 - never changed: columns of the last and the best round
    notes: list[str] = []  # noqa: RUF012 - never changed: what was worth telling

    @property
    def seconds(self) -> float:
        """Wall time of its rounds, evaluation included."""
        return sum(r["seconds"] + r["eval_seconds"] for r in self.rounds)


def run_all(
    runs: Sequence[RunTask],
    data: Mapping[str, Any],
    folder: Path | None = None,
    cpus: float = 1,
    gpus: float = 0,
    budget: Budget | None = None,
    title: str = "runs",
    concurrent: int | None = None,
    objective: Objective | None = None,
    timed: bool = False,
) -> dict[str, Outcome]:
    """The outcome of each run, by label.

    data         data sets by name, for every run's scenario.
    folder       where each outcome is written.  A run whose file is there already is not run again, so an interrupted
                 call continues; a file belongs to one label, experiment, configuration and budget.
    cpus, gpus   of each run.
    budget       of each run, which may end before its scenario's rounds.
    concurrent   runs at once at most; as many as Ray has room for, if not given.
    objective    selects a run's best round; without one, outcomes hold no results of single clients.
    timed        whether a run's seconds matter, so that each is trained by itself.

    A program's run that fails has an outcome too.  UserError if all failed; then they are run again by the next call.
    """
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    done = finished(runs, folder, budget) if folder else {}
    left = [r for r in runs if r.label not in done]
    limit, slots = budget or Budget(), _slots(cpus, gpus) if left else 0
    some = packs(left, min(slots, concurrent or slots), one_by_one=timed or limit.unit == "seconds")
    at = Place(folder and RunFiles(folder).outputs_folder, cpus=cpus, gpus=gpus, retries=RETRIES)
    outcomes, commit = _outcomes(some, data, at, limit, concurrent or 2 * slots, objective), provenance.commit()
    showing: Any = progress(title) if left else nullcontext()
    with showing as bar:
        task = bar and bar.add_task("", total=len(runs), completed=len(done))
        for run, outcome in outcomes:
            done[run.label] = outcome._replace(commit=commit)
            if folder:
                write_json(outcome_file(folder, run, budget), done[run.label]._asdict())
            for note in outcome.notes:
                say(f"note: {run.label}: {note}")
            bar.update(task, advance=1, description=run.label)
            if bar.disable and (len(done) == len(runs) or not len(done) % max(1, len(runs) // LINES)):  # in no terminal
                say(f"note: {title}: {len(done)} of {len(runs)} done ({run.label})")
    if runs and all(o.reason.startswith(FAILED) for o in done.values()):  # more likely to be mended than bad luck
        for run in runs if folder else ():
            outcome_file(folder, run, budget).unlink(missing_ok=True)  # type: ignore[arg-type]
        first = done[runs[0].label].reason.removeprefix(FAILED)
        raise UserError(first if len(runs) == 1 else f"each of {len(runs)} runs failed; the first: {first}")
    return {r.label: done[r.label] for r in runs}


def start_worker() -> ray.ObjectRef:
    """Have Ray start a worker that loads what trains, and then waits for a run; what is there once it has.

    It starts where every CPU is taken, too.
    """
    return ray.remote(num_cpus=0)(_loaded).remote()


def _loaded() -> None:
    """Does nothing: to call this function, a worker has imported this module."""


def finished(runs: Sequence[RunTask], folder: Path, budget: Budget | None = None) -> dict[str, Outcome]:
    """The outcomes that earlier calls left in the folder, by label."""
    files = {run.label: outcome_file(folder, run, budget) for run in runs}
    return {label: Outcome(**json.loads(f.read_bytes())) for label, f in files.items() if f.exists()}


def train_seeds(
    workload: Workload,
    config: Config,
    seeds: Sequence[int],
    at: Place,
    *data: Any,
    budget: Budget,
    objective: Objective | None,
) -> list[Outcome]:
    """The outcomes of several seeds that train together.  data: of each seed."""
    keep_freed_memory()
    torch.set_num_threads(max(1, int(at.cpus)))
    trains = workload.trainer
    if budget.unit == "seconds":
        trains.warm(workload.with_seed(seeds[0]), config, data[0])
    at = at._replace(gpu_ids=tuple(map(str, ray.get_gpu_ids()))) if at.gpus else at
    together = trains.start(workload, config, dict(zip(seeds, data, strict=True)), at)
    try:
        courses = [_Course(run, budget, objective) for run in together.runs]
        while left := [i for i, course in enumerate(courses) if not course.over]:
            for i, row in together.steps(left).items():
                courses[i].take(row)
        return [course.outcome() for course in courses]
    finally:
        together.close()


class _Course:
    def __init__(self, run: Run, budget: Budget, objective: Objective | None) -> None:
        self.run, self.budget, self.objective = run, budget, objective
        self.rows: list[dict[str, Any]] = []
        self.seconds, self.reason, self.over = 0.0, "", False
        self.notes: list[str] = []
        self.best: Any = None  # the best round, as the run keeps it

    def take(self, row: dict[str, Any] | Diverged | UserError) -> None:
        """The next round's row, or how the run diverged or failed in it."""
        if isinstance(row, Diverged | UserError):
            reason, _, output = str(row).partition("\n")  # what a program printed last has lines of its own
            self.reason, self.over = reason if isinstance(row, Diverged) else f"{FAILED}{reason}", True
            self.notes += [f"it failed; the last that it printed:\n{output}"] if output else []
            return
        self.rows.append(row)
        self.seconds += row["seconds"] + row["eval_seconds"]
        if by := self.objective:
            comparable = by.name != "seconds" and by.name in row  # seconds add up, so no later round is better by them
            if self.best is None or (comparable and by.better(row[by.name], self.best.row[by.name])):
                self.best = self.run.kept()
        self.over = row["round"] >= self.run.rounds or self.budget.reached(row, self.seconds)

    def outcome(self) -> Outcome:
        """The outcome: the last round and the best one are scored on test rows now, unless they were before."""
        if self.reason:
            return Outcome(self.rows, self.reason, notes=[*self.run.take_notes(), *self.notes])
        try:
            self.rows[-1] = self.run.test()
            of_clients = self.run.clients(self.best) if self.best else []
        except Diverged as error:
            return Outcome(self.rows, str(error))
        scored = [client_columns(*each) for each in of_clients]
        return Outcome(self.rows, "", clients=scored, notes=self.run.take_notes())


def packs(runs: Sequence[RunTask], slots: int, one_by_one: bool) -> list[list[RunTask]]:
    """Runs that train as one stack: those of one configuration, as many seeds as a stack should hold.

    slots: tasks that run at once; none is idle for the sake of a larger stack.  one_by_one: each run by itself.
    Packs on the same federations follow each other, so that each is made once.
    """
    groups: dict[str, list[RunTask]] = {}
    for run in runs:
        kind = json.dumps([run.workload.with_seed(0).to_plain(), run.config], sort_keys=True)
        groups.setdefault(kind, []).append(run)
    made: dict[tuple[Any, tuple[int, ...]], list[list[RunTask]]] = {}  # by federations
    for group in groups.values():
        w = group[0].workload
        at_once = 1 if one_by_one else w.trainer.seeds_at_once(w, group[0].config)
        parts = max(-(-len(group) // at_once), min(len(group), -(-slots // len(groups))))
        for i in range(parts):
            pack = group[len(group) * i // parts : len(group) * (i + 1) // parts]
            made.setdefault((w.trainer.source(w), tuple(r.workload.seed for r in pack)), []).append(pack)
    return [pack for of in made.values() for pack in of]


def _outcomes(
    some: Sequence[list[RunTask]],
    data: Mapping[str, Any],
    at: Place,
    budget: Budget,
    room: int,
    objective: Objective | None,
) -> Iterator[tuple[RunTask, Outcome]]:
    """Runs with their outcomes, in the order in which their packs end.

    room: packs that are submitted to Ray at once, just enough to keep it busy, so that few federations exist at once.
    """
    task: Any = ray.remote(num_cpus=at.cpus, num_gpus=at.gpus)(train_seeds)  # type: ignore[arg-type]
    waiting: dict[Any, list[RunTask]] = {}
    latest: Any = None
    shared: list[Any] = []
    for pack in some:
        w, seeds = pack[0].workload, [run.workload.seed for run in pack]
        if latest != (w.trainer.source(w), seeds):
            latest = w.trainer.source(w), seeds
            dealt = [w.trainer.prepare(w, data, seed) for seed in seeds]
            with local_ray.spoken_to():
                shared = [ray.put(each) for each in dealt]
        with local_ray.spoken_to():
            own = at._replace(name=file_name(pack[0].label).replace(",", ""))
            begun = task.remote(w, pack[0].config, seeds, own, *shared, budget=budget, objective=objective)
            waiting[begun] = pack
        if len(waiting) >= room:
            yield from _next(waiting)
    while waiting:
        yield from _next(waiting)


def _next(waiting: dict[Any, list[RunTask]]) -> Iterator[tuple[RunTask, Outcome]]:
    try:
        with local_ray.spoken_to():  # without fetching, which asks the raylet
            (done, *_), _ = ray.wait(list(waiting), fetch_local=False)
        with local_ray.spoken_to():
            outcomes = ray.get(done)
    except ray.exceptions.RayTaskError as error:
        if not isinstance(error.cause, UserError):
            raise
        raise error.cause from error
    yield from zip(waiting.pop(done), outcomes, strict=True)


def client_columns(scored: str, round: int, clients: Mapping[str, Any], owner: Callable[[int], str]) -> dict[str, Any]:
    """The clients of one round as plain lists.

    scored: last or best.  clients: tensors from an evaluation.  owner: returns a client's owner by name.
    """
    by_name = {name: values.tolist() for name, values in clients.items()}
    return {"scored": scored, "round": round, "owner": [owner(k) for k in by_name["client"]]} | by_name


def _slots(cpus: float, gpus: float) -> int:
    have = ray.cluster_resources()
    fits = have["CPU"] / cpus
    return max(1, int(min(fits, have.get("GPU", 0) / gpus) if gpus else fits))


def outcome_file(folder: Path, run: RunTask, budget: Budget | None = None) -> Path:
    """The file of a run's outcome, named by everything that the outcome depends on, not by the label alone."""
    what = [run.workload.to_plain(), run.config, budget]
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:10]
    return folder / f"{file_name(run.label)}-{digest}.json"


def file_name(label: str) -> str:
    """A run's label as part of a file's name."""
    return label.replace(" ", "-").replace("/", "_")
