"""What can be asked of a run and of a search: every option with its default and its help, declared once.

The command line (fedtune/arguments.py), a run's record and the Python API are all made from these classes.  Building a
parser from them needs neither torch nor Ray.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Self

from fedtune.core.budget import UNITS
from fedtune.core.errors import UserError, unknown
from fedtune.core.metrics import METRIC, OBJECTIVES
from fedtune.federated.executors import EXECUTORS
from fedtune.tuning.schedulers import SCHEDULERS
from fedtune.tuning.searchers import SEARCHERS

if TYPE_CHECKING:
    from fedtune.federated.experiment import Experiment

DEFAULT_SCENARIO = "digits-w4"
LOOPBACK = "127.0.0.1"
AUTO = "auto"  # --gpus-per-trial: measured


def positive(value: Any) -> int:
    """A whole number of at least 1; UserError otherwise."""
    return _number(value, int, "a whole number of at least 1", lambda n: n >= 1)


def above_zero(value: Any) -> float:
    """A number above 0; UserError otherwise."""
    return _number(value, float, "a number above 0", lambda n: 0 < n < math.inf)


def whole(value: Any) -> int:
    """A whole number; UserError otherwise."""
    return _number(value, int, "a whole number")


def real(value: Any) -> float:
    """A number; UserError otherwise."""
    return _number(value, float, "a number")


def gpus(value: Any) -> float | str:
    """A number, or auto; UserError otherwise."""
    return AUTO if value == AUTO else _number(value, float, f"a number, or {AUTO}")


def _number(value: Any, kind: type, rule: str, holds: Callable[[Any], bool] = lambda n: True) -> Any:
    try:
        number = kind(value)
        if isinstance(value, bool) or not (isinstance(value, str) or number == value or value != value):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"must be {rule}, but got {value!r}") from None
    if not holds(number):
        raise UserError(f"must be {rule}, but got {value!r}")
    return number


def option(
    default: Any, help: str | Callable[[], str], metavar: str | None = None, parse: Callable[[Any], Any] | None = None,
    choices: Sequence[str] = (), group: str = "",
) -> Any:  # fmt: skip
    """A dataclass field that is an option.

    help      what it does, or what says so when a parser is built.
    parse     its value from text or from Python; raises UserError with the rule that it breaks.
    group     the heading in --help under which it stands.
    """
    about = {"help": help, "metavar": metavar, "parse": parse, "choices": choices, "group": group}
    if default == {}:
        return field(default_factory=dict, metadata=about)
    return field(default=default, metadata=about)


def flag(name: str, default: Any = None) -> str:
    """An option as it is typed: --no-dashboard for what is on by itself."""
    return ("--no-" if default is True else "--") + name.replace("_", "-")


def _algorithms() -> str:
    from fedtune.federated.registry import names

    return f"algorithm: {', '.join(names())}"


def _scenarios() -> str:
    from fedtune.federated.scenarios import SCENARIOS

    return f"setting (default {DEFAULT_SCENARIO}): {', '.join(SCENARIOS)}"


@dataclass(frozen=True)
class ExperimentOptions:
    """What is trained on what: the algorithm, its setting, data and device."""

    algo: str = option("", _algorithms, "NAME")
    scenario: str = option(DEFAULT_SCENARIO, _scenarios, "NAME")
    fields: Mapping[str, Any] = field(default_factory=dict)  # scenario fields that override the scenario's
    set: Mapping[str, Any] = option({}, "pin a hyperparameter; see fedtune list", "NAME=VALUE")
    preset: str = option("", "as_text (the defaults) or as_published (the released code's choices)", "NAME")
    seed: int = option(0, "seed of partition, initialisation and sampling (default 0)", "N", whole)
    data_dir: str | None = option(None, "torchvision's layout (default $FEDTUNE_DATA_DIR, data)", "DIR")
    download: bool = option(False, "fetch the data set if it is not there")
    device: str = option("cpu", "cpu or cuda")
    executor: str = option("auto", "how clients run (default: by a rule)", choices=EXECUTORS)
    debug: bool = option(False, "show the stack of an error")

    def __post_init__(self) -> None:
        """Parse every value; UserError for one that breaks its option's rule."""
        check(self)
        if self.seed < 0:
            raise UserError(f"--seed must not be negative, but got {self.seed}")

    def experiment(self) -> Experiment:
        """The experiment that is described; UserError for whatever is wrong with it."""
        from fedtune.core.hyper import knobs
        from fedtune.federated import registry, scenarios
        from fedtune.federated.experiment import Experiment, require_device
        from fedtune.nn import catalogue

        if not self.algo:
            raise UserError(f"--algo is needed, but none was given; there are {', '.join(registry.names())}")
        cls = registry.find(self.algo)
        model, files = catalogue.take(str(self.fields["model"])) if "model" in self.fields else ("", ())
        named = {"model": model} if model else {}
        scenario = scenarios.find(self.scenario).override(**self.fields | named)
        require_device(self.device)
        pinned, given = dict(self.set), tuple(n for n in vars(scenario) if n in self.fields)  # in one order
        experiment = Experiment(self.algo, scenario, self.seed, self.executor, self.device, pinned, self.preset, given)
        experiment.check()
        known = knobs(type(scenario)) | knobs(cls)
        return replace(experiment, pinned={n: known[n].check(v) for n, v in pinned.items()})

    def with_typed(self, experiment: Experiment) -> Self:
        """The same options with the types that the experiment's scenario and algorithm give to their values."""
        typed = {n: getattr(experiment.scenario, n) for n in self.fields}
        return replace(self, fields=typed, set=dict(experiment.pinned))

    def to_record(self) -> dict[str, Any]:
        """The options as run.json holds them."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_record(cls, content: Mapping[str, Any]) -> Self:
        """The options that a record holds, or the command line of a record of fedtune 0.1.0; UserError for neither."""
        if "options" not in content:
            words = content.get("arguments")
            if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
                raise UserError("it does not say how the search was begun")
            return cls.from_arguments(words)
        values = content["options"]
        if not isinstance(values, dict):
            raise UserError(f"the record's options must be names and values, but are {values!r}")
        if strange := set(values) - {f.name for f in fields(cls)}:
            raise UserError(f"the record's options are not known here: {', '.join(sorted(strange))}")
        return cls(**values)

    @classmethod
    def from_arguments(cls, words: Sequence[str]) -> Self:
        """The options of a command line as fedtune 0.1.0 recorded it; UserError for one that it never wrote."""
        from fedtune.federated.scenario import Scenario

        own = {flag(f.name, f.default): f for f in options(cls)}
        of_scenario = {flag(f.name): f.name for f in fields(Scenario)}
        values: dict[str, Any] = {}
        overridden: dict[str, str] = {}
        pinned: dict[str, str] = {}
        for name, value in _pairs(words, own, [*own, *of_scenario]):
            if name in of_scenario:
                overridden[of_scenario[name]] = value
            elif name == "--set":
                pinned |= [pair(value)]
            else:
                switch = isinstance(own[name].default, bool)
                values[own[name].name] = not own[name].default if switch else value
        return cls(**values, fields=overridden, set=pinned)


@dataclass(frozen=True)
class SearchOptions(ExperimentOptions):
    """A search: an experiment, what is searched and how, and the machine that it runs on."""

    space: str = option("default", "default, paper, wide, or a file", "NAME|FILE.py[:NAME]", group="search")
    also: str | None = option(
        None, "additional hyperparameters to search, e.g. lr=0.001..0.3", "NAME[=LOW..HIGH],…", group="search"
    )
    trials: int | None = option(None, "configurations (default 32; a grid: all of it)", "N", positive, group="search")
    scheduler: str = option("asha", f"one of {', '.join(SCHEDULERS)} (default asha)", group="search")
    searcher: str | None = option(None, f"one of {', '.join(SEARCHERS)} (default tpe; grid for a grid)", group="search")
    objective: str = option(
        METRIC, f"{METRIC}, or it and one of {', '.join([*OBJECTIVES][1:])}: then a front is found",
        "A[,B]", group="search",
    )  # fmt: skip
    seeds_per_trial: int = option(
        1, "seeds that each trial is trained on; it is judged by their means (default 1)", "K", positive, group="search"
    )
    budget_unit: str = option("rounds", "what a trial uses up, and rungs lie in", choices=UNITS, group="search")
    budget: float | None = option(None, "megabytes or seconds of a trial", "N", above_zero, group="search")
    grace: float | None = option(None, "first rung (default: derived from the space)", "N", above_zero, group="search")
    final_seeds: int = option(3, "fresh seeds of the final check (default 3)", "N", whole, group="search")
    time_budget: float | None = option(None, "stop the search after this long", "SECONDS", real, group="search")

    max_concurrent: int | None = option(None, "trials at once (default: what fits)", "N", positive, group="machine")
    cpus_per_trial: float = option(1.0, "default 1", "N", real, group="machine")
    gpus_per_trial: float | str = option(0.0, "a fraction, or auto; default 0", "N", gpus, group="machine")
    name: str | None = option(None, "of the run's folder (default: algorithm, scenario and time)", group="machine")
    storage_path: str = option("runs", "where the run's folder goes (default runs)", "DIR", group="machine")
    address: str | None = option(
        None, "of a Ray cluster: auto, host:port or ray://host:port (default: start one here)", group="machine"
    )
    dashboard: bool = option(True, "do not start Ray's dashboard", group="machine")
    dashboard_host: str = option(LOOPBACK, f"where the dashboard listens (default {LOOPBACK})", "HOST", group="machine")
    tensorboard: bool = option(False, "TensorBoard event files too; they cost time per round", group="machine")

    def __post_init__(self) -> None:
        """Check what can be told without data, algorithm or machine; UserError otherwise."""
        super().__post_init__()
        for name in ("cpus_per_trial", "gpus_per_trial", "final_seeds"):
            value = getattr(self, name)
            if value == AUTO:
                continue
            if not math.isfinite(value) or value < 0 or (value == 0 and name == "cpus_per_trial"):
                rule = "above 0" if name == "cpus_per_trial" else "at least 0"
                raise UserError(f"{flag(name)} must be {rule}, but got {value:g}")
        if self.time_budget is not None and not self.time_budget > 0:
            raise UserError(f"--time-budget must be above 0 seconds, but got {self.time_budget:g}")
        share = self.gpus_per_trial
        if isinstance(share, float) and share > 1 and share != int(share):
            raise UserError(f"--gpus-per-trial must be a fraction below 1 or a whole number, got {share:g}")


def check(given: Any) -> None:
    """Parse every value of a dataclass of options in place; UserError for one that breaks its option's rule."""
    for f in options(type(given)):
        value, about = getattr(given, f.name), f.metadata
        if value is None and f.default is None:
            continue
        try:
            if about["parse"]:
                object.__setattr__(given, f.name, about["parse"](value))
            elif about["choices"] and value not in about["choices"]:
                raise unknown("choice", str(value), about["choices"])
        except UserError as error:
            raise UserError(f"{flag(f.name)} {error}") from None


def options(cls: type) -> Iterator[Field[Any]]:
    """The fields of a class that are options by themselves: all but the scenario's fields."""
    return (f for f in fields(cls) if "help" in f.metadata)


def pair(text: str) -> tuple[str, str]:
    """NAME=VALUE as a name and a value; UserError otherwise."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise UserError(f"--set needs NAME=VALUE, but got {text!r}; for instance --set lr=0.05")
    return name, value


def _pairs(
    words: Sequence[str], own: Mapping[str, Field[Any]], known: Collection[str]
) -> Iterator[tuple[str, str]]:  # fmt: skip
    """The arguments of a command line and their values, abbreviated as argparse allows."""
    rest = iter(words)
    for word in rest:
        typed, equals, value = word.partition("=")
        fits = [typed] if typed in known else [name for name in known if name.startswith(typed)]
        if not typed.startswith("--") or len(fits) != 1:
            raise UserError(f"the recorded command line holds {word!r}, which is no option of a search")
        switch = fits[0] in own and isinstance(own[fits[0]].default, bool)
        given = value if switch or equals else next(rest, None)
        if given is None:
            raise UserError(f"the recorded command line ends with {word!r}, which needs a value")
        yield fits[0], given


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value
