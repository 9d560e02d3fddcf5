"""The schema of a run's files: records, best.yaml, and the rows that trials log.

Each file is parsed and checked once, when it is read (`fedtune.runs.reading`); afterwards its entries have the types
below.  There is a model for each kind of record.  Every entry may be missing; undeclared ones are not checked.
"""

from __future__ import annotations

from typing import (
    Annotated,
    Any,
    Literal,
    Required,  # pydantic wants these before Python 3.12
)

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from fedtune.core.metrics import REPORTED, metrics_in

LARGEST = 2**53  # the largest whole number that all JSON readers represent

_entries = with_config(ConfigDict(strict=True, extra="allow"))


def _text(text: str) -> str:
    if "\0" in text or not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("it has a character that is not allowed in text: null, or an unpaired surrogate")
    return text


def _scalar(value: Any) -> Any:
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) <= LARGEST):
        return value
    raise ValueError(f"it must be text, a number, true, false or null, but is {_kind(value)}")


def _flat(value: Any) -> Any:
    """A scalar, a list of scalars, or a mapping to scalars."""
    inner = value if isinstance(value, list) else value.values() if isinstance(value, dict) else [value]
    for one in inner:
        _scalar(one)
    return value


def _kind(value: Any) -> str:
    return {dict: "a mapping", list: "a list", int: "too large"}.get(type(value), f"of type {type(value).__name__}")


Text = Annotated[str, AfterValidator(_text)]
Scalar = Annotated[Any, BeforeValidator(_scalar)]
Option = Annotated[Any, BeforeValidator(_flat)]
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Bound = Annotated[float, Field(allow_inf_nan=False)]


@_entries
class Hardware(TypedDict, total=False):
    """The machine that a run was started on."""

    machine: Text
    cpus: Count | None
    gpus: list[Text]
    system: Text


@_entries
class Own(TypedDict, total=False):
    """A user's file that a run uses."""

    name: Text
    path: Text
    sha256: Text
    about: dict[Text, Any]


@_entries
class ScenarioRecord(TypedDict, total=False):
    """A scenario's fields, which `Scenario` checks."""

    dataset: Text
    rounds: Positive


@_entries
class Declared(TypedDict, total=False):
    """The declaration of a hyperparameter that is searched."""

    default: Required[Scalar]
    low: Bound | None
    high: Bound | None
    log: bool
    choices: list[Scalar]
    extra_values: list[Scalar]
    symbol: Text
    help: Text


@_entries
class BudgetEntry(TypedDict):
    """A trial's budget."""

    unit: Literal["rounds", "mb", "seconds"]
    limit: Annotated[float, Field(gt=0)]
    since: Positive


@_entries
class FinalRunRecord(TypedDict, total=False):
    """A run of the final check; its other metrics are also numbers."""

    configuration: Required[Literal["best", "default"]]
    seed: Required[Count]
    test_acc: float | None
    val_acc: float | None
    reason: Required[Text]


@_entries
class CandidateRecord(TypedDict, total=False):
    """A trial that was trained on more seeds before one was named; its figures are numbers."""

    trial: Required[Text]
    reason: Required[Text]


@_entries
class GridRecord(TypedDict, total=False):
    """The part of a paper's table that a reproduction runs."""

    table: Text


@_entries
class StudyRecord(TypedDict, total=False):
    """What the records of all kinds of study may hold."""

    format: Count
    # provenance
    command: list[Text]
    options: dict[Text, Option]
    started: Text
    resumed: list[Text]
    versions: dict[Text, Text]
    git_commit: Text | None
    earlier_commits: list[Text | None]
    hardware: Hardware
    # the experiment
    algorithm: Text
    scenario: Annotated[ScenarioRecord, BeforeValidator(_flat)]
    scenario_name: Text
    program: dict[Text, Any]  # file, command, commit, interpreter
    metrics: dict[Text, dict[Text, Text]]  # of a program
    rounds: Positive
    repeatable: bool
    selects_on_test: bool
    pinned: dict[Text, Scalar]
    preset: Text
    defaults: dict[Text, Scalar]  # the value of every hyperparameter that is not searched
    scored: Text
    start: Text
    start_from: Text
    seed: Count
    executor: Text
    device: Text
    own: list[Own]
    # the search
    trials: Count
    searcher: Text
    scheduler: Text
    objectives: Annotated[list[Text], Field(min_length=1, max_length=2)]
    constraints: list[Text]
    seeds_per_trial: Positive
    choose_seeds: Positive
    budget: BudgetEntry
    grace: Amount
    rungs: list[Amount]
    concurrent: Count | None
    time_budget: Amount | None
    # the outcome
    state: Text
    reason: Text
    seconds: Amount


