"""The options of runs: each with its default and its help, declared once.  Those of searches are in `search`.

The command line (arguments.py), a run's record and the Python API are all made from these classes.  Building a
parser from them needs neither torch nor Ray.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from fedtune.core.errors import UserError, shown, unknown
from fedtune.core.metrics import METRIC
from fedtune.engine.executors import EXECUTORS
from fedtune.programs import naming
from fedtune.programs.naming import is_program
from fedtune.tuning.options.types import (
    FEW,
    LENGTH,
    WHAT,
    WHERE,
    check,
    flag,
    is_mapping,
    number,
    option,
    positive_int,
    texts,
)
from fedtune.user_code import user_files

if TYPE_CHECKING:
    from fedtune.core.workload import Workload
    from fedtune.experiment.experiment import Experiment

OF_ENGINE = ("scenario", "preset", "data_dir", "download", "device", "start_from", "start", "metric", "executor")
SEEDS = 2**32 - 1 - 3 * FEW  # the largest seed: those that follow it, of trials, choices, checks, are to fit 32 bits


def canonical(algo: str) -> str:
    """The name of an algorithm or a program, as it stands in tables; its files are registered."""
    if naming.is_file(algo):
        from fedtune.programs import program_file

        return program_file.read(algo).name
    from fedtune.experiment import registry

    name, _ = user_files.take_each(algo, registry.names())
    registry.find(name)
    return name


def _algorithms() -> str:
    from fedtune.experiment.registry import names

    return (
        "an algorithm, FILE.py, or a program; a name that fedtune list shows, FILE.py[:NAME], a program's FILE.toml, "
        "its command in quotes with {lr} for a hyperparameter, a Flower app's folder (./app); there are "
        f"{', '.join(names())}"
    )


def _scenarios() -> str:
    from fedtune.experiment.scenarios import DEFAULT, SCENARIOS

    return (
        f"the scenario (default {DEFAULT}); with your own --dataset: that of its name; there are {', '.join(SCENARIOS)}"
    )


@dataclass(frozen=True, kw_only=True)
class ExperimentOptions:
    """What is trained on what: the algorithm, its scenario, data and device."""

    algo: str = option("", _algorithms, "WHAT", group=WHAT)
    scenario: str = option("", _scenarios, "NAME", group=WHAT)
    fields: Mapping[str, Any] = field(default_factory=dict)  # scenario fields that override the scenario's
    set: Mapping[str, Any] = option(
        {},
        "fix a hyperparameter, or a field of the scenario; fedtune list NAME shows the ones, --help-all the others",
        "NAME=VALUE",
        group=WHAT,
    )
    preset: str = option(
        "", "as_text or as_published; the paper's text, or the released code's choices", "NAME", group=WHAT, rare=True
    )
    seed: int = option(0, "seed of split, weights and sampling (default 0)", "N", number(int, 0, SEEDS), group=WHAT)
    data_dir: str | None = option(
        None, "folder with the data sets; in torchvision's layout (default $FEDTUNE_DATA_DIR, data)", "DIR", group=WHERE
    )
    download: bool = option(False, "download the data set if it is missing", group=WHERE, rare=True)
    device: str = option("cpu", "cpu or cuda (default cpu)", "NAME", group=WHERE)
    start_from: str = option(
        "",
        "initial weights: a state_dict, or from run --save; loads every part that fits, or only PART",
        "FILE[:PART]",
        group=WHAT,
        rare=True,
    )
    start: str = option(
        "common",
        "how clients' personal parts start: alike or not; common: from the same weights, own: each from its own "
        "(default common)",
        choices=("common", "own"),
        group=WHAT,
        rare=True,
    )
    metric: tuple[str, ...] = option(
        (),
        "your own metric: FILE.py:NAME; a function of (scores, labels) of a client's rows; of a Flower app: "
        "client:NAME; of a command: [NAME=]PATTERN of its output, with a group for the number (default name "
        f"{METRIC}); may be given several times",
        "METRIC",
        texts,
        group=WHAT,
        rare=True,
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
    # what a record says that was derived from its options, as its scenario and defaults: rules may have changed since
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
        from fedtune.engine.built_in import ENGINE
        from fedtune.engine.executors import require_device
        from fedtune.experiment import registry, user_scenario
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
        given_fields, fixed = self.split(hyperparameters(cls))
        preset = cls.presets.get(self.preset, {})
        scenario, fields, files = user_scenario.taken(self.scenario, given_fields, {**preset, **fixed})
        own = user_files.merged(files, own)
        require_device(self.device)
        start_from, metrics = "", tuple[str, ...]()
        if self.start_from:
            from fedtune.experiment import initial_weights

            start_from, file = initial_weights.take(self.start_from)
            own = user_files.merged(own, [file])
        if self.metric:
            from fedtune.experiment import user_metrics

            metrics, files = user_metrics.take(self.metric)
            own = user_files.merged(own, files)
        given_now = {**fields, **fixed, **preset}  # a record's scenario has these resolved
        then = {n: v for n, v in self.recorded.get("scenario", {}).items() if n not in given_now}
        experiment = Experiment(
            algorithm=algo,
            scenario=scenario.override(**then),
            seed=self.seed,
            executor=self.executor,
            device=self.device,
            pinned=fixed,
            preset=self.preset,
            given=tuple(n for n in vars(scenario) if n in fields),
            start=self.start,
            start_from=start_from,
            metrics=metrics,
            own=own,
            test_every=self.test_every,
            defaults=self.recorded.get("defaults", {}),
            trainer=ENGINE,
        )
        experiment.check()
        declared = hyperparameters(type(scenario)) | hyperparameters(cls)
        return replace(experiment, pinned={n: declared[n].check(v) for n, v in fixed.items()})

    def split(self, own: Collection[str] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
        """The scenario's fields that are given, also by --set, and the hyperparameters that are fixed.

        own: the algorithm's hyperparameters.  UserError for a name of --set that is none of these or is given twice.
        """
        from fedtune.core.hyper import hyperparameters
        from fedtune.experiment.scenario import FLAGS, Scenario

        names = {f.name for f in fields(Scenario)}
        pinned = {n: v for n, v in self.set.items() if n in own or n in hyperparameters(Scenario)}
        more = {n: v for n, v in self.set.items() if n not in pinned}
        for name in more:
            if name not in names:
                kind = f"hyperparameter of {self.algo}" if self.algo else "field of the scenario"
                shown = f"fedtune list {self.algo} and " * bool(own) + "fedtune run --help-all"
                raise unknown(kind, name, {*own, *names}, shown)
            if name in FLAGS:  # a scenario may depend on it, as on your own data
                raise UserError(f"--set is for what has no option of its own, but got {name}; give {flag(name)}")
            if name in self.fields:
                raise UserError(f"{name} is given once, but as a field and by --set")
        return {**self.fields, **more}, pinned

    def workload(self) -> Workload:
        """What is trained: an algorithm by the engine, or a program; UserError for whatever is wrong with it."""
        if naming.is_file(self.algo):
            from fedtune.programs import workload

            return workload.of_file(self.algo, self.seed, self.set, False, self.fields.get("rounds"))
        return self.experiment()

    @property
    def is_program(self) -> bool:
        """Whether a program of the user's is trained."""
        return is_program(self.algo)

    def _require_of_program(self) -> None:
        names = [n for n in OF_ENGINE if n != "metric" or naming.is_file(self.algo)]  # --metric is a program's, too
        given = [f.name for f in fields(ExperimentOptions) if f.name in names and getattr(self, f.name) != f.default]
        if given := [*given, *(n for n in self.fields if n != "rounds")]:
            raise UserError(
                f"{flag(given[0])} is for algorithms that fedtune trains itself, but {self.algo} is a program; say it "
                "in the program's command"
            )
        if "rounds" in self.fields:
            try:
                object.__setattr__(self, "fields", {"rounds": positive_int(self.fields["rounds"])})
            except UserError as error:
                raise UserError(f"--rounds {error}") from None

    def with_typed(self, workload: Workload) -> Self:
        """The options with the types of value that the workload declares.  Paths become absolute."""
        if naming.is_command(self.algo):
            return self
        if self.is_program:
            return replace(self, algo=str(Path(self.algo).expanduser().resolve()))
        from fedtune.experiment import user_scenario

        experiment = cast("Experiment", workload)
        typed = {n: getattr(experiment.scenario, n) for n in experiment.given}
        typed |= {n: user_files.reference(typed[n]) for n in user_scenario.known() if n in typed}
        return replace(
            self,
            algo=user_files.reference(experiment.algorithm),
            fields=typed,
            set=dict(experiment.pinned),
            start_from=user_files.reference(experiment.start_from),
            metric=tuple(map(user_files.reference, experiment.metrics)),
        )

    def to_record(self) -> dict[str, Any]:
        """The options as run.json holds them."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "recorded"}
        return {n: dict(value) if isinstance(value, Mapping) else value for n, value in values.items()}

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
        derived = ("scenario", "defaults", "space", "budget", "grace", "program")
        recorded = {n: content[n] for n in derived if n in content}
        return cls(**values, recorded=recorded)
