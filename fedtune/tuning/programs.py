"""The program that a command line describes: a command with patterns for its metrics, and a search space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ray.tune.search.sample import Categorical, Domain

from fedtune.core.errors import UserError
from fedtune.core.metrics import METRIC
from fedtune.experiment import registry
from fedtune.programs import program_file
from fedtune.programs.program_file import Program
from fedtune.tuning import domains
from fedtune.tuning.space_types import When
from fedtune.user_code import user_files

DEFAULT = "default"  # the space where none is given


def of_command(command: str, patterns: Sequence[str], space: str, rounds: int | None, folder: str | None) -> Program:
    """The program of a command line; UserError for whatever is wrong with it.

    patterns: `[NAME=]PATTERN` of each metric.  space: a space file, by whose names the command has braces.  folder:
    where it runs, if not in the current one.
    """
    if rounds is None or not patterns:
        missing = "--rounds" if rounds is None else "--metric PATTERN"
        raise UserError(f"a command needs {missing}, but it was not given; or write a program file")
    metrics, run_folder = dict(_metric(text) for text in patterns), folder or str(Path.cwd())
    entries = {"metrics": metrics, "space": _space(space), "rounds": rounds, "folder": run_folder}
    return program_file.of_option(command=command, **entries)


def of_flower(folder: str, metrics: Sequence[str], space: str, rounds: int | None, fixed: Mapping[str, Any]) -> Program:
    """The Flower app of a command line; UserError for whatever is wrong with it.

    metrics: client:NAME, server:NAME or train:NAME.  space: a space file, by keys of the app's run config; by default
    nothing is searched.
    """
    if not metrics:
        raise UserError("a Flower app needs --metric client:NAME, the figure that selects, but none was given")
    entries: dict[str, Any] = {
        "metrics": {name: {} for name in metrics},
        "space": {} if space == DEFAULT else _space(space),
        "rounds": rounds,
        "defaults": dict(fixed) or None,
    }
    return program_file.of_option(flower=str(Path(folder).expanduser().absolute()), **entries)


def _metric(text: str) -> tuple[str, dict[str, Any]]:
    """A metric from `NAME=PATTERN`, or from a pattern alone, which is validation accuracy."""
    name, equals, pattern = text.partition("=")
    return (name, {"pattern": pattern}) if equals and name.isidentifier() else (METRIC, {"pattern": text})


def _space(name: str) -> Mapping[str, Any]:
    """A space file's domains in words, which say what the command's names in braces may be."""
    path, _, member = name.partition(".py:")
    if not name.endswith(".py") and not member:
        raise UserError(f"a command needs --space FILE.py, but got {name}; or write a program file")
    file, _ = user_files.take(f"{path}.py" if member else path)
    spaces = registry.members(user_files.load(file, "search space"))
    member = member or ("SPACE" if "SPACE" in spaces else "default")
    raw = spaces.get(member)
    if not isinstance(raw, dict) or not all(isinstance(value, Domain | When) for value in raw.values()):
        raise UserError(
            f"the space of a command must be a dict of Ray Tune's ranges and choices, but {member} in "
            f"{Path(name).name} is not; for example SPACE = {{'lr': tune.loguniform(0.001, 0.3)}}"
        )
    return {name: _words(name, value) for name, value in raw.items()}


def _words(name: str, value: Domain | When) -> Any:
    if isinstance(value, When):
        words = _words(name, value.domain)
        kind = "choices" if isinstance(words, list) else "range"
        return {kind: words, "when": {other: list(values) for other, values in value.condition.items()}}
    if isinstance(value, Categorical):
        return list(value.categories)
    return domains.range_of(value).text()
