"""The options of runs and searches: each with its default and its help, declared once.

The command line (arguments.py), a run's record and the Python API are all made from these classes.  Building a
parser from them needs neither torch nor Ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fedtune.core.budget import UNITS
from fedtune.core.errors import UserError, shown
from fedtune.core.metrics import METRIC
from fedtune.engine.executors import EXECUTORS
from fedtune.programs.naming import is_program
from fedtune.runs.choice import CHOOSE_SEEDS, TOP
from fedtune.tuning.options.types import (
    AUTO,
    FEW,
    HEADINGS,
    HOW,
    LENGTH,
    WHAT,
    WHERE,
    above_zero,
    bounded_int,
    check,
    flag,
    gpus,
    is_mapping,
    names_of,
    option,
    options,
    pair,
    positive_int,
    small_int,
    texts,
)
from fedtune.tuning.schedulers import SCHEDULERS
from fedtune.tuning.searchers import SEARCHERS
from fedtune.user_code import user_files

if TYPE_CHECKING:
    from fedtune.core.workload import Workload
    from fedtune.experiment.experiment import Experiment

__all__ = [
    "AUTO",
    "HEADINGS",
    "LENGTH",
    "WHAT",
    "WHERE",
    "ExperimentOptions",
    "SearchOptions",
    "above_zero",
    "check",
    "flag",
    "option",
    "options",
    "pair",
    "positive_int",
]

OF_ENGINE = (
    *("scenario", "preset", "data_dir", "download", "device", "start_from", "start", "metric"),
    "executor",
)
LOOPBACK = "127.0.0.1"
SEEDS = 2**32 - 1 - 3 * FEW  # the largest seed: those that follow it, of trials, choices, checks, are to fit 32 bits
STARTS = ("common", "own")
LOGGERS = ("mlflow", "wandb")  # tools that a search can tell of its trials (fedtune/tuning/callbacks/loggers.py)


def canonical(algo: str) -> str:
    """The name of an algorithm or a program, as it stands in tables; its files are registered."""
    if is_program(algo):
        from fedtune.programs import program_file

        return program_file.read(algo).name
    from fedtune.experiment import registry

    name, _ = user_files.take_each(algo, registry.names())
    registry.find(name)
    return name


def _algorithms() -> str:
    from fedtune.experiment.registry import names

    return f"a name that fedtune list shows, or your file; FILE.py[:NAME], a program's FILE.toml, {', '.join(names())}"


def _scenarios() -> str:
    from fedtune.experiment.scenarios import DEFAULT, SCENARIOS

    return (
        f"the scenario (default {DEFAULT}); with your own --dataset: that of its name; there are {', '.join(SCENARIOS)}"
    )


@dataclass(frozen=True, kw_only=True)
class ExperimentOptions:
    """What is trained on what: the algorithm, its scenario, data and device."""

    algo: str = option("", _algorithms, "NAME|FILE", group=WHAT)
    scenario: str = option("", _scenarios, "NAME", group=WHAT)
    fields: Mapping[str, Any] = field(default_factory=dict)  # scenario fields that override the scenario's
    set: Mapping[str, Any] = option(
        {}, "fix a hyperparameter; fedtune list ALGORITHM names those there are", "NAME=VALUE", group=WHAT
    )
    preset: str = option(
        "",
        "as_text or as_published; the paper's text, or the released code's choices",
        "NAME",
        group=WHAT,
        rare=True,
    )
    seed: int = option(0, "seed of split, weights and sampling (default 0)", "N", bounded_int(0, SEEDS), group=WHAT)
    data_dir: str | None = option(
        None,
        "folder with the data sets; in torchvision's layout (default $FEDTUNE_DATA_DIR, data)",
        "DIR",
        group=WHERE,
    )
    download: bool = option(False, "download the data set if it is missing", group=WHERE)
    device: str = option("cpu", "cpu or cuda (default cpu)", "NAME", group=WHERE)
    start_from: str = option(
        "",
        "initial weights: a state_dict, or from run --save; loads every part that fits, or only PART",
        "FILE[:PART]",
        group=WHAT,
    )
    start: str = option(
        "common",
        "how clients' personal parts start: alike or not; common: from the same weights, own: each from its own "
        "(default common)",
        choices=STARTS,
        group=WHAT,
        rare=True,
    )
    metric: tuple[str, ...] = option(
        (),
        "your own metric, a Python function; it gets (scores, labels) of a client's rows; may be given several times",
        "FILE.py:NAME",
        texts,
        group=WHAT,
    )
    test_every: int = option(
        10,
        "test every N rounds and in the last (default 10); validation rows are scored in every round",
        "N",
        positive_int,
        group=LENGTH,
        rare=True,
    )
    executor: str = option(
        "auto",
        "how clients are run (default auto); stack: many at once, loop: one by one, rule: by what the code is, auto: "
        "rule for built-in code and timing for yours",
        choices=EXECUTORS,
        group=WHERE,
        rare=True,
    )
    debug: bool = option(False, "show the full traceback of an error", group=WHERE, rare=True)
    # the scenario and defaults that a record has besides its options: declarations may have changed since
    recorded: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Parse every value; UserError for one that breaks its option's rule."""
        check(self)
        if not is_mapping(self.fields):
            raise UserError(f"a scenario's fields must be names and values, but are {shown(self.fields)}")
        lists = {n: ",".join(map(str, v)) for n, v in self.fields.items() if isinstance(v, list | tuple)}
        object.__setattr__(self, "fields", dict(self.fields) | lists)  # model=["net.py:small", "cnn8"] from Python
        if self.is_program:
            self._require_of_program()
        elif not self.scenario:
            from fedtune.experiment import scenarios

            object.__setattr__(self, "scenario", scenarios.of_data(str(self.fields.get("dataset", ""))))

    def experiment(self) -> Experiment:
        """The experiment that is described; UserError for whatever is wrong with it."""
        from fedtune.core.hyper import hyperparameters
        from fedtune.engine.executors import require_device
        from fedtune.experiment import initial_weights, registry, user_metrics, user_scenario
        from fedtune.experiment.experiment import Experiment

        if self.is_program:
            raise UserError(
                f"this command is for algorithms that fedtune trains itself, but got {self.algo}, a program; "
                "take fedtune search or compare"
            )
        if not self.algo:
            raise UserError(f"--algo is needed, but none was given; there are {', '.join(registry.names())}")
        algo, own = user_files.take_each(self.algo, registry.names())
        user_files.register(own)
        cls = registry.find(algo)
        scenario, fields, files = user_scenario.taken(self.scenario, self.fields)
        own = user_files.merged(files, own)  # in this order, as those of data are described
        require_device(self.device)
        pinned, given = dict(self.set), tuple(n for n in vars(scenario) if n in fields)  # in one order
        start_from = ""
        if self.start_from:
            start_from, file = initial_weights.take(self.start_from)
            own = user_files.merged(own, [file])
        metrics, files = user_metrics.take(self.metric)
        own = user_files.merged(own, files)
        given_now = {**fields, **hyperparameters(type(scenario))}  # a record has hyperparameters among its defaults
        then = {n: v for n, v in self.recorded.get("scenario", {}).items() if n not in given_now}
        experiment = Experiment(
            algorithm=algo,
            scenario=scenario.override(**then),
            seed=self.seed,
            executor=self.executor,
            device=self.device,
            pinned=pinned,
            preset=self.preset,
            given=given,
            start=self.start,
            start_from=start_from,
            metrics=metrics,
            own=own,
            test_every=self.test_every,
            defaults=self.recorded.get("defaults", {}),
        )
        experiment.check()
        declared = hyperparameters(type(scenario)) | hyperparameters(cls)
        return replace(experiment, pinned={n: declared[n].check(v) for n, v in pinned.items()})

    def workload(self) -> Workload:
        """What is trained: an algorithm by the engine, or a program; UserError for whatever is wrong with it."""
        return self._of_program_file() if self.is_program else self.experiment()

    @property
    def is_program(self) -> bool:
        """Whether a program of the user's is trained."""
        return is_program(self.algo)

    def _of_program_file(self, on_test: bool = False) -> Workload:
        """The program of a file.  on_test: whether its figures on test rows may select."""
        from fedtune.programs import workload

        return workload.of_file(self.algo, self.seed, self.set, on_test, self.fields.get("rounds"))

    @property
    def _program(self) -> str:
        return self.algo or str(getattr(self, "flower", "") or getattr(self, "program", ""))

    def _require_of_program(self) -> None:
        """UserError for an option that says how fedtune itself trains: a program does as it wants."""
        of_engine = set(OF_ENGINE) - ({"metric"} if getattr(self, "flower", "") else set())  # a Flower app has metrics
        given = [f for f in fields(ExperimentOptions) if getattr(self, f.name) != f.default and f.name in of_engine]
        of_scenario = [n for n in self.fields if n != "rounds"]
        if given or of_scenario:
            option = flag(given[0].name if given else of_scenario[0])
            raise UserError(
                f"{option} is for algorithms that fedtune trains itself, but {self._program} is a program; say it in "
                "the program's command"
            )
        if "rounds" in self.fields:
            try:
                object.__setattr__(self, "fields", {"rounds": positive_int(self.fields["rounds"])})
            except UserError as error:
                raise UserError(f"--rounds {error}") from None

    def with_typed(self, workload: Workload) -> Self:
        """The options with the types of value that the workload declares.  Paths become absolute."""
        return replace(self, **workload.typed_options(self.fields))

    def to_record(self) -> dict[str, Any]:
        """The options as run.json holds them."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name != "recorded"}

    @classmethod
    def from_record(cls, content: Mapping[str, Any]) -> Self:
        """The options that a record holds; UserError if it has none, or unknown ones."""
        if "options" not in content:
            raise UserError("it does not say how the search was started")
        values = content["options"]
        if not isinstance(values, dict):
            raise UserError(f"the record's options must be names and values, but are {values!r}")
        if content.get("executor") and "executor" in values:
            values = values | {"executor": content["executor"]}  # the executor that was chosen for `auto`
        if strange := set(values) - {f.name for f in fields(cls) if f.name != "recorded"}:
            raise UserError(f"the record has options that this fedtune does not know: {', '.join(sorted(strange))}")
        return cls(**values, recorded=_recorded(content))


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


def _recorded(content: Mapping[str, Any]) -> dict[str, Any]:
    """A record's entries about the scenario, the defaults, the space and the program."""
    return {name: content[name] for name in ("scenario", "defaults", "space", "program") if name in content}


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value
