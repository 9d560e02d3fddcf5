"""A search's plan: everything is checked before anything starts."""

from __future__ import annotations

import dataclasses
import datetime
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedtune.cluster import ray_start
from fedtune.core.budget import Budget
from fedtune.core.errors import UserError
from fedtune.core.objectives import Goal, constraints, parse
from fedtune.core.terminal import near, say, several
from fedtune.core.workload import Workload
from fedtune.experiment.experiment import Experiment
from fedtune.runs import user_copies
from fedtune.runs.files import RunFiles, require_name
from fedtune.tuning import finite, idle, schedulers, searchers
from fedtune.tuning import space as spaces
from fedtune.tuning.callbacks import loggers
from fedtune.tuning.options.search import TENSORBOARD, SearchOptions
from fedtune.tuning.options.types import AUTO, flag
from fedtune.tuning.space import Config, Space
from fedtune.tuning.space_types import distinct
from fedtune.user_code import user_files
from fedtune.user_code.user_files import UserFile


class EarlierTrial(NamedTuple):
    """A trial of an earlier run, which this search continues or repeats."""

    trial: str
    config: Config
    rounds: int
    checkpoint: str | None = None
    seconds: float = 0.0  # of its rounds up to that checkpoint


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """A search that has been checked and can start."""

    options: SearchOptions
    workload: Workload
    space: Space
    points: list[Config]  # tried first: the default configuration, then a grid's points
    outside: list[Config]  # values of the first point outside the space: they are tried anyway
    trials: int
    seeds: int  # of each trial
    budget: Budget
    grace: float  # in the budget's unit
    goal: Goal
    scheduler: str
    searcher: str
    name: str
    storage: Path
    cpus: float
    gpus: float
    probe: bool  # whether a round on a whole GPU is measured to find a trial's share
    concurrent: int | None
    final_seeds: int
    time_budget: float | None
    address: str | None
    tensorboard: bool
    earlier: Path | None = None  # a finished search that this one extends
    continued: tuple[EarlierTrial, ...] = ()  # trials of `earlier` that are trained further
    replayed: tuple[EarlierTrial, ...] = ()  # trials of another search, which alone are trained once more
    draws: int = 0  # added to the searcher's seed: other draws on the same seeds

    @property
    def scenario(self) -> str:
        """The scenario's name."""
        return self.options.scenario

    @property
    def title(self) -> str:
        """What is searched, in words."""
        return f"{self.workload.name} on {self.scenario}" if self.scenario else f"{self.workload.name} (your program)"

    @property
    def folder(self) -> Path:
        """The study's folder."""
        return self.storage / self.name

    @property
    def at_once(self) -> int:
        """The most trials that may run at the same time."""
        return min(self.trials, self.concurrent or self.trials)

    @property
    def run_word(self) -> str:
        """What tells runs of one configuration apart: their seeds, or nothing but that they are repeated."""
        return "seed" if self.workload.traits.repeatable else "repetition"

    @property
    def files(self) -> RunFiles:
        """The files in the study's folder."""
        return RunFiles(self.folder)

    @property
    def own(self) -> tuple[UserFile, ...]:
        """The user's files that the search is made of: the experiment's and the space's."""
        return user_files.merged(self.workload.own, spaces.files(self.options.space))

    def default(self) -> Config:
        """The default values of what is searched."""
        return {n: v for n, v in self.workload.default().items() if n in self.space.names}

    @property
    def selecting(self) -> list[int]:
        """The seeds that its trials are trained on."""
        return [self.workload.seed + i for i in range(self.seeds)]

    @property
    def choosing(self) -> list[int]:
        """The further seeds that its best trials are trained on before one is named."""
        first = self.selecting[-1] + 1
        return list(range(first, first + self.options.choose_seeds - 1))

    def fresh(self, count: int) -> list[int]:
        """So many seeds that the search has not seen."""
        first = [*self.selecting, *self.choosing][-1] + 1
        return list(range(first, first + count))

    @property
    def unjudged(self) -> str:
        """Why its scheduler can stop no trial, or move none; "" if it can."""
        if self.grace < self.budget.limit:
            return ""
        first = spaces.first_effect(self.space, self.workload, within=self.workload.rounds)
        return schedulers.unjudged(self.scheduler, self.budget, self.grace, self.options.grace, *first)

    def to_record(self) -> dict[str, Any]:
        """What the run's record holds of it beside the experiment."""
        declared = self.workload.hyperparameters()
        return (
            {
                "options": self.options.to_record(),
                "scenario_name": self.scenario,
                "space": self.space.text(),
                "declared": {n: declared[n].to_record() for n in self.space.names if n in declared},
                "trials": self.trials,
                "searcher": self.searcher,
                "scheduler": self.scheduler,
                **self.goal.to_record(),
                "seeds_per_trial": self.seeds,
                "choose_seeds": self.options.choose_seeds,
                "budget": self.budget._asdict(),
                "grace": self.grace,
                "rungs": schedulers.rungs(self.scheduler, self.budget.limit, self.grace),
                "concurrent": self.concurrent,
                "time_budget": self.time_budget,
            }
            | ({"own": user_copies.to_record(self.own)} if self.own else {})
            | ({"unjudged": why} if (why := self.unjudged) else {})
            | ({"whole": True} if finite.are_all(self.space, self.trials) else {})
        )

    @property
    def shown(self) -> Path:
        """The study's folder as a person here would write it."""
        return near(self.folder)


