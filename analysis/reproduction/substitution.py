"""Variants of a paper's table: on another data set, with other rounds and seeds, or small."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedtune.analysis.reproduction.paper_grid import Column, Panel, PaperGrid
from fedtune.core.errors import UserError, unknown
from fedtune.data import datasets
from fedtune.experiment.scenario import Scenario
from fedtune.nn import catalogue

SEEDS = 2  # in a quick version
LEAST_ALPHA = 0.05  # below it ten classes leave some of twenty clients without rows
# data set of few rows -> the share of GFPL's rows per class that it has for 20 clients, and further fields
FEW: dict[str, tuple[float, dict[str, int]]] = {
    "digits": (0.08, {"val_shots": 4, "test_shots": 4, "batch": 4}),
    "mnist-5k": (0.2, {"val_shots": 8, "test_shots": 12}),  # as in gfpl-mnist5k-w4
}


def on(grid: PaperGrid, dataset: str) -> PaperGrid:
    """The table on one data set: its own columns of it, or else those of its first data set with this in its place.

    Columns that are the same on the new data set become one column, without published figures.  UserError for a table
    whose bodies were pretrained on another data set.
    """
    own = [p._replace(columns=tuple(c for c in p.columns if c.to_scenario().dataset == dataset)) for p in grid.panels]
    if own := [p for p in own if p.columns]:
        return grid._replace(panels=tuple(own))
    for s in (c.to_scenario() for p in grid.panels for c in p.columns):
        if s.pretrained != "none":
            raise UserError(
                f"this table's bodies were trained on {s.dataset} ({s.pretrained}), but got --dataset {dataset}; leave "
                "--dataset out"
            )
    first = grid.panels[0].columns[0].to_scenario()
    parts = [p for p in grid.panels if p.columns[0].to_scenario().dataset == first.dataset]
    placed = [p._replace(columns=_placed(p, dataset)) for p in parts]
    notes = [grid.note, *_notes(parts, dataset)]
    return grid._replace(panels=tuple(placed), note="; ".join(filter(None, notes)))


def quick(grid: PaperGrid, every_column: bool = False) -> PaperGrid:
    """A small version with real runs: few rounds, two seeds; the first, middle and last column of each part, or all."""
    panels = []
    for p in grid.panels:
        last = len(p.columns) - 1
        numbers = range(last + 1) if every_column else sorted({0, (last + 1) // 2, last})
        panels.append(lasting(p._replace(columns=tuple(p.columns[i] for i in numbers)), p.quick))
    return grid._replace(panels=tuple(panels), seeds=min(SEEDS, grid.seeds))


def parts(grid: PaperGrid, names: Sequence[str]) -> PaperGrid:
    """The parts with these names (a figure's letters, a table's data sets); UserError for one that does not exist."""
    labels = [p.label.partition(":")[0] for p in grid.panels]
    for name in names:
        if name not in labels:
            raise unknown("part", name, labels)
    return grid._replace(panels=tuple(p for p, name in zip(grid.panels, labels, strict=True) if name in names))


def lasting(panel: Panel, rounds: int) -> Panel:
    """The part with this many rounds in its longest column, and proportionally many in the others."""
    share = rounds / panel.rounds
    columns = (
        c._replace(fields=c.fields | {"rounds": max(1, round(share * had))}, paper_rounds=c.paper_rounds or had)
        for c in panel.columns
        for had in [c.to_scenario().rounds]
    )
    return panel._replace(columns=tuple(columns))


def fields(scenario: Scenario, dataset: str) -> dict[str, Any]:
    """The fields that change with the data set: the model, if images have another shape, and the partition.

    Clients that were celebrities hold shares of the classes instead.  Of a data set of few rows clients get few.
    """
    shape, tiny = datasets.describe(dataset)[:3], dataset == "digits"
    out: dict[str, Any] = {"dataset": dataset, "skip_classes": 0}
    if shape != datasets.describe(scenario.dataset)[:3]:
        out |= {"model": _model(scenario, shape), "features": 0}
    if scenario.partition in ("fedgen", "natural"):
        out |= {"partition": "fedgen", "floor": 5 if tiny else 10}
        out |= {"share": 1.0, "clients": 10, "batch": 16} if tiny else {}
    if dataset in FEW and scenario.partition == "ways-shots":
        share, others = FEW[dataset]
        rows = {"shots": max(2, round(share * scenario.shots)), "shots_spread": round(share * scenario.shots_spread)}
        out |= rows | others
    if tiny and scenario.partition == "dirichlet":
        out |= {"floor": 9}
    return out


def _placed(panel: Panel, dataset: str) -> tuple[Column, ...]:
    """The part's columns on the other data set; those that become the same are one."""
    columns: dict[tuple[Any, ...], Column] = {}
    for c in panel.columns:
        if _too_skewed(c, dataset):
            continue
        original, _, rest = c.label.partition(", ")
        new = c._replace(
            label=f"{dataset}, {rest}",
            fields=c.fields | fields(c.to_scenario(), dataset),
            printed={"accuracy": c.label} | c.printed,
            stands_in=f"{dataset} for {original}",
        )
        key = (new.to_scenario(), *new.config.items())
        same = columns.get(key)
        columns[key] = same._replace(label=f"{same.label} / {rest}", printed={"accuracy": ""}) if same else new
    return tuple(columns.values())


def _too_skewed(column: Column, dataset: str) -> bool:
    """Whether the label skew needs more classes than the data set has: some clients would get no rows."""
    scenario = column.to_scenario()
    fewer = datasets.describe(dataset)[3] < datasets.describe(scenario.dataset)[3]
    return scenario.partition == "fedgen" and scenario.alpha < LEAST_ALPHA and fewer


def _notes(parts: Sequence[Panel], dataset: str) -> list[str]:
    """Sentences on what differs from the paper's scenario although the labels do not say so."""
    columns = [c for p in parts for c in p.columns]
    partition, notes = columns[0].to_scenario().partition, []
    if dataset in FEW and partition == "ways-shots":
        share = f"{100 * FEW[dataset][0]:g} %"
        notes.append(f"on {dataset} a client has {share} of the rows a class that a label or the paper says")
    if dataset == "digits" and partition in ("fedgen", "natural"):
        notes.append("the digits are partitioned whole, among ten clients, whatever share a label names")
    if partition == "natural":
        alpha = columns[0].to_scenario().alpha
        notes.append(f"clients hold no celebrities but shares of the classes, Dirichlet {alpha:g}")
    left = [c.label.partition(", ")[2] for c in columns if _too_skewed(c, dataset)]
    return [*notes, *(f"{label} is left out, as so few classes cannot be partitioned so" for label in left)]


def _model(scenario: Scenario, shape: tuple[int, ...]) -> str:
    """The model that takes the place of the scenario's on images of another shape."""
    colour = shape[0] == 3
    if scenario.model in catalogue.FAMILIES:
        return scenario.model if colour else "htmini3"
    if shape == (1, 8, 8):
        return "cnn8"
    if scenario.partition in ("fedgen", "natural"):
        return "fedgen-cnn"
    return {"ways-shots": "resnet18", "dirichlet": "mcmahan-cnn"}[scenario.partition] if colour else "fedproto-cnn"
