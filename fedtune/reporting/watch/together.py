"""The report below a live page: a run's own; or of several what they found, how, and where their settings differ."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from fedtune.core.terminal import short
from fedtune.reporting import figures, provenance, sections, templates
from fedtune.reporting.findings import Findings
from fedtune.reporting.templates import TextTable
from fedtune.reporting.watch import history, pages
from fedtune.runs.files import COMPARISON, kind_of

LEFT_OUT = ("folder", "command", "time", "started", "state", "machine")  # what always differs


def html(runs: Mapping[str, Path]) -> str:
    """A run's report; of several, what they found beside one another.  UserError for what cannot be read."""
    if len(runs) == 1:
        [(name, run)] = runs.items()
        part = sections.read(run, "run", with_searches=False, logs=pages.log_links(name, run))
        return templates.part("drawn", part, time.time())
    by_run = {name: sections.read_findings(run) for name, run in _searches(runs).items()}
    glances = sections.overview({pages.run_address(name): sections.glance(f) for name, f in by_run.items()})
    return templates.part("together", [glances, _configurations(by_run), _settings(by_run)], _figures(by_run))


def _searches(runs: Mapping[str, Path]) -> dict[str, Path]:
    """The runs by name; in place of a comparison, its searches."""
    each: dict[str, Path] = {}
    for name, run in runs.items():
        if kind_of(run) == COMPARISON:
            each |= {f"{name}/{search.name}": search for search in history.inner_searches(run)}
        else:
            each[name] = run
    return each


def _figures(by_run: dict[str, Findings]) -> list[figures.Shown]:
    """The best so far, a line for each run; runs with different objectives have no such figure."""
    goals = {f.goal.first for f in by_run.values()}
    if len(goals) > 1:
        return []
    [first] = goals
    rounds = pd.concat([f.rounds.assign(run=name) for name, f in by_run.items()], ignore_index=True)
    trials = pd.concat([f.trials.assign(run=name) for name, f in by_run.items()], ignore_index=True)
    sends = any(f.sends for f in by_run.values())
    sentence = "The run whose line is on top has found the most for what it used."
    return figures.best_so_far(rounds, trials, first, sends, sentence)


def _configurations(by_run: dict[str, Findings]) -> TextTable:
    """The best configuration of each run."""
    names = list(dict.fromkeys(name for f in by_run.values() for name in f.searched))
    rows = [[name, *(short(f.config[name]) if name in f.config else "" for f in by_run.values())] for name in names]
    return TextTable("Best configurations", ["hyperparameter", *by_run], rows, ("hyperparameter",))


def _settings(by_run: dict[str, Findings]) -> TextTable:
    """The settings that are not the same in all runs."""
    by_name = [_settings_of(f) for f in by_run.values()]
    names = [n for n in dict.fromkeys(n for settings in by_name for n in settings) if n not in LEFT_OUT]
    rows = [[name, *(settings.get(name, "") for settings in by_name)] for name in names]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    return TextTable("Settings that differ", ["setting", *by_run], rows, ["setting", *by_run])


def _settings_of(f: Findings) -> dict[str, str]:
    """Settings by name: where the numbers come from, the scenario's fields, and what was searched."""
    origin = provenance.of(f.record, f)
    space: dict[str, Any] = f.record.get("space") or {}
    return (
        {"algorithm": str(f.record["algorithm"])}
        | dict(origin.rows)
        | {name: str(value) for name, value in origin.scenario}
        | {f"{name}, searched": str(over) for name, over in space.items()}
    )
