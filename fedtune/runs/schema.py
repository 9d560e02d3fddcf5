"""The schema of a run's files: records, best.yaml, and the rows that trials log.

Each file is checked once, when it is read (`fedtune.runs.reading`); afterwards its entries have the types below.  An
entry means the same in the records of all kinds of study.  Every entry may be missing; undeclared ones are not checked.
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
from fedtune.core.objectives import MOST

_entries = with_config(ConfigDict(strict=True, extra="allow"))


def _scalar(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    kind = "a mapping" if isinstance(value, dict) else f"of type {type(value).__name__}"
    raise ValueError(f"it must be text, a number, true, false or null, but is {kind}")


def _flat(value: Any) -> Any:
    """A scalar, a list of scalars, or a mapping to scalars."""
    for inner in value if isinstance(value, list) else value.values() if isinstance(value, dict) else [value]:
        _scalar(inner)
    return value


Scalar = Annotated[Any, BeforeValidator(_scalar)]
Flat = Annotated[Any, BeforeValidator(_flat)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Bound = Annotated[float, Field(allow_inf_nan=False)]
Names = Annotated[list[str], Field(min_length=1)]


@_entries
class Own(TypedDict, total=False):
    """A user's file that a run uses."""

    name: str
    path: str
    sha256: str
    about: dict[str, Any]


@_entries
class Declared(TypedDict, total=False):
    """The declaration of a hyperparameter that is searched."""

    default: Required[Scalar]
    low: Bound | None
    high: Bound | None
    log: bool
    choices: list[Scalar]
    extra_values: list[Scalar]


@_entries
class BudgetEntry(TypedDict):
    """A trial's budget."""

    unit: Literal["rounds", "mb", "seconds", "sim_seconds"]
    limit: Annotated[float, Field(gt=0)]
    since: Positive


def _numbers(row: Any) -> Any:
    """A row of which all but these entries are figures."""
    for name, value in row.items() if isinstance(row, dict) else ():
        if name not in ("trial", "configuration", "reason") and not isinstance(value, int | float | None):
            raise ValueError(f"its {name} must be a number, but is of type {type(value).__name__}")
    return row


@_entries
class ChoiceRow(TypedDict):
    """A trial that was trained on more seeds, with its figure on each, and the mean of every objective."""

    trial: str
    own: float
    reason: str


@_entries
class FinalRunRecord(TypedDict, total=False):
    """A run of the final check; its other metrics are also numbers."""

    configuration: Required[Literal["best", "default"]]
    seed: Required[Count]
    test_acc: float | None
    val_acc: float | None
    reason: Required[str]


@_entries
class StudyRecord(TypedDict, total=False):
    """run.json, compare.json or reproduce.json."""

    # provenance
    command: list[str]
    options: dict[str, Flat]
    started: str
    resumed: list[str]
    versions: dict[str, str]
    git_commit: str | None
    earlier_commits: list[str | None]
    hardware: dict[str, Any]
    # the experiment
    algorithm: str
    algorithms: Names
    scenario: dict[str, Scalar]  # its fields, which `Scenario` checks
    scenario_name: str
    program: dict[str, Any]  # file, command, commit, interpreter
    metrics: dict[str, dict[str, str]]  # of a program
    rounds: Positive
    repeatable: bool
    selects_on_test: bool
    pinned: dict[str, Scalar]
    defaults: dict[str, Scalar]  # the value of every hyperparameter that is not searched
    defaults_of: dict[str, dict[str, Scalar]]  # for each algorithm of a comparison
    seed: Count
    executor: str
    own: list[Own]
    # the search
    space: dict[str, str]
    declared: dict[str, Declared]  # what is searched
    trials: Count
    searcher: str
    scheduler: str
    objectives: Annotated[Names, Field(max_length=MOST)]
    constraints: list[str]
    seeds_per_trial: Positive
    choose_seeds: Positive
    budget: BudgetEntry
    grace: Amount
    rungs: list[Amount]
    concurrent: Count | None
    time_budget: Amount | None
    extends: str
    replays: str
    # a comparison or a reproduction
    searches: Positive
    seeds: Count
    top_k: Count
    margin: Amount
    control: list[str]
    lender: str
    borrowers: list[str]
    grid: dict[str, Scalar]  # the part of a paper's table that is run
    runs: Count
    # the outcome
    state: str
    reason: str
    seconds: Amount
    status: dict[str, Count]
    choice: list[Annotated[ChoiceRow, AfterValidator(_numbers)]]
    final: list[Annotated[FinalRunRecord, AfterValidator(_numbers)]] | None
    unequal: list[str]
    unlike: list[str]
    unborrowed: list[str]
    widened: list[str]


@_entries
class BestRecord(TypedDict, total=False):
    """best.yaml."""

    algorithm: str
    scenario: str
    overrides: dict[str, Scalar]
    seed: Count
    hyperparameters: dict[str, Scalar]
    start: str
    start_from: str
    executor: str
    found: dict[str, Scalar]
    own: list[Own]


@_entries
class ResultLine(TypedDict, total=False):
    """A line of a trial's result.json; it is a result if it names the trial and round.  Metrics are numbers."""

    trial_id: Required[str]
    training_iteration: Required[Count]
    timestamp: float
    round: Count
    time_total_s: float
    config: dict[str, Scalar]
    reason: str
    reported: list[str]  # names of metrics that are not declared


def _metrics(row: Any) -> Any:
    for name, value in metrics_in(row).items() if isinstance(row.get(REPORTED, []), list) else ():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError(f"its {name} must be a number, but is of type {type(value).__name__}")
    return row


@_entries
class Suggestion(TypedDict):
    """A line of suggestions.jsonl."""

    trial: str
    config: dict[str, Scalar]


RECORD = TypeAdapter(StudyRecord)
FILES: dict[str, TypeAdapter[Any]] = {  # by the name of a file that is no record: what it holds, or each of its lines
    "best.yaml": TypeAdapter(BestRecord),
    "result.json": TypeAdapter(Annotated[ResultLine, BeforeValidator(_metrics)]),
    "suggestions.jsonl": TypeAdapter(Suggestion),
}


def checked(name: str, content: Any) -> dict[str, Any]:
    """The content of a file of this name, or of its line, itself; ValueError that names the first invalid entry."""
    if not isinstance(content, dict):
        raise ValueError("it is not a mapping")
    try:
        FILES.get(name, RECORD).validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        entry = ".".join(str(part) for part in first["loc"][:4])
        text = first["msg"].removeprefix("Value error, ").removeprefix("Input ").rstrip(".")
        raise ValueError(f"its {entry}: {text[:1].lower()}{text[1:]}") from error
    return content
