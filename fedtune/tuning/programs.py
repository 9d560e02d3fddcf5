"""The program that a command line describes: a command or a Flower app, its metrics, and what is searched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtune.core.errors import UserError
from fedtune.core.hyper import plain_value
from fedtune.core.metrics import METRIC
from fedtune.programs import program_file
from fedtune.programs.program_file import Program


def of_command(
    command: str, patterns: Sequence[str], vary: Sequence[str], rounds: int | None, folder: str | None
) -> Program:
    """The program of a command; UserError for whatever is wrong with it.

    patterns: `[NAME=]PATTERN` of each metric.  vary: as of --vary, by the names that the command has in braces.
    folder: where it runs, if not in the current one.
    """
    for missing, given in (("--rounds", rounds), ("--metric PATTERN", patterns), ("--vary NAME=RANGE", vary)):
        if not given:
            raise UserError(f"a command needs {missing}, but it was not given; or write a program file")
    metrics, run_folder = dict(_metric(text) for text in patterns), folder or str(Path.cwd())
    return program_file.of_option(
        command=command, metrics=metrics, space=_space(vary), rounds=rounds, folder=run_folder
    )


def of_flower(
    folder: str, metrics: Sequence[str], vary: Sequence[str], rounds: int | None, fixed: Mapping[str, Any]
) -> Program:
    """The Flower app in a folder; UserError for whatever is wrong with it.

    metrics: client:NAME, server:NAME or train:NAME.  vary: as of --vary, by keys of the app's run config.
    """
    if not metrics:
        raise UserError("a Flower app needs --metric client:NAME, the figure that selects, but none was given")
    return program_file.of_option(
        flower=str(Path(folder).expanduser().absolute()),
        metrics={name: {} for name in metrics},
        space=_space(vary),
        rounds=rounds,
        defaults=dict(fixed) or None,
    )


def _metric(text: str) -> tuple[str, dict[str, Any]]:
    name, equals, pattern = text.partition("=")
    return (name, {"pattern": pattern}) if equals and name.isidentifier() else (METRIC, {"pattern": text})


def _space(vary: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in vary:
        name, _, written = text.partition("=")
        found[name] = [plain_value(word.strip()) for word in written.split("|")] if "|" in written else written
    return found