@_entries
class SearchRecord(StudyRecord, total=False):
    """run.json."""

    space: dict[Text, Text]
    declared: dict[Text, Declared]  # what is searched
    search_seconds: Amount
    status: dict[Text, Count]
    choice: list[Annotated[CandidateRecord, BeforeValidator(_flat)]]
    final: list[Annotated[FinalRunRecord, BeforeValidator(_flat)]] | None
    extends: Text
    replays: Text


@_entries
class ComparisonRecord(StudyRecord, total=False):
    """compare.json."""

    algorithms: Annotated[list[Text], Field(min_length=1)]
    defaults_of: dict[Text, dict[Text, Scalar]]  # for each algorithm
    seeds: Count
    top_k: Count
    unequal: list[Text]
    unlike: list[Text]
    control: list[Text]
    widened: list[Text]


@_entries
class ReproductionRecord(StudyRecord, total=False):
    """reproduce.json."""

    algorithms: Annotated[list[Text], Field(min_length=1)]
    grid: Annotated[GridRecord, BeforeValidator(_flat)]
    seeds: Count
    runs: Count


@_entries
class BestRecord(TypedDict, total=False):
    """best.yaml."""

    algorithm: Text
    scenario: Text
    overrides: dict[Text, Scalar]
    seed: Count
    hyperparameters: dict[Text, Scalar]
    start: Text
    start_from: Text
    executor: Text
    found: dict[Text, Scalar]
    own: list[Own]


@_entries
class ResultLine(TypedDict, total=False):
    """A line of a trial's result.json; it is a result if it names the trial and round.  Metrics are numbers."""

    trial_id: Required[Text]
    training_iteration: Required[Count]
    timestamp: float
    round: Count
    time_total_s: float
    config: dict[Text, Scalar]
    reason: Text
    reported: list[Text]  # names of metrics that are not declared


def _metrics(row: Any) -> Any:
    """Check that a row's metrics are numbers."""
    named = row if isinstance(row, dict) and isinstance(row.get(REPORTED, []), list) else {}
    for name, value in metrics_in(named).items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number and value is not None:
            raise ValueError(f"its {name} must be a number, but is {_kind(value)}")
    return row


@_entries
class Suggestion(TypedDict):
    """A line of suggestions.jsonl."""

    trial: Text
    config: dict[Text, Scalar]


FILES: dict[str, TypeAdapter[Any]] = {  # by the name of a file: what it holds, or each of its lines
    "run.json": TypeAdapter(SearchRecord),
    "compare.json": TypeAdapter(ComparisonRecord),
    "reproduce.json": TypeAdapter(ReproductionRecord),
    "best.yaml": TypeAdapter(BestRecord),
    "result.json": TypeAdapter(Annotated[ResultLine, BeforeValidator(_metrics)]),
    "suggestions.jsonl": TypeAdapter(Suggestion),
}


def checked(name: str, content: Any) -> dict[str, Any]:
    """The content of a file of this name, or of its line, itself; ValueError that names the first invalid entry."""
    if not isinstance(content, dict):
        raise ValueError("it is not a mapping")
    try:
        FILES[name].validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        entry = ".".join(str(part) for part in first["loc"][:4])
        text = first["msg"].removeprefix("Value error, ").removeprefix("Input ").rstrip(".")
        raise ValueError(f"its {entry}: {text[:1].lower()}{text[1:]}") from error
    return content
