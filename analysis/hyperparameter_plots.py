"""Figures of a search by its hyperparameters: the effect of one alone, and of two together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from fedtune.analysis.plot_tools import better, form, in_words, quantiles, short, ticks, title_of
from fedtune.analysis.theme import COLOURS, SCALE, finish, nothing
from fedtune.core import statistics
from fedtune.core.metrics import limits
from fedtune.core.terminal import several
from fedtune.runs.tables import CONFIG


def effect(
    trials: pd.DataFrame,
    name: str,
    measures: Sequence[str] = ("last_val_acc", "last_test_acc"),
    costs: Sequence[str] = (),
    rounds: pd.DataFrame | None = None,
) -> go.Figure:
    """Metrics against one hyperparameter, over the trials of a grid that differ only in it.

    Their other hyperparameters have the grid's commonest values.  Trials that a scheduler stopped are left out, because
    they trained for a shorter time, unless no trial finished.  measures: columns of the trials, by default accuracies.
    costs: columns of a second panel below, for instance comm_mb.  rounds: if given, and with several seeds per trial,
    bars show the standard errors of the measures that have one.

    >>> from fedtune.analysis import frames, plots
    >>> trials, _ = frames.load("runs/GRID")
    >>> figure = plots.effect(trials, "components")
    >>> figure.write_html("effect.html")
    """
    column, title = CONFIG + name, f"The effect of {name} alone"
    if column not in trials:
        return nothing(title, f"{name} was not searched")
    others = [c for c in trials if c.startswith(CONFIG) and c != column]
    line = _equally_trained(trials[trials["rounds"] > 0])
    for other in others:
        common = trials[other].mode(dropna=False)
        if len(common):
            value = common.iloc[0]
            line = line[line[other].isna() if pd.isna(value) else line[other] == value]
    line = line.dropna(subset=[column]).sort_values(column)
    if line[column].nunique() < 2:
        return nothing(title, f"fewer than two trials differ in {name} alone")
    rows = 2 if costs else 1
    figure = make_subplots(rows=rows, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    drawn = [*((m, 1) for m in measures), *((c, 2) for c in costs)]
    for (measure, row), colour in zip(drawn, COLOURS, strict=False):
        label = in_words(measure)
        figure.add_scatter(
            x=line[column],
            y=line[measure],
            mode="lines+markers",
            name=label,
            row=row,
            col=1,
            marker={"size": 8},
            line={"color": colour},
            error_y=_error_bars(line, rounds, measure),
        )
    unit = in_words(measures[0]) if len(measures) == 1 else ""
    label = "accuracy" if all("_acc" in m for m in measures) else unit
    scales = {ticks(m): form(m) for m in measures}  # where only some are shares, none is in percent
    tick, hover = next(iter(scales.items())) if len(scales) == 1 else ("", "")
    figure.update_yaxes(title=label, tickformat=tick, hoverformat=hover, row=1, col=1)
    if costs:
        figure.update_yaxes(title=in_words(costs[0]), rangemode="tozero", row=2, col=1)
    _scale_axis(figure, line[column])
    figure.update_xaxes(title=name, row=rows, col=1)
    same = ", ".join(f"{c.removeprefix(CONFIG)} = {short(line[c].iloc[0])}" for c in others)
    bars = "; bars: standard errors" if any(t.error_y.array is not None for t in figure.data) else ""
    note = f"n = {several(len(line), 'trial')}" + (f", all with {same}" if same else "") + bars
    return finish(figure, title, note, height=400 + 120 * (rows - 1), legend=1)


def interaction(
    trials: pd.DataFrame, first: str, second: str, value: str = "last_val_acc", mode: str = ""
) -> go.Figure:
    """A pair of hyperparameters: best and mean value of the trials in each cell, with their count.

    If no cell has two trials, best and mean are the same and only one is drawn.

    value: another column of trials, say last_val_loss or comm_mb.  mode: "min" or "max", which is better, where the
    metric's declaration does not say.  Numbers of more than six values are cut into five cells of equal count.  Trials
    that a scheduler stopped are left out, for their values are of shorter training, unless none finished.

    >>> from fedtune.analysis import frames, plots
    >>> trials, rounds = frames.load("runs/NAME")
    >>> figure = plots.interaction(trials, "lam", "lr")
    >>> figure.write_html("interaction.html")
    """
    title = f"{title_of(value)}: {first} × {second}"
    if not {CONFIG + first, CONFIG + second} <= set(trials):
        return nothing(title, f"{first} and {second} were not both searched")
    comparable = _equally_trained(trials.dropna(subset=[CONFIG + first, CONFIG + second, value]))
    if len(comparable) < 2:
        return nothing(title, f"it needs at least two trials with a {in_words(value)}, but there are {len(comparable)}")
    x, y = (_in_cells(comparable[CONFIG + name]) for name in (first, second))
    cells = pd.DataFrame({"x": x, "y": y, "value": comparable[value]})
    best = mode or better(value.removeprefix("last_").removeprefix("best_"))
    scale, digits = (100, ".1f") if ticks(value) else (1, ".3g")
    table = cells.groupby(["y", "x"], observed=False)["value"].agg([best, "mean", "count"])
    panels = {best: "best" if best == "max" else "least", "mean": "mean"} if table["count"].max() > 1 else {best: ""}
    figure = make_subplots(
        rows=len(panels), cols=1, subplot_titles=list(panels.values()), shared_xaxes=True, vertical_spacing=0.08
    )
    low, high = table[[best, "mean"]].min(axis=None), table[[best, "mean"]].max(axis=None)
    for at, what in enumerate(panels, 1):
        grid, counts = table[what].unstack("x"), table["count"].unstack("x").fillna(0).astype(int)
        text = [
            [
                f"{scale * v:{digits}}{' %' * bool(ticks(value))}\nn = {n}" if n else ""
                for v, n in zip(*row, strict=True)
            ]
            for row in zip(grid.to_numpy(), counts.to_numpy(), strict=True)
        ]
        figure.add_heatmap(
            z=grid,
            x=[short(c) for c in grid.columns],
            y=[short(i) for i in grid.index],
            text=text,
            texttemplate="%{text}",
            textfont={"size": 11},
            coloraxis="coloraxis",
            xgap=2,
            ygap=2,
            row=at,
            col=1,
            hovertemplate=f"{first} %{{x}}, {second} %{{y}}: %{{z:{form(value)}}}<extra></extra>",
        )
    figure.update_layout(
        coloraxis={
            "colorscale": SCALE,
            "cmin": low,
            "cmax": high,
            "colorbar": {"thickness": 12, "tickformat": ticks(value)},
        }
    )
    figure.update_xaxes(type="category", showgrid=False).update_xaxes(title=first, row=len(panels))
    figure.update_yaxes(title=second, type="category", showgrid=False)
    what = "finished trials" if (comparable["status"] == "finished").all() else "trials, none of them finished,"
    note = f"n = {len(comparable)} {what} of {len(trials)}; each cell: the value and how many trials"
    return finish(figure, title, note, height=80 + 260 * len(panels), panels=len(panels) > 1)


def _equally_trained(trials: pd.DataFrame) -> pd.DataFrame:
    """Trials of comparable training: the finished ones, or if there are none, all that neither diverged nor failed."""
    fine = trials[~trials["status"].isin(["diverged", "failed"])]
    over = fine[fine["status"] == "finished"]
    return fine if over.empty else over


def _in_cells(values: pd.Series) -> pd.Series:
    if not pd.api.types.is_numeric_dtype(values) or values.nunique() <= 6:
        return values
    return quantiles(values, 5)


def _error_bars(trials: pd.DataFrame, rounds: pd.DataFrame | None, measure: str) -> dict[str, Any]:
    """Standard errors in the last round of each of these trials, where there are several seeds."""
    column = f"{measure.removeprefix('last_')}_se"
    if rounds is None or column not in rounds or rounds[column].isna().all():
        return {}
    errors = trials["trial"].map(rounds.groupby("trial")[column].last())
    above, below = statistics.arms(trials[measure], errors, limits(measure.removeprefix("last_")))
    return {"array": above, "arrayminus": below, "thickness": 1.2, "width": 4}


def _scale_axis(figure: go.Figure, values: pd.Series) -> None:
    """A logarithmic axis where values span decades; a category where they are words."""
    if not pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values):
        figure.update_xaxes(type="category")
    elif values.min() > 0 and values.max() / values.min() >= 50:
        figure.update_xaxes(type="log", dtick=1)
