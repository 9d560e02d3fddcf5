"""A search is checked whole before anything of it starts."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import itertools
import math
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedtune import arguments
from fedtune.cluster import ray_start
from fedtune.core.budget import Budget
from fedtune.core.errors import UserError
from fedtune.core.terminal import say
from fedtune.federated.simulation import Experiment
from fedtune.tuning import schedulers
from fedtune.tuning import space as spaces
from fedtune.tuning.space import Config, Space


class Played(NamedTuple):
    """A trial of another run."""

    trial: str
    config: Config
    rounds: int
    checkpoint: str | None = None
    seconds: float = 0.0  # that its rounds up to that checkpoint took


@dataclasses.dataclass(frozen=True)
class Plan:
    """A search that has been checked and can start."""

    experiment: Experiment
    scenario: str
    space: Space
    points: list[Config]  # tried first: the default configuration, then a grid's points
    outside: list[Config]  # values of the first of them that the space does not hold: they are played all the same
    trials: int
    seeds: int  # a trial is played on so many
    budget: Budget
    grace: float  # in the budget's unit
    objectives: tuple[str, ...]
    scheduler: str
    searcher: str
    name: str
    storage: Path
    cpus: float
    gpus: float
    probe: bool  # whether a round on a whole GPU is to say what share a trial gets
    concurrent: int | None
    final_seeds: int
    time_budget: float | None
    address: str | None
    tensorboard: bool
    earlier: Path | None = None  # a finished run whose trials this search goes on from
    onward: tuple[Played, ...] = ()  # those of its trials that are played on
    again: tuple[Played, ...] = ()  # another run's trials that are played again, and nothing else

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.storage / self.name

    def default(self) -> Config:
        """The default values of what is searched."""
        return {n: v for n, v in self.experiment.configuration({}).items() if n in self.space.names}

    def fresh(self, count: int) -> list[int]:
        """So many seeds that the search has not seen."""
        first = self.experiment.seed + self.seeds
        return list(range(first, first + count))

    def told(self) -> dict[str, Any]:
        """What run.json says of it beside the experiment."""
        return {
            "space": self.space.text(), "trials": self.trials, "searcher": self.searcher, "scheduler": self.scheduler,
            "objectives": self.objectives, "seeds_per_trial": self.seeds, "budget": self.budget._asdict(),
            "grace": self.grace, "rungs": schedulers.rungs(self.scheduler, self.budget.limit, self.grace),
            "concurrent": self.concurrent, "time_budget": self.time_budget,
        }  # fmt: skip

    @property
    def shown(self) -> Path:
        """The run's folder as a person here would write it."""
        here = Path.cwd()
        return self.folder.relative_to(here) if self.folder.is_relative_to(here) else self.folder


def make(args: argparse.Namespace, resumed: bool = False) -> Plan:
    """Check everything that can be told before anything starts; UserError otherwise.  A resumed run has its folder."""
    probe = isinstance(args.gpus_per_trial, str)  # auto: measured on a whole one
    if probe:
        if not args.address and not torch.cuda.device_count():
            raise UserError(
                "--gpus-per-trial auto measures a round on a GPU, but there is none here; leave it out to run on CPUs, "
                "or give --address of a cluster"
            )
        args = argparse.Namespace(**{**vars(args), "gpus_per_trial": 1.0})
    for name in ("cpus_per_trial", "gpus_per_trial", "final_seeds"):
        value, flag = getattr(args, name), "--" + name.replace("_", "-")
        if not math.isfinite(value) or value < 0 or (value == 0 and name == "cpus_per_trial"):
            raise UserError(f"{flag} must be {'above 0' if 'cpu' in name else 'at least 0'}, but got {value:g}")
    if args.time_budget is not None and not args.time_budget > 0:
        raise UserError(f"--time-budget must be above 0 seconds, but got {args.time_budget:g}")
    if args.gpus_per_trial > 1 and args.gpus_per_trial != int(args.gpus_per_trial):
        raise UserError(f"--gpus-per-trial must be a fraction below 1 or a whole number, got {args.gpus_per_trial:g}")
    if not args.address and args.gpus_per_trial > torch.cuda.device_count():
        raise UserError(
            f"--gpus-per-trial must be at most the GPUs there are, {torch.cuda.device_count()}, but got "
            f"{args.gpus_per_trial:g}; leave it out to run on CPUs, or give --address of a cluster"
        )
    experiment = arguments.experiment_from(args)
    if args.gpus_per_trial:
        experiment = dataclasses.replace(experiment, device="cuda")
    elif experiment.device != "cpu":
        raise UserError("a search on GPUs needs a share for each trial, but got --device cuda; use --gpus-per-trial 1")
    space = spaces.widened(spaces.load(args.space, experiment), args.also, experiment)
    searcher = args.searcher or ("grid" if space.is_grid else "random" if args.scheduler == "pbt" else "tpe")
    structural = (*type(experiment.resolve({})[0]).structural, "batch_norm")
    schedulers.require_combination(searcher, args.scheduler, space, structural)
    if searcher == "grid" and not space.is_grid:
        space = _as_grid(space)
    points, outside = _points(space, experiment, population=args.scheduler == "pbt")
    algorithm, scenario = experiment.resolve({})
    deciding = {"momentum": "optimizer", "local_epochs": "local_steps"}
    for name, why in (scenario.idle() | algorithm.idle(scenario)).items():
        if name in space.names and deciding.get(name) not in space.names:
            say(f"warning: {name} has no effect here: {why}")
    for name in space.names:
        if getattr(args, f"field_{name}", None) is not None:
            say(f"note: {name} is searched, --{name.replace('_', '-')} only sets its default; --set {name}=… pins it")
    objectives = tuple(args.objective.split(","))
    schedulers.require_objectives(objectives, searcher, args.scheduler)
    budget, grace = _budget(args, space, experiment)
    storage, name = Path(args.storage_path), args.name or _name(experiment, args.scenario)
    if not resumed:
        require_folder(storage, name)
    ray_start.require_address(args.address)
    ray_start.require_host(args.dashboard_host)
    return Plan(
        experiment, args.scenario or "digits-w4", space, points, outside,
        min(args.trials or len(points), len(points)) if searcher == "grid" else args.trials or 32,
        args.seeds_per_trial, budget, grace, objectives,
        args.scheduler, searcher, name, storage.absolute(), args.cpus_per_trial, args.gpus_per_trial, probe,
        args.max_concurrent, args.final_seeds, args.time_budget, args.address, args.tensorboard,
    )  # fmt: skip