def make(options: SearchOptions, resumed: bool = False) -> SearchPlan:
    """Check everything that can be known before anything starts; UserError otherwise.  A resumed run has its folder."""
    ray_start.require_cpus(options.cpus_per_trial, options.address)
    gpus = _gpus(options)
    workload = _on_gpus(options.workload(), gpus)
    options = dataclasses.replace(options.with_typed(workload), space=spaces.with_whole_path(options.space))
    space = spaces.varied(spaces.load(options.space, workload), options.vary, workload)
    space = idle.without(space, workload, options.recorded.get("space", ()))
    searcher = _searcher(options, space, workload)
    if searcher == "grid" and not space.is_grid:
        space = finite.as_grid(space)
    kind = schedulers.find(options.scheduler)
    moves = kind.moves_hyperparameters
    if not workload.traits.continues and (moves or kind.pauses):
        _require_from_the_start(options.scheduler, workload, moves)
    points, outside = _points(space, workload, moves)
    _note_defaults(options, space)
    metrics = workload.measures.selectable
    objective = options.objective or workload.measures.objective
    goal = Goal(parse(objective, metrics), constraints(options.subject_to, metrics))
    searchers.require_goal(goal, searcher, options.scheduler)
    _require_checked(goal, workload)
    _require_choosable(options, goal, moves)
    budget, grace = _budget(options, space, workload)
    storage, name = Path(options.storage_path), options.name or _name(workload, options.scenario)
    if not resumed:
        require_folder(storage, name, options.name)
    loggers.require(options.logger)
    ray_start.require_address(options.address)
    requested = options.trials or (len(points) if searcher == "grid" else 32)
    trials = finite.trials(requested, space, points, sum(map(bool, outside)), moves)
    return SearchPlan(
        options=options,
        workload=workload,
        space=space,
        points=points,
        outside=outside,
        trials=trials,
        seeds=options.seeds_per_trial,
        budget=budget,
        grace=grace,
        goal=goal,
        scheduler=options.scheduler,
        searcher=searcher,
        name=name,
        storage=storage.absolute(),
        cpus=options.cpus_per_trial,
        gpus=gpus,
        probe=options.gpus_per_trial == AUTO,
        concurrent=options.max_concurrent,
        final_seeds=options.final_seeds,
        time_budget=options.time_budget,
        address=options.address,
        tensorboard=TENSORBOARD in options.logger,
    )


