"""A paper's table or figure as a grid of runs: its rows, columns and parts, and what is measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fedtune.experiment.scenario import Scenario
from fedtune.experiment.scenarios import find

# what is measured of a run -> what it is
MEASURES = {
    "accuracy": "test accuracy after the last round, %",
    "rounds": "first round with 95 % of the last round's test accuracy",
    "parameters": "thousands of numbers that all clients sent up, a round",
    "mb": "megabytes that a client sent and received, a round",
    "spread": "standard deviation of test accuracy over clients, %",
    "all_classes": "test accuracy of the same models on rows of every class, %",
    "foreign": "test accuracy on those of them whose class a client does not hold, %",
    "val": "validation accuracy after the last round, %",
    "total_mb": "megabytes that all clients sent and received, in all rounds",
}
# measures that have no table of their own, but a column beside the accuracies -> its heading
BESIDE = {
    "spread": "std over clients",
    "all_classes": "all classes",
    "foreign": "foreign classes",
    "val": "validation",
    "total_mb": "MB in all",
}

# how a paper takes a run's accuracy if not from the last round; both rules select on test rows
RULES: dict[str, tuple[str, Callable[[list[float]], float]]] = {
    "FedPA": ("mean of the five best rounds", lambda acc: sum(sorted(acc)[-5:]) / len(acc[-5:])),
    "FedSA": ("best round", max),
}


class GridRow(NamedTuple):
    """An algorithm, with its hyperparameters where they are not the defaults."""

    label: str
    algorithm: str
    config: dict[str, Any] = {}  # noqa: RUF012 - never changed
    preset: str = ""  # the preset, where a table has rows of several; empty: as_text


class Column(NamedTuple):
    """A scenario by name, the fields that differ from it, and hyperparameters."""

    label: str  # the data set first, as the paper writes it
    scenario: str
    fields: dict[str, Any] = {}  # noqa: RUF012 - never changed
    config: dict[str, Any] = {}  # noqa: RUF012 - never changed
    printed: dict[str, str] = {}  # noqa: RUF012 - measure -> the paper's column; without an entry accuracy has the label
    stands_in: str = ""  # "A for B" where data set A replaces the paper's B
    paper_rounds: int = 0  # rounds in the paper, if the table is made with others; 0: the same

    def to_scenario(self) -> Scenario:
        """The scenario of the column's runs."""
        return find(self.scenario).override(**self.fields)

    def paper_column(self, measure: str) -> str:
        """The column under which the paper prints a measure; empty if it does not."""
        return self.printed.get(measure, self.label if measure == "accuracy" else "")


class Panel(NamedTuple):
    """A part of a table or figure: every row on every column."""

    label: str
    rows: tuple[GridRow, ...]  # empty: every algorithm that can train a column's models, the best first
    columns: tuple[Column, ...]
    measures: tuple[str, ...] = ("accuracy",)
    quick: int = 20  # rounds of the quick version: enough for what is varied to have an effect
    algorithms: tuple[str, ...] = ()  # those whose rows are run; empty: all
    values: dict[str, dict[str, Any]] = {}  # noqa: RUF012 - hyperparameters by algorithm, where it has no rows

    @property
    def rounds(self) -> int:
        """The number of rounds of its longest column."""
        return max(c.to_scenario().rounds for c in self.columns)

    def scenario_of(self, column: Column) -> Scenario:
        """A column's scenario; rows of all classes are scored only if a measure of the part needs them."""
        scenario = column.to_scenario()
        return scenario if {"all_classes", "foreign"} & set(self.measures) else scenario.override(all_classes=0)


class PaperGrid(NamedTuple):
    """A table or a figure of a paper."""

    paper: str
    table: str
    varied: str
    panels: tuple[Panel, ...]
    seeds: int = 3  # runs of every figure, as many as the paper has
    note: str = ""

    @property
    def needs_every_round(self) -> bool:
        """Whether its figures are made of the test accuracies of all rounds."""
        return self.paper in RULES or any("rounds" in panel.measures for panel in self.panels)
