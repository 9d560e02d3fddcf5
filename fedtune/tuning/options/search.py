"""The options of searches: those of a run, how it is searched, how long, and where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedtune.core.budget import UNITS
from fedtune.core.errors import UserError
from fedtune.core.metrics import METRIC
from fedtune.programs.naming import is_program
from fedtune.runs.choice import CHOOSE_SEEDS, TOP
from fedtune.tuning.options.options import ExperimentOptions
from fedtune.tuning.options.types import (
    FEW,
    HOW,
    LENGTH,
    WHAT,
    WHERE,
    above_zero,
    bounded_int,
    flag,
    gpus,
    names_of,
    option,
    positive_int,
    small_int,
    texts,
)
from fedtune.tuning.schedulers import SCHEDULERS
from fedtune.tuning.searchers import SEARCHERS

if TYPE_CHECKING:
    from fedtune.core.workload import Workload

LOOPBACK = "127.0.0.1"
LOGGERS = ("mlflow", "wandb")  # tools that a search can tell of its trials (fedtune/tuning/callbacks/trackers.py)


@dataclass(frozen=True, kw_only=True)
class SearchOptions(ExperimentOptions):
    """A search: an experiment, what is searched and how, and the machine that it runs on."""

    program: str = option(
        "",
        "your program in place of --algo; a program file, or its command, in which {lr} stands for a hyperparameter",
        "FILE.toml|COMMAND",
        group=WHAT,
    )
    metric_pattern: tuple[str, ...] = option(
        (),
        f"a program's metric in its output; a pattern with a group for the number (default name {METRIC}); may be "
        "given several times",
        "[NAME=]PATTERN",
        texts,
        group=WHAT,
        rare=True,
    )
    flower: str = option(
        "",
        "a Flower app in place of --algo; with --metric client:NAME and a --space of its run config",
        "APPDIR",
        group=WHAT,
    )
    python: str = option(
        "", "the Python that has Flower; default APPDIR/.venv, else python", "PATH", group=WHERE, rare=True
    )
    selects_on_test: bool = option(
        False,
        "let a program's metric on test rows select; what is found is then too good, and every report says so",
        group=HOW,
        rare=True,
    )
    space: str = option("default", "search space: default, paper, wide, or your file", "NAME|FILE.py", group=HOW)
    also: str | None = option(
        None, "more hyperparameters to search; for instance lr=0.001..0.3", "NAME[=LOW..HIGH],…", group=HOW
    )
    ranges: str | None = option(
        None, "other ranges to search; for instance lr=0.0001..1", "NAME=LOW..HIGH,…", group=HOW
    )
    trials: int | None = option(
        None, "configurations to try (default 32); of a grid: all", "N", positive_int, group=LENGTH
    )
    scheduler: str = option(
        "asha", f"which trials stop early (default asha); one of {', '.join(SCHEDULERS)}", "NAME", group=HOW
    )
    searcher: str | None = option(
        None,
        f"what proposes values (default tpe); for a grid: grid; one of {', '.join(SEARCHERS)}",
        "NAME",
        group=HOW,
    )
    objective: str = option(
        "",
        f"what to improve (default {METRIC}); a metric on validation rows, or a cost; for two, the Pareto front",
        "A[,B]",
        group=HOW,
    )
    subject_to: str = option("", "constraints, such as comm_mb<=20", "A<=X[,B>=Y]", group=HOW)
    seeds_per_trial: int = option(
        1,
        "seeds per trial (default 1); a trial is judged by the mean over them",
        "K",
        small_int,
        group=HOW,
    )
    choose_seeds: int = option(
        CHOOSE_SEEDS,
        f"seeds that decide between the best {TOP} (default {CHOOSE_SEEDS}); these finished trials are trained on "
        "K - 1 more at the end, and what diverges on any is out",
        "K",
        small_int,
        group=HOW,
    )
    budget_unit: str = option(
        "rounds", "unit of a trial's length and rungs (default rounds)", choices=UNITS, group=LENGTH, rare=True
    )
    budget: float | None = option(
        None, "a trial's length in megabytes or seconds", "N", above_zero, group=LENGTH, rare=True
    )
    grace: float | None = option(
        None, "first rung of early stopping; default: derived from the space", "N", above_zero, group=LENGTH, rare=True
    )
    final_seeds: int = option(5, "fresh seeds for the final check (default 5)", "N", bounded_int(0, FEW), group=LENGTH)
    time_budget: float | None = option(None, "stop the search after this long", "SECONDS", above_zero, group=LENGTH)

    max_concurrent: int | None = option(
        None, "trials that run at once (default: as many as fit)", "N", positive_int, group=WHERE
    )
    cpus_per_trial: float = option(1.0, "CPUs of a trial (default 1)", "N", above_zero, group=WHERE)
    gpus_per_trial: float | str = option(
        0.0, "GPUs of a trial, or auto to measure (default 0); may be a fraction", "N", gpus, group=WHERE
    )
    name: str | None = option(
        None, "name of the study's folder; default: algorithm, scenario and time", "NAME", group=WHERE
    )
    storage_path: str = option("runs", "where the study's folder goes (default runs)", "DIR", group=WHERE)
    address: str | None = option(
        None,
        "a Ray cluster (default: start Ray here); auto, host:port or ray://host:port",
        "ADDRESS",
        group=WHERE,
    )
    dashboard: bool = option(True, "do not start Ray's dashboard", group=WHERE, rare=True)
    dashboard_host: str = option(
        LOOPBACK,
        f"where the dashboard listens (default {LOOPBACK})",
        "HOST",
        group=WHERE,
        rare=True,
    )
    tensorboard: bool = option(
        False, "also write TensorBoard event files; they cost time per round", group=WHERE, rare=True
    )
    logger: tuple[str, ...] = option(
        (),
        f"log every trial to {' or '.join(LOGGERS)} too; may be given twice",
        "NAME",
        names_of(*LOGGERS),
        group=WHERE,
        rare=True,
    )

    def __post_init__(self) -> None:
        """As for an experiment; --program FILE.toml is another way to say --algo FILE.toml."""
        if self.flower:
            if self.algo or self.program:
                raise UserError(
                    f"one of --algo, --program and --flower says what is trained, but got {self.flower} and "
                    f"{self.algo or self.program}"
                )
            object.__setattr__(self, "flower", str(Path(self.flower).expanduser().absolute()))
        if self.program and self.algo not in ("", self.program):
            raise UserError(f"either --algo or --program says what is trained, but got {self.algo} and {self.program}")
        if is_program(self.program):
            object.__setattr__(self, "algo", self.program)
            object.__setattr__(self, "program", "")
        super().__post_init__()

    @property
    def is_program(self) -> bool:
        """Whether a program of the user's is trained."""
        return bool(self.program or self.flower) or super().is_program

    def workload(self) -> Workload:
        """What is trained: an algorithm by the engine, or a program; UserError for whatever is wrong with it."""
        if not self.is_program:
            self._require_of_engine()
            return super().workload()
        if not (self.program or self.flower):
            for name, other in (("metric_pattern", "a command"), ("python", "--flower")):
                if getattr(self, name):
                    raise UserError(f"{flag(name)} goes with {other}, but {self.algo} is a program file; say it there")
            return self._of_program_file(self.selects_on_test)
        from fedtune.programs import workload
        from fedtune.tuning import programs

        rounds = self.fields.get("rounds")
        if self.flower:
            program = programs.of_flower(self.flower, self.metric, self.space, rounds, self.python, self.set)
            return workload.of_program(program, self.seed, {}, self.selects_on_test)
        folder = self.recorded.get("program", {}).get("folder")  # a resumed search may be started in another
        program = programs.of_command(self.program, self.metric_pattern, self.space, rounds, folder)
        return workload.of_program(program, self.seed, self.set, self.selects_on_test, rounds)

    def _require_of_engine(self) -> None:
        """UserError for an option that only programs have."""
        if given := [name for name in ("metric_pattern", "python", "selects_on_test") if getattr(self, name)]:
            raise UserError(
                f"{flag(given[0])} is for a program of yours, but {self.algo or 'no --program'} was given; leave it out"
            )