def _gpus(options: SearchOptions) -> float:
    """The GPUs of a trial, a whole one where its share is to be measured; UserError if there are not so many."""
    share, gpus_here = options.gpus_per_trial, torch.cuda.device_count()
    if isinstance(share, str):
        if not options.address and not gpus_here:
            raise UserError(
                "--gpus-per-trial auto measures a round on a GPU, but there is none here; leave it out to run on CPUs, "
                "or give --address of a cluster"
            )
        return 1.0
    if not options.address and share > gpus_here:
        raise UserError(
            f"--gpus-per-trial must be at most {gpus_here}, the GPUs of this machine, but got {share:g}; leave it "
            "out to run on "
            "CPUs, or give --address of a cluster"
        )
    return share


def _on_gpus(workload: Workload, gpus: float) -> Workload:
    """The workload on a GPU, if its trials have a share of one; a program's command says what it does with it."""
    if not isinstance(workload, Experiment):
        return workload
    if not gpus and workload.device != "cpu":
        raise UserError("a search on GPUs needs a share for each trial, but got --device cuda; use --gpus-per-trial 1")
    return dataclasses.replace(workload, device="cuda") if gpus else workload


def _searcher(options: SearchOptions, space: Space, workload: Workload) -> str:
    """The requested searcher, or a suitable one; UserError if it does not fit the space and the scheduler."""
    fitting = searchers.default(space, options.scheduler)
    searchers.require_combination(options.searcher or fitting, options.scheduler, space, workload.traits.structural)
    return options.searcher or fitting


def _require_from_the_start(scheduler: str, workload: Workload, moves: bool) -> None:
    """UserError, or a note, for a scheduler whose trials go on from a state that the workload does not keep."""
    advice = f"write {{checkpoint}} in the command of {workload.name} if it can go on from a folder"
    if moves:
        raise UserError(
            f"--scheduler {scheduler} copies trials' states, but {workload.name} keeps none; {advice}, or take asha"
        )
    say(f"note: a trial that {scheduler} pauses begins again later, silently until where it was; {advice}")


def _require_checked(goal: Goal, workload: Workload) -> None:
    """UserError unless runs on fresh seeds report what the search goes for, or its test metric."""
    figures, first = [*workload.measures.figures({}), "seconds"], goal.first
    if first.reported(figures) not in figures:
        raise UserError(
            f"the final check must report {first.name} or {first.tested}, but that of {workload.name} reports "
            f"{', '.join(figures[:-1])}; name its metric so in [check]"
        )


def _require_choosable(options: SearchOptions, goal: Goal, moves: bool) -> None:
    """UserError where a trial's figures on its own seeds could not be compared with those on further ones."""
    if options.choose_seeds == 1:
        return
    if moves:
        raise UserError(
            f"--choose-seeds trains the best configurations again, but --scheduler {options.scheduler} changes them "
            "during training; take asha, or --choose-seeds 1"
        )
    if options.seeds_per_trial > 1 and "seconds" in (options.budget_unit, *goal.names):
        raise UserError(
            "--choose-seeds trains single seeds, but a trial's seconds are those of all its seeds, with "
            f"--seeds-per-trial {options.seeds_per_trial}; take --choose-seeds 1, or one seed per trial"
        )


def _note_defaults(options: SearchOptions, space: Space) -> None:
    """Say which given scenario fields only set defaults, because they are searched."""
    for name in space.names:
        if name in options.fields:
            say(f"note: {name} is searched, so {flag(name)} only sets its default; --set {name}=… fixes it")


def _points(space: Space, workload: Workload, population: bool) -> tuple[list[Config], list[Config]]:
    """What is tried first: the default configuration, then all points of a grid (each filled up with defaults).

    Also those of the default's values that the space does not hold.
    """
    if not space.is_grid:
        point, outside = spaces.inside(space, workload.default())
        if outside:
            values = ", ".join(f"{n} = {v}" for n, v in outside.items())
            if population:  # PBT perturbs these values, so they must lie in the space
                say(f"note: the default has {values}, outside the space; trial 1 uses the nearest value inside")
                return [point], []
            say(
                f"note: trial 1, the default, has {values}, outside the space; the searcher is given the "
                "nearest value inside"
            )
        return [point], [outside]
    default = {n: v for n, v in workload.default().items() if n in space.names}
    full = [default] + [default | point for point in space.points]
    return distinct(full), []


