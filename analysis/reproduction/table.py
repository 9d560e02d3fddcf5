"""The figures of a reproduction: what was measured in each run, and what the paper printed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fedtune.analysis.reproduction.options import OURS
from fedtune.analysis.reproduction.paper_grid import RULES, PaperGrid
from fedtune.analysis.reproduction.plan import Spot
from fedtune.core import statistics
from fedtune.experiment.experiment import built_in
from fedtune.experiment.scenario import Scenario
from fedtune.studies import published
from fedtune.studies.fresh_seeds import run_summary
from fedtune.studies.ray_tasks import Outcome, RunTask

# column of table.csv -> what it is
COLUMNS = {
    "part": "of the table or figure",
    "setting": "the column: data set first",
    "row": "as the paper names it",
    "algorithm": "ours",
    "preset": "ours (the defaults), as_text or as_published",
    "configuration": "hyperparameters that are not the defaults",
    "rounds": "of every run",
    "whole": "rounds that a run has in the paper's setting",
    "measure": "one of the measures of a run",
    "seeds": "runs",
    "diverged": "of them",
    "ours": "mean over seeds",
    "half": "half the width of its 95 % interval",
    "by_paper_rule": "the mean by the paper's own rule, which chooses rounds on test rows: no result",
    "published": "the printed figure",
    "published_spread": "what stands behind its ±",
    "stands_in": "what stands for what: then the printed figure is of other data and not comparable",
    "known": "what is known of the printed figure",
}


def printed(grid: PaperGrid, spot: Spot, measure: str) -> published.Cell | None:
    """The figure that the paper prints for a row, a column and a measure."""
    tables = (grid.table, grid.table + spot.panel.label[0])  # parts of a figure have a letter
    key = (measure, spot.row.label, spot.column.paper_column(measure))
    for cell in published.every():
        if cell.paper == grid.paper and cell.table in tables and (cell.measure, cell.printed, cell.column) == key:
            return cell
    return None


def measured(measure: str, outcome: Outcome, scenario: Scenario) -> float:
    """The value of one of MEASURES in a run, or of accuracy_HEAD; not a number if the run diverged."""
    if outcome.reason:
        return math.nan
    rows = outcome.rounds
    if measure.startswith("accuracy_"):  # the accuracy of a head, or of the only one
        return float(100 * rows[-1].get(f"test_{measure.replace('accuracy', 'acc')}", rows[-1]["test_acc"]))
    return {
        "accuracy": lambda: 100 * rows[-1]["test_acc"],
        "rounds": lambda: run_summary(outcome)["rounds_to_95"],
        "parameters": lambda: sum(r["up_floats"] for r in rows) / len(rows) / 1000,
        "mb": lambda: rows[-1]["comm_mb"] / len(rows) / scenario.clients,
        "spread": lambda: 100 * rows[-1]["test_acc_std"],
        "all_classes": lambda: 100 * rows[-1].get("test_acc_all", math.nan),
        "foreign": lambda: 100 * rows[-1].get("test_acc_foreign", math.nan),
        "val": lambda: 100 * rows[-1]["val_acc"],
        "total_mb": lambda: rows[-1]["comm_mb"],
    }[measure]()


def frame(grid: PaperGrid, spots: Sequence[Spot], outcomes: Mapping[str, Outcome]) -> pd.DataFrame:
    """A row for every row, column and measure of a grid that has been run; columns COLUMNS.

    outcomes: by the runs' labels.
    """
    rows = [
        _cell(grid, spot, measure, [outcomes[run.label] for run in spot.runs])
        for spot in _ranked(spots, outcomes)
        for measure in spot.panel.measures
        if measure not in ("rounds", "parameters") or spot.column.paper_column(measure)  # where the paper prints them
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _ranked(spots: Sequence[Spot], outcomes: Mapping[str, Outcome]) -> list[Spot]:
    """The spots by column, then as the part names its rows; if it names none, the most accurate first."""

    columns = [*dict.fromkeys((s.panel.label, s.column.label) for s in spots)]

    def place(spot: Spot) -> tuple[int, float]:
        column = columns.index((spot.panel.label, spot.column.label))
        if spot.panel.rows:
            return column, 0.0
        of_runs = [measured("accuracy", outcomes[run.label], _scenario(run)) for run in spot.runs]
        mean = statistics.mean(of_runs).mean
        return column, math.inf if math.isnan(mean) else -mean

    return sorted(spots, key=place)


def _cell(grid: PaperGrid, spot: Spot, measure: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    scenario, config = _scenario(spot.runs[0]), spot.runs[0].config
    mean = statistics.mean([measured(measure, o, scenario) for o in outcomes])
    cell, rule = printed(grid, spot, measure), math.nan
    diverged = sum(bool(o.reason) for o in outcomes)
    if grid.paper in RULES and measure == "accuracy" and not diverged:
        of_run = RULES[grid.paper][1]
        rule = sum(100 * of_run([r["test_acc"] for r in o.rounds]) for o in outcomes) / len(outcomes)
    return {
        "part": spot.panel.label,
        "setting": spot.column.label,
        "row": spot.row.label,
        "algorithm": spot.row.algorithm,
        "preset": spot.row.preset or OURS,
        "configuration": ", ".join(f"{n} = {v}" for n, v in config.items()),
        "rounds": scenario.rounds,
        "whole": spot.column.paper_rounds or scenario.rounds,
        "measure": measure,
        "seeds": len(outcomes),
        "diverged": diverged,
        "ours": mean.mean,
        "half": mean.half,
        "by_paper_rule": rule,
        "published": cell.mean if cell else math.nan,
        "published_spread": math.nan if cell is None or cell.spread is None else cell.spread,
        "stands_in": spot.column.stands_in,
        "known": "; ".join(d.short for d in cell.defects) if cell else "",
    }


def _scenario(run: RunTask) -> Scenario:
    return built_in(run.workload, "python -m fedtune.analysis.reproduce").scenario
