"""A search's plan: everything is checked before anything starts."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.util
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedtune.cluster import ray_start
from fedtune.core import randomness
from fedtune.core.accounting import drawn
from fedtune.core.budget import Budget
from fedtune.core.errors import UserError
from fedtune.core.metrics import SIM_SECONDS
from fedtune.core.objectives import Goal, constraints, parse
from fedtune.core.terminal import say, several
from fedtune.core.workload import Workload
from fedtune.experiment.experiment import Experiment
from fedtune.runs import user_copies
from fedtune.runs.files import RunFiles, require_name
from fedtune.tuning import schedulers, searchers, space_facts
from fedtune.tuning import space as spaces
from fedtune.tuning.options.search import TENSORBOARD, SearchOptions
from fedtune.tuning.options.types import AUTO
from fedtune.tuning.space import Config, Space
from fedtune.tuning.space_types import distinct, met, values
from fedtune.user_code import user_files
from fedtune.user_code.user_files import UserFile


class EarlierTrial(NamedTuple):
    """A trial of an earlier search, which this one continues or replays."""

    trial: str
    config: Config
    rounds: int
    checkpoint: str | None = None
    seconds: float = 0.0  # of its rounds up to that checkpoint


class EarlierSearch(NamedTuple):
    """A finished search that another one extends by more trials or by more rounds of some, or replays."""

    folder: Path
    trials: tuple[EarlierTrial, ...] = ()  # those that are trained further, or once more
    replayed: bool = False
    tried: frozenset[str] = frozenset()  # keys of configurations, which more trials leave out of a finite space


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """A search that has been checked and can start: its options, and what follows from them."""

    options: SearchOptions
    workload: Workload
    space: Space
    points: list[Config]  # tried first, also values outside the space: the default configuration, then a grid's points
    trials: int
    budget: Budget
    grace: float  # in the budget's unit
    folder: Path
    after: EarlierSearch | None = None
    draws: int = 0  # added to the searcher's seed: other draws on the same seeds

    @cached_property
    def goal(self) -> Goal:
        """What it goes for."""
        return _goal(self.options, self.workload)

    @property
    def searcher(self) -> str:
        """What proposes its configurations."""
        return "replay" if self.replayed else self.options.searcher or searchers.default(self.space, self.scheduler)

    @property
    def scheduler(self) -> str:
        """What judges its trials: nothing if they are an earlier search's."""
        return "none" if self.after and self.after.trials else self.options.scheduler

    @property
    def extended(self) -> Path | None:
        """The folder of the search that it extends."""
        return None if self.after is None or self.after.replayed else self.after.folder

    @property
    def continued(self) -> tuple[EarlierTrial, ...]:
        """The earlier search's trials that are trained further."""
        return self.after.trials if self.after and not self.after.replayed else ()

    @property
    def replayed(self) -> tuple[EarlierTrial, ...]:
        """The earlier search's trials, which alone are trained once more."""
        return self.after.trials if self.after and self.after.replayed else ()

    @property
    def seeds(self) -> int:
        """The seeds of each trial."""
        return self.options.seeds_per_trial

    @property
    def gpus(self) -> float:
        """The GPUs of a trial; a whole one where its share is to be measured."""
        return 1.0 if self.options.gpus_per_trial == AUTO else float(self.options.gpus_per_trial)

    @property
    def title(self) -> str:
        """What is searched, in words."""
        where = f"on {self.options.scenario}" if self.options.scenario else "(your program)"
        return f"{self.workload.name} {where}"

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

    def workload_as_begun(self) -> Workload:
        """The workload with what its record says was chosen, if the search has begun."""
        record = self.files.record if self.files.record_file.exists() else {}
        return self.workload.as_recorded(record)

    def default(self, given: Config | None = None) -> Config:
        """The default values of what is searched, but for those given; as trials, without parts that are off."""
        names, conditions = {*self.space.names, *(given or ())}, self.space.conditions
        config = {n: v for n, v in self.workload.default(given).items() if n in names}
        acts = self.workload.configuration({n: v for n, v in config.items() if met(conditions.get(n, {}), config)})
        return {n: v for n, v in config.items() if n in acts}

    @property
    def selecting(self) -> list[int]:
        """The seeds that its trials are trained on."""
        return [self.workload.seed + i for i in range(self.seeds)]

    @property
    def choosing(self) -> list[int]:
        """The further seeds that its best trials are trained on before one is named."""
        return [self.selecting[-1] + i for i in range(1, self.options.choose_seeds)]

    def fresh(self, count: int) -> list[int]:
        """So many seeds that the search has not seen."""
        return [[*self.selecting, *self.choosing][-1] + 1 + i for i in range(count)]

    @property
    def unjudged(self) -> str:
        """Why its scheduler can stop no trial, or move none; "" if it can."""
        if self.scheduler == "none" or self.grace < self.budget.limit:
            return ""
        return (
            f"{self.scheduler} judges no trial before its end, as its grace period is all of a trial's "
            f"{self.budget.limit:g} {self.budget.unit}; give more --rounds or a smaller --grace"
        )

    def to_record(self) -> dict[str, Any]:
        """What the run's record holds of it beside the experiment."""
        declared = self.workload.hyperparameters()
        optional = {
            "own": user_copies.to_record(self.own),
            "unjudged": self.unjudged,
            "whole": space_facts.are_all(self.space, self.trials),
        }
        return {
            "options": self.options.to_record(),
            "scenario_name": self.options.scenario,
            "space": self.space.text(),
            "default_config": self.default(),
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
            "time_budget": self.options.time_budget,
            **{name: value for name, value in optional.items() if value},
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class StartedSearch:
    """A search that has its data and its Ray, and what they decided."""

    plan: SearchPlan
    workload: Workload  # with everything chosen that a look at the data decides
    prepared: Any  # what every trial trains on, by seed
    concurrent: int  # trials at once
    gpus: float = 0.0  # of a trial
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # data sets by name


def make(
    options: SearchOptions,
    resumed: bool = False,
    *,
    after: EarlierSearch | None = None,
    draws: int = 0,
    since: int | None = None,
) -> SearchPlan:
    """Check everything that can be known before anything starts; UserError otherwise.

    resumed: the folder is there.  since: the first round in which a trial may be stopped, if others decide it.
    """
    ray_start.require_cpus(options.cpus_per_trial, options.address)
    workload = _on_gpus(options)
    options = dataclasses.replace(options.with_typed(workload), space=spaces.with_whole_path(options.space))
    goal = _goal(options, workload)
    space = _space(options, workload, goal)
    points, trials = _trials(options, space, workload, after)
    _require_fitting(options, workload, goal)
    budget, grace = _budget(options, space, workload, since)
    folder = Path(options.storage_path).absolute() / (options.name or _name(workload, options.scenario))
    if not resumed:
        require_folder(Path(options.storage_path), folder.name, options.name)
    require_packages(options.logger)
    ray_start.require_address(options.address)
    return SearchPlan(
        options=options,
        workload=workload,
        space=space,
        points=points,
        trials=trials,
        budget=budget,
        grace=grace,
        folder=folder,
        after=after,
        draws=draws,
    )


def _on_gpus(options: SearchOptions) -> Workload:
    """The workload, on a GPU if its trials have a share of one; UserError if there are not so many.

    A program's command says what it does with a GPU.
    """
    share, here = options.gpus_per_trial, torch.cuda.device_count()
    if not options.address and (1 if share == AUTO else float(share)) > here:  # auto measures on one
        raise UserError(
            f"--gpus-per-trial must be at most {here}, the GPUs of this machine, but got {share}; leave it out to run "
            "on CPUs, or give --address of a cluster"
        )
    workload = options.workload()
    if not isinstance(workload, Experiment):
        return workload
    if not share and workload.device != "cpu":
        raise UserError("a search on GPUs needs a share for each trial, but got --device cuda; use --gpus-per-trial 1")
    return dataclasses.replace(workload, device="cuda") if share else workload


def _space(options: SearchOptions, workload: Workload, goal: Goal) -> Space:
    then = options.recorded.get("space", {})
    space = spaces.varied(spaces.load(options.space, workload, bool(options.vary)), options.vary, workload)
    if "update_noise" in space.names and isinstance(workload, Experiment) and workload.scenario.epsilon:
        raise UserError("--epsilon sets update_noise, so it cannot be searched, but the space has it; leave one out")
    space = space_facts.without_idle(spaces.as_recorded(space, then, workload), workload, then)
    searcher = options.searcher or searchers.default(space, options.scheduler)
    if goal.constraints and options.budget_unit == "rounds":
        space_facts.require_keepable(space, workload, goal)
    searchers.require_combination(searcher, options.scheduler, space, goal, workload.traits.structural)
    searched = space.domains.get("compress")
    codecs = [p["compress"] for p in space.points if "compress" in p] or (list(values(searched)) if searched else [])
    if isinstance(workload, Experiment):
        for codec in dict.fromkeys(codecs):
            workload.check({"compress": codec})
    for name in space.names:
        if name in options.fields:
            say(f"note: {name} is searched, so what was given only sets its default; --set {name}=… fixes it")
    return space_facts.as_grid(space) if searcher == "grid" and not space.is_grid else space


def _goal(options: SearchOptions, workload: Workload) -> Goal:
    metrics = workload.measures.selectable
    objective = options.objective or workload.measures.objective()
    return Goal(parse(objective, metrics), constraints(options.subject_to, metrics), workload.measures.growing)


def _trials(
    options: SearchOptions, space: Space, workload: Workload, after: EarlierSearch | None
) -> tuple[list[Config], int]:
    """What is tried first, and how many trials there are; UserError if an earlier search tried all of the space."""
    if options.trials_drawn:
        return [], _drawn(options, space, workload, after)
    if after is None:
        return _from_start(options, space, workload)
    if after.trials:  # what is trained further may have values outside the space
        default = workload.default()
        tried = [spaces.inside(space, default | t.config) for t in after.trials]
        return ([] if after.replayed else [point | outside for point, outside in tried]), len(after.trials)
    wanted = options.trials or 0
    if not space_facts.is_finite(space):
        return [], wanted
    if not (left := sum(1 for _ in space_facts.untried(space, after.tried, wanted))):
        raise UserError(
            f"more trials need untried configurations, but {after.folder} tried all of its space; widen the space"
        )
    if left < wanted:
        say(f"note: {several(left, 'configuration')} of the space {'was' if left == 1 else 'were'} not tried yet")
    return [], left


def _drawn(options: SearchOptions, space: Space, workload: Workload, after: EarlierSearch | None) -> int:
    """A random number of trials; UserError unless they are independent, whole, and cost the same."""
    private = isinstance(workload, Experiment) and workload.scenario.privacy == "client"
    needs = {
        "--privacy client": private,
        "--searcher random": options.searcher == "random",
        "--scheduler none": options.scheduler == "none",
        "--choose-seeds 1": options.choose_seeds == 1,
        "no --time-budget": options.time_budget is None,
        "no earlier search": after is None,
        "a space with ranges, in which no configuration is tried twice": not space_facts.is_finite(space),
        "update_noise and participation fixed": not {"update_noise", "participation"} & {*space.names},
    }
    if lacking := [what for what, has in needs.items() if not has]:
        raise UserError(f"--trials-drawn is for independent, whole trials of one ε; it also needs {', '.join(lacking)}")
    number = drawn(str(options.trials_drawn), options.trials or 32, randomness.numpy_stream(workload.seed, "trials"))
    if not number:
        raise UserError("--trials-drawn poisson drew no trial, as it may; give another --seed, or more --trials")
    say(f"note: {several(number, 'trial')}, a number drawn at random ({options.trials_drawn})")
    return number


def _from_start(options: SearchOptions, space: Space, workload: Workload) -> tuple[list[Config], int]:
    moves, default = schedulers.find(options.scheduler).moves_hyperparameters, workload.default()
    if space.is_grid:
        default = {n: v for n, v in default.items() if n in space.names}
        points = distinct([default] + [default | point for point in space.points])
        return points, space_facts.trials(options.trials or len(points), space, points, 0, moves)
    point, outside = spaces.inside(space, default)
    if outside:
        values, who = ", ".join(f"{n} = {v}" for n, v in outside.items()), "trial 1" if moves else "the searcher"
        say(f"note: the default has {values}, outside the space; {who} gets the nearest value inside")
    outside = {} if moves else outside  # PBT perturbs these values, so they must lie in the space
    return [point | outside], space_facts.trials(options.trials or 32, space, [point], int(bool(outside)), moves)


def _require_fitting(options: SearchOptions, workload: Workload, goal: Goal) -> None:
    """UserError, or a note, where the workload, its scheduler, and the runs after its trials do not go together."""
    scheduler, kind, first = options.scheduler, schedulers.find(options.scheduler), goal.first
    if not workload.traits.continues and (kind.moves_hyperparameters or kind.pauses):
        advice = f"write {{checkpoint}} in the command of {workload.name} if it can go on from a folder"
        if kind.moves_hyperparameters:
            raise UserError(
                f"--scheduler {scheduler} copies trials' states, but {workload.name} keeps none; {advice}, or take asha"
            )
        say(f"note: a trial that {scheduler} pauses begins again later, silently until where it was; {advice}")
    figures = [*workload.measures.figures({}), "seconds"]
    if first.reported(figures) not in figures:
        raise UserError(
            f"the final check must report {first.name} or {first.tested}, but that of {workload.name} reports "
            f"{', '.join(figures[:-1])}; name its metric so in [check]"
        )
    why = f"--scheduler {scheduler} changes configurations during training" if kind.moves_hyperparameters else ""
    if options.seeds_per_trial > 1 and "seconds" in (options.budget_unit, *goal.names):
        why = "with --seeds-per-trial a trial's seconds are those of all its seeds"
    if why and options.choose_seeds > 1:
        raise UserError(
            f"--choose-seeds trains the best configurations on single seeds, but {why}; give --choose-seeds 1"
        )


def _budget(options: SearchOptions, space: Space, workload: Workload, since: int | None = None) -> tuple[Budget, float]:
    unit, length, rounds = options.budget_unit, options.budget, workload.rounds
    if (length is None) != (unit == "rounds"):
        raise UserError(
            f"--budget is the length of a trial with --budget-unit mb, seconds or sim_seconds, say 20, but got "
            f"--budget {length} and --budget-unit {unit}; --rounds is the length in rounds"
        )
    if length is None:
        return Budget("rounds", rounds), _grace(options, _first_effect(space, workload), workload)
    if isinstance(workload, Experiment) and workload.scenario.epsilon:  # best.yaml has other rounds: the trial's
        rule = "--epsilon sets the noise by the number of rounds, so trials must have as many"
        raise UserError(f"{rule}, but got --budget-unit {unit}; give --set update_noise=1 instead of --epsilon")
    if unit == "mb" and "comm_mb" not in workload.measures.selectable:
        raise UserError(f"--budget-unit mb needs the metric comm_mb, but {workload.name} has none; use --rounds")
    if unit == SIM_SECONDS and unit not in workload.measures.selectable:
        raise UserError(f"a budget in device seconds needs devices, but {workload.name} has none; give --devices alike")
    if options.grace is not None and options.grace > length:
        raise UserError(f"--grace must be at most the --budget of {length:g}, but got {options.grace:g}")
    first = min(_first_effect(space, workload)[0], rounds)
    return Budget(unit, length, since or first), options.grace or length / 10


def _first_effect(space: Space, workload: Workload) -> tuple[int, str]:
    latest, name = space_facts.first_effect(space, workload)
    if latest > (rounds := workload.rounds):
        say(f"warning: {name} may have no effect before round {latest}, but a trial lasts {rounds}; raise --rounds")
        latest, name = space_facts.first_effect(space, workload, within=rounds)
    return latest, name


def _grace(options: SearchOptions, first_effect: tuple[int, str], workload: Workload) -> int:
    (latest, name), rounds, every = first_effect, workload.rounds, workload.traits.report_every
    grace = options.grace
    if grace is None:
        then = options.recorded
        if {"unit": "rounds", "limit": rounds}.items() <= then.get("budget", {}).items() and "grace" in then:
            return int(then["grace"])
        return schedulers.at_report(schedulers.default_grace(rounds, latest), every)
    if grace > rounds or grace % every:  # every is 1, or a program's rounds from one report to the next
        of = "a whole number" if every == 1 else f"a multiple of report_every, {every}"
        raise UserError(f"--grace must be {of}, at most the {several(rounds, 'round')} of a trial, but got {grace:g}")
    if grace < latest and options.scheduler != "none":
        say(
            f"warning: --grace {grace:g} lets trials be stopped before round {latest}, the first in which {name} can "
            "have an effect in this space"
        )
    return int(grace)


def require_packages(loggers: Sequence[str]) -> None:
    """UserError for a tracker whose package, of the same name, is not installed."""
    for name in (n for n in loggers if n != TENSORBOARD):  # it is Ray's own
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a folder of that name, such as W&B's data, is no package
            raise UserError(f"--logger {name} needs a package that is not installed; pip install 'fedtune[{name}]'")


def _name(workload: Workload, scenario: str) -> str:
    name = user_files.plain_name(workload.name)
    if isinstance(workload, Experiment):
        dataset = workload.scenario.dataset
        name += f"-{user_files.plain_name(dataset) if user_files.is_own(dataset) else scenario}"
    return f"{name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"


def require_folder(storage: Path, name: str, given: str | None) -> None:
    """UserError unless the study's folder is new, or empty of results, and can be made.  Leaves nothing behind.

    given: the --name, if there was one; other names are made of checked values.
    """
    if ":/" in str(storage):
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
            f"--storage-path must be a folder that can be written to, but got {parent} ({error.strerror}); give another"
        ) from error
