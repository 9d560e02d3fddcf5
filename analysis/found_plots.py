"""The figure that a report opens with: what a search found, and what that is worth on fresh seeds."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from fedtune.analysis.plot_tools import in_words
from fedtune.analysis.theme import COLOURS, GREY, finish, nothing, see_through
from fedtune.core import statistics
from fedtune.core.metrics import limits
from fedtune.core.objectives import ACCURACY, Objective
from fedtune.core.terminal import several
from fedtune.runs import trial_states

MARKS = {  # how a trial ended, or that it lies elsewhere: its colour and symbol; others are grey
    "finished": (COLOURS[0], "circle"),
    "stopped": (COLOURS[4], "circle-open"),
    "diverged": (COLOURS[1], "x"),
    "failed": (COLOURS[1], "x"),
    (FAR := "far worse, at the edge"): (GREY, "triangle-down"),
}
FEW = 10  # trials of which each has a tick
FENCE = 1.5  # interquartile ranges beyond the worse quartile: what is worse lies at the edge (Tukey)


def found(
    trials: pd.DataFrame, objective: Objective = ACCURACY, best: str = "", final: pd.DataFrame | None = None
) -> go.Figure:
    """Every trial's last value of the objective in the order in which they began, with the best finished one so far.

    best: the trial that is marked.  final: runs on fresh seeds of the configurations best and default, which a panel
    below shows, with means and 95 % intervals.  Trials without a value, and those far worse than the others, lie at the
    edge.  Shares are in percent.

    >>> from fedtune.analysis import frames, plots
    >>> trials, rounds = frames.load("runs/NAME")
    >>> figure = plots.found(trials, best=trials["trial"][0])
    >>> figure.write_html("found.html")
    """
    words, sign = in_words(objective.name), objective.sign
    title = "What the trials found"
    scale, form, unit = statistics.unit_of(objective.name)
    value = scale * trials.get(objective.column, pd.Series(np.nan, trials.index)).astype(float)
    if value.isna().all():
        return nothing(title, f"no trial has reported a {words}")
    low, high = (sign * value).quantile([0.25, 0.75])
    edge = sign * max((sign * value).min(), low - FENCE * (high - low))
    at, place = value.fillna(edge).clip(**{"lower" if sign > 0 else "upper": edge}), np.arange(1, len(trials) + 1)
    kinds = trials["status"].astype(str).mask(value.notna() & (at != value), FAR)
    checked = final is not None and len(final) > 0
    figure = make_subplots(rows=1 + checked, cols=1, row_heights=[0.68, 0.32][: 1 + checked], vertical_spacing=0.24)
    for how in dict.fromkeys(kinds):
        of, (colour, symbol) = (kinds == how).to_numpy(), MARKS.get(how, (GREY, "circle-open"))
        shown = [f"{statistics.number(v, form)}{unit}" for v in value[of]]
        figure.add_scatter(
            x=place[of],
            y=at[of],
            mode="markers" + "+text" * (how == FAR and len(shown) <= FEW),
            name=how,
            marker={"color": colour, "symbol": symbol.replace("down", "down" if sign > 0 else "up"), "size": 8},
            text=[
                f"trial {t}, {e}: {v}" for t, e, v in zip(trials["trial"][of], trials["status"][of], shown, strict=True)
            ],
            customdata=shown,
            texttemplate="%{customdata}",
            textposition="top center" if sign > 0 else "bottom center",
            hovertemplate="%{text}<extra></extra>",
        )
    so_far = sign * (sign * value.where(trials["status"] == "finished")).cummax().ffill()
    line = {"color": COLOURS[2], "shape": "hv"}
    if so_far.notna().any():
        figure.add_scatter(x=place, y=so_far, mode="lines", name="best so far", line=line, hoverinfo="skip")
    if (named := trials["trial"] == best).any():
        ring = {"color": COLOURS[2], "symbol": "star", "size": 15}
        figure.add_scatter(x=place[named], y=at[named], mode="markers", name="best", marker=ring, hoverinfo="skip")
    figure.update_yaxes(title=f"{words}{unit and ' [%]'}", row=1, col=1)
    begun = {"range": [0.5, len(trials) + 0.5], "dtick": 1 if len(trials) <= FEW else None}
    figure.update_xaxes(title="trials in the order in which they began", row=1, col=1, **begun)
    if checked:
        _fresh(figure, final, objective)
    missing = int(value.isna().sum())
    note = f"n = {several(len(trials), 'trial')}" + f"; at the edge: {missing} without a value" * bool(missing)
    return finish(figure, title, note, height=430 if checked else 300, legend=1)


def _fresh(figure: go.Figure, final: pd.DataFrame, objective: Objective) -> None:
    """The second panel: a point per run on a fresh seed, and the mean with its interval."""
    column = objective.reported(final)
    scale, form, unit = statistics.unit_of(column)
    for name, colour in (("default", GREY), ("best", COLOURS[0])):
        runs = (of := final[final["configuration"] == name])[column].astype(float)
        mean = statistics.mean(runs)
        above, below = statistics.arms([mean.mean], [mean.half], limits(column))
        common = {"showlegend": False, "row": 2, "col": 1, "y": [name] * len(runs), "mode": "markers"}
        figure.add_scatter(
            x=scale * runs,
            marker={"color": see_through(colour, 0.5)},
            hovertemplate=f"%{{x:{form}}}{unit}<extra></extra>",
            **common,
        )
        figure.add_scatter(
            x=[scale * mean.mean],
            marker={"color": colour, "size": 11, "symbol": "diamond"},
            error_x={"array": scale * above, "arrayminus": scale * below, "thickness": 2, "width": 6},
            hovertemplate=f"{name}: {statistics.figure(column, *mean)}<extra></extra>",
            **(common | {"y": [name]}),
        )
        if lost := trial_states.lost(of, column):
            at = {"x": 1, "xref": "x2 domain", "y": name, "yref": "y2", "xanchor": "right", "yshift": 12}
            figure.add_annotation(text=lost, showarrow=False, font={"size": 11, "color": colour}, **at)
    figure.update_xaxes(title=f"{in_words(column)} on fresh seeds{unit and ' [%]'}", row=2, col=1)
