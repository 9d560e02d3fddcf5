"""Several runs beside one another: what they found, how they came there, and where their settings differ."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from fedtune.analysis import plots
from fedtune.core.terminal import short
from fedtune.reporting import figures, provenance, sections, templates
from fedtune.reporting.findings import Findings
from fedtune.reporting.sections import SearchSection, TextColumn, TextTable
from fedtune.reporting.watch import history
from fedtune.runs.files import COMPARISON, kind_of

LEFT_OUT = ("folder", "command", "time", "started", "state", "machine")  # what always differs


def html(runs: dict[str, Path]) -> str:
    """The part of the page; of a comparison, its searches are shown.  UserError for what cannot be read."""
    by_run = {name: sections.read_findings(run) for name, run in _searches(runs).items()}
    parts = [_glance(f, name) for name, f in by_run.items()]
    tables = [sections.overview(parts), _configurations(by_run), _settings(by_run)]
    return templates.ENVIRONMENT.get_template("watch/together.html").render(tables=tables, figures=_figures(by_run))


def _searches(runs: dict[str, Path]) -> dict[str, Path]:
    each: dict[str, Path] = {}
    for name, run in runs.items():
        inner = history.inner_searches(run) if kind_of(run) == COMPARISON else None
        each |= {name: run} if inner is None else {f"{name}/{search.name}": search for search in inner}
    return each


def _glance(f: Findings, name: str) -> SearchSection:
    """A search's part without its figures and tables."""
    return SearchSection(
        anchor=f"/run/{name}",
        findings=f,
        figures=[],
        table="",
        provenance=provenance.of(f.record, f),
        mattered="",
        advice=[],
    )


def _figures(by_run: dict[str, Findings]) -> list[figures.Shown]:
    """The best so far, a line for each run; runs with different objectives have no such figure."""
    goals = {f.goal.first for f in by_run.values()}
    if len(goals) > 1:
        return []
    [first] = goals
    rounds = pd.concat([f.rounds.assign(run=name) for name, f in by_run.items()], ignore_index=True)
    trials = pd.concat([f.trials.assign(run=name) for name, f in by_run.items()], ignore_index=True)
    sends = any(f.sends for f in by_run.values())
    return [
        figures.drawn(
            f"Best so far against {word}",
            partial(plots.best_so_far, rounds, unit, trials, first),
            "The run whose line is on top has found the most for what it used.",
        )
        for unit, word in (("rounds", "rounds"), ("mb", "megabytes"), ("seconds", "seconds"))
        if unit != "mb" or sends
    ]


def _configurations(by_run: dict[str, Findings]) -> TextTable:
    """The best configuration of each run."""
    names = list(dict.fromkeys(name for f in by_run.values() for name in f.searched))
    rows = [[name, *(short(f.config[name]) if name in f.config else "" for f in by_run.values())] for name in names]
    return TextTable("Best configurations", _columns("hyperparameter", by_run, numeric=True), rows)


def _settings(by_run: dict[str, Findings]) -> TextTable:
    """The settings that are not the same in all runs."""
    by_name = [_settings_of(f) for f in by_run.values()]
    names = [n for n in dict.fromkeys(n for settings in by_name for n in settings) if n not in LEFT_OUT]
    rows = [[name, *(settings.get(name, "") for settings in by_name)] for name in names]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    return TextTable("Settings that differ", _columns("setting", by_run), rows)


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


def _columns(first: str, by_run: dict[str, Findings], numeric: bool = False) -> list[TextColumn]:
    return [TextColumn(first, False), *(TextColumn(name, numeric) for name in by_run)]
