"""The options of searches: those of a run, how it is searched, how long, and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedtune.core.accounting import SHAPES
from fedtune.core.budget import UNITS
from fedtune.core.errors import UserError
from fedtune.core.metrics import METRIC
from fedtune.programs import naming
from fedtune.runs.choice import CHOOSE_SEEDS, TOP
from fedtune.tuning.options.options import ExperimentOptions
from fedtune.tuning.options.types import (
    FEW,
    HOW,
    LENGTH,
    WHERE,
    above_zero,
    gpus,
    number,
    option,
    positive_int,
    small_int,
    texts,
)
from fedtune.tuning.schedulers import SCHEDULERS
from fedtune.tuning.searchers import SEARCHERS

if TYPE_CHECKING:
    from fedtune.core.workload import Workload

TENSORBOARD = "tensorboard"
LOGGERS = ("mlflow", "wandb", TENSORBOARD)  # what a search can tell of its trials (fedtune/tuning/callbacks)


@dataclass(frozen=True, kw_only=True)
class SearchOptions(ExperimentOptions):
    """A search: an experiment, what is searched and how, and the machine that it runs on."""

    selects_on_test: bool = option(
        False,
        "let a program's metric on test rows select; what is found is then too good, and every report says so",
        group=HOW,
        rare=True,
    )
    space: str = option("default", "search space: default, paper, wide, or your file", "NAME|FILE.py", group=HOW)
    vary: tuple[str, ...] = option(
        (),
        "search it too, or over LOW..HIGH or 'LOW..HIGH log'; for instance 'lr=0.001..0.3 log', or 'opt=sgd|adam'; "
        "without a range: over all that is declared; may be given several times",
        "NAME[=RANGE]",
        texts,
        group=HOW,
    )
    trials: int | None = option(
        None, "configurations to try (default 32); of a grid: all", "N", positive_int, group=LENGTH
    )
    trials_drawn: str | None = option(
        None,
        f"with privacy: draw the number of trials, with mean --trials; {', '.join(SHAPES)}: the choice among whole "
        "trials at random then has an ε of its own",
        "NAME",
        choices=tuple(SHAPES),
        group=LENGTH,
        rare=True,
    )
    scheduler: str = option(
        "asha", f"which trials stop early (default asha); one of {', '.join(SCHEDULERS)}", "NAME", group=HOW
    )
    searcher: str | None = option(
        None, f"what proposes values (default tpe); for a grid: grid; one of {', '.join(SEARCHERS)}", "NAME", group=HOW
    )
    objective: str = option(
        "",
        f"what to improve (default {METRIC}); a metric on validation rows, or a cost; for up to four, the Pareto front",
        "A[,B…]",
        group=HOW,
    )
    subject_to: str = option("", "constraints, such as comm_mb<=20", "A<=X[,B>=Y]", group=HOW)
    seeds_per_trial: int = option(
        1, "seeds per trial (default 1); a trial is judged by the mean over them", "K", small_int, group=HOW
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
        None, "a trial's length in megabytes, seconds or device seconds", "N", above_zero, group=LENGTH, rare=True
    )
    grace: float | None = option(
        None, "first rung of early stopping; default: derived from the space", "N", above_zero, group=LENGTH, rare=True
    )
    final_seeds: int = option(5, "fresh seeds for the final check (default 5)", "N", number(int, 0, FEW), group=LENGTH)
    time_budget: float | None = option(
        None, "stop the search after this long", "SECONDS", above_zero, group=LENGTH, rare=True
    )

    max_concurrent: int | None = option(
        None, "trials that run at once (default: as many as fit)", "N", positive_int, group=WHERE
    )
    cpus_per_trial: float = option(1.0, "CPUs of a trial (default 1)", "N", above_zero, group=WHERE, rare=True)
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
        rare=True,
    )
    dashboard: bool = option(True, "do not start Ray's dashboard", group=WHERE, rare=True)
    logger: tuple[str, ...] = option(
        (),
        f"log every trial to {', '.join(LOGGERS)} too; may be given several times; tensorboard costs time per round",
        "NAME",
        texts,
        choices=LOGGERS,
        group=WHERE,
        rare=True,
    )

    def workload(self) -> Workload:
        """What is trained: an algorithm by the engine, or a program; UserError for whatever is wrong with it."""
        if not self.is_program:
            if self.selects_on_test:
                raise UserError(f"--selects-on-test is for a program of yours, but got {self.algo}; leave it out")
            return super().workload()
        from fedtune.programs import workload
        from fedtune.tuning import programs

        rounds = self.fields.get("rounds")
        if naming.is_file(self.algo):
            return workload.of_file(self.algo, self.seed, self.set, self.selects_on_test, rounds)
        if naming.is_app(self.algo):
            program = programs.of_flower(self.algo, self.metric, self.vary, rounds, self.set)
            return workload.of_program(program, self.seed, {}, self.selects_on_test)
        folder = self.recorded.get("program", {}).get("folder")  # a resumed search may be started in another
        program = programs.of_command(self.algo, self.metric, self.vary, rounds, folder)
        return workload.of_program(program, self.seed, self.set, self.selects_on_test, rounds)