def _budget(options: SearchOptions, space: Space, workload: Workload) -> tuple[Budget, float]:
    """A trial's budget and grace period; warns if the requested grace period is too short."""
    rounds = workload.rounds
    if options.budget_unit == "rounds":
        if options.budget is not None:
            raise UserError(f"--budget goes with --budget-unit mb or seconds, but got {options.budget:g}; use --rounds")
        return Budget("rounds", rounds), _grace(options, _first_effect(space, workload), workload)
    if options.budget_unit == "mb" and "comm_mb" not in workload.measures.selectable:
        raise UserError(
            f"--budget-unit mb needs the metric comm_mb, but {workload.name} does not report it; use --rounds"
        )
    if options.budget is None:
        raise UserError(f"--budget-unit {options.budget_unit} needs the length of a trial; give --budget, say 20")
    if options.grace is not None and options.grace > options.budget:
        raise UserError(f"--grace must be at most the --budget of {options.budget:g}, but got {options.grace:g}")
    since = min(_first_effect(space, workload)[0], rounds)
    return Budget(options.budget_unit, options.budget, since), options.grace or options.budget / 10


def _first_effect(space: Space, workload: Workload) -> tuple[int, str]:
    """The latest first effect of any hyperparameter that comes within a trial's rounds, and whose it is."""
    latest, name = spaces.first_effect(space, workload)
    rounds = workload.rounds
    if latest > rounds:
        say(f"warning: {name} may have no effect before round {latest}, but a trial lasts {rounds}; raise --rounds")
        latest, name = spaces.first_effect(space, workload, within=rounds)
    return latest, name


def _grace(options: SearchOptions, first_effect: tuple[int, str], workload: Workload) -> int:
    (latest, name), rounds, every = first_effect, workload.rounds, workload.traits.report_every
    if options.grace is None:
        return schedulers.at_report(schedulers.default_grace(rounds, latest), every)
    if options.grace > rounds or options.grace != int(options.grace):
        raise UserError(
            f"--grace must be a whole number, at most the {several(rounds, 'round')} of a trial, but got "
            f"{options.grace:g}"
        )
    if options.grace % every:
        raise UserError(
            f"--grace must be a multiple of report_every, {every}, as trials are judged by their reports, but got "
            f"{options.grace:g}; give {schedulers.at_report(int(options.grace), every)}"
        )
    if options.grace < latest and options.scheduler != "none":
        say(
            f"warning: --grace {options.grace:g} lets trials be stopped before round {latest}, the first in which "
            f"{name} can have an effect in this space, so stopped trials say nothing about it"
        )
    return int(options.grace)


def _name(workload: Workload, scenario: str) -> str:
    """A name for a study's folder; with the user's own data, after the data rather than the scenario."""
    name = user_files.plain_name(workload.name)
    if isinstance(workload, Experiment):
        dataset = workload.scenario.dataset
        name += f"-{user_files.plain_name(dataset) if user_files.is_own(dataset) else scenario}"
    return f"{name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"


def require_folder(storage: Path, name: str, given: str | None) -> None:
    """UserError unless the study's folder is new, or empty of results, and can be made.  Leaves nothing behind.

    given: the --name, if there was one; other names are made of checked values.
    """
    if "://" in str(storage) or ":/" in str(storage):
        raise UserError(f"--storage-path must be a folder (on a cluster one that all nodes share), but got {storage}")
    if given is not None:
        require_name(given)
    if not RunFiles(storage / name).fresh:
        raise UserError(f"a run needs a new folder, but {storage / name} exists; give another --name")
    parent = storage
    while not parent.exists():
        parent = parent.absolute().parent
    try:
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        raise UserError(
            f"--storage-path must be a folder that can be written to, but {parent} cannot be ({error.strerror}); "
            "give another"
        ) from error