def _points(space: Space, experiment: Experiment, population: bool) -> tuple[list[Config], list[Config]]:
    """What is tried first: the default configuration, then all points of a grid (each filled up with defaults).

    Also those of the default's values that the space does not hold.
    """
    if not space.is_grid:
        point, outside = spaces.inside(space, experiment.configuration({}))
        if outside:
            values = ", ".join(f"{n} = {v}" for n, v in outside.items())
            if population:  # a population moves on from its values, so they must lie in the space
                say(f"note: the default has {values}, outside the space; trial 1 takes the nearest")
                return [point], []
            say(f"note: trial 1, the default, has {values}, outside the space; the searcher is told the nearest")
        return [point], [outside]
    default = {n: v for n, v in experiment.configuration({}).items() if n in space.names}
    full = [default] + [default | point for point in space.points]
    return [p for i, p in enumerate(full) if p not in full[:i]], []


def _as_grid(space: Space) -> Space:
    """All combinations of a space of finite domains."""
    values = {n: spaces.grid_values(n, d) for n, d in space.domains.items()}
    count = math.prod(map(len, values.values()))
    if count > 10_000:
        raise UserError(f"a grid must have at most 10,000 points, but all combinations of the space are {count:,}")
    return Space({}, [dict(zip(values, c, strict=True)) for c in itertools.product(*values.values())])


def _budget(args: argparse.Namespace, space: Space, experiment: Experiment) -> tuple[Budget, float]:
    """What a trial may use, and how much of it before it may be judged; warns where less was asked for than is due."""
    rounds = experiment.scenario.rounds
    if args.budget_unit == "rounds":
        if args.budget is not None:
            raise UserError(f"--budget goes with --budget-unit mb or seconds, but got {args.budget:g}; use --rounds")
        return Budget("rounds", rounds), _grace(args, _first_effect(space, experiment), rounds)
    if args.budget is None:
        raise UserError(f"--budget-unit {args.budget_unit} needs how much a trial may use; give --budget, say 20")
    if args.grace is not None and args.grace > args.budget:
        raise UserError(f"--grace must be at most the --budget of {args.budget:g}, but got {args.grace:g}")
    since = min(_first_effect(space, experiment)[0], rounds)
    return Budget(args.budget_unit, args.budget, since), args.grace or args.budget / 10


def _first_effect(space: Space, experiment: Experiment) -> tuple[int, str]:
    """The latest first effect of any hyperparameter that comes within a trial's rounds, and whose it is."""
    latest, name = spaces.first_effect(space, experiment)
    rounds = experiment.scenario.rounds
    if latest > rounds:
        say(f"warning: {name} may have no effect before round {latest}, but a trial lasts {rounds}; raise --rounds")
        latest, name = spaces.first_effect(space, experiment, within=rounds)
    return latest, name


def _grace(args: argparse.Namespace, first_effect: tuple[int, str], rounds: int) -> int:
    latest, name = first_effect
    if args.grace is None:
        return min(max(latest, rounds // 10), rounds)  # one round in ten says little of where a trial ends
    if args.grace > rounds or args.grace != int(args.grace):
        raise UserError(
            f"--grace must be a whole number, at most the {rounds} rounds of a trial, but got {args.grace:g}"
        )
    if args.grace < latest and args.scheduler != "none":
        say(
            f"warning: --grace {args.grace:g} lets trials be stopped before round {latest}, the first in which {name} "
            "can have an effect somewhere in this space, so what is stopped says nothing about it"
        )
    return int(args.grace)


def _name(experiment: Experiment, scenario: str | None) -> str:
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return f"{experiment.algorithm}-{scenario or 'digits-w4'}-{stamp}"


def require_folder(storage: Path, name: str) -> None:
    """UserError unless the run's folder is new and can be made.  Leaves nothing behind."""
    if "://" in str(storage) or ":/" in str(storage):
        raise UserError(f"--storage-path must be a folder (on a cluster one that all nodes share), but got {storage}")
    if not name or Path(name).name != name or name in (".", ".."):
        raise UserError(f"--name must be a plain folder name, but got {name!r}")
    if (storage / name).exists():
        raise UserError(f"a run needs a new folder, but {storage / name} exists; give another --name")
    parent = storage
    while not parent.exists():
        parent = parent.absolute().parent
    try:
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        raise UserError(
            f"--storage-path must be a folder that can be written to, but {parent} cannot ({error.strerror}); "
            "give another"
        ) from error
