"""Figures of a search as an Optuna study: Optuna's own, in this project's style, of comparable trials."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from fedtune.analysis.importances import (
    Importance,
    comparable,
    comparable_study,
    described,
    judged_by,
    lacks,
    metric_of,
    note,
    shares_of,
    varied,
)
from fedtune.analysis.theme import COLOURS, SCALE, finish, nothing
from fedtune.core.metrics import METRIC, in_words
from fedtune.core.statistics import unit_of

if TYPE_CHECKING:
    import optuna

WIDE = 22  # letters of a line of an axis: the panels are not high


def parallel(study: optuna.Study | None) -> go.Figure:
    """Parallel coordinates: a line per trial through its hyperparameters, coloured by the objective.

    >>> from fedtune.analysis import plots
    >>> figure = plots.parallel(plots.study("runs/NAME"))
    >>> figure.write_html("parallel.html")
    """
    what = judged_by(study)
    title = f"Every trial's hyperparameters and {what}"
    if why := lacks(study, "parallel"):
        return nothing(title, why)
    import optuna.visualization as charts

    assert study is not None
    figure = _with_our_lines(charts.plot_parallel_coordinate(comparable_study(study), **_target(study)))
    lines = list(figure.select_traces({"mode": "lines"}))
    low, high = (0, 1) if what == "accuracy" else (min(li.y[0] for li in lines), max(li.y[0] for li in lines) + 1e-12)
    for line in lines:  # Optuna's palest are hardly seen; y[0]: the objective
        line.line.color = sample_colorscale(SCALE, 1 - (line.y[0] - low) / (high - low))[0]
    several_values = len({value for _, value in comparable(study)[0]}) > 1
    look = {"colorscale": SCALE, "reversescale": True, "showscale": several_values}  # one value has no scale
    look["colorbar"] = {"title": {"text": _target(study)["target_name"]}}
    figure.update_traces(marker=look, selector={"mode": "markers"})
    same = "" if several_values else f"; all have the same {what}"
    return finish(figure, title, f"{described(study)}; from the left: {what}, then the hyperparameters{same}")


def slices(study: optuna.Study | None) -> go.Figure:
    """The objective against each hyperparameter by itself, a point per trial.

    >>> from fedtune.analysis import plots
    >>> figure = plots.slices(plots.study("runs/NAME"))
    >>> figure.write_html("slices.html")
    """
    what = judged_by(study)
    title = f"{what[:1].upper()}{what[1:]} against each hyperparameter"
    if why := lacks(study, "slices"):
        return nothing(title, why)
    import optuna.visualization as charts

    assert study is not None
    # all in one row, which is too narrow for more than three
    flat = _with_our_lines(charts.plot_slice(comparable_study(study), **_target(study)))
    rows = math.ceil(len(flat.data) / 2)
    figure = make_subplots(rows=rows, cols=2, shared_yaxes=True, horizontal_spacing=0.05, vertical_spacing=0.32 / rows)
    for i, trace in enumerate(flat.data):
        axis = flat.layout["xaxis" + (str(i + 1) if i else "")]
        figure.add_trace(trace, row=i // 2 + 1, col=i % 2 + 1)
        decades = math.log10(max(trace.x) / min(trace.x)) if axis.type == "log" else 0
        figure.update_xaxes(
            title=axis.title.text,
            type=axis.type,
            row=i // 2 + 1,
            col=i % 2 + 1,
            dtick=None if axis.type != "log" else 1 if decades > 1.2 else "D2",
        )
    figure.update_traces(marker={"color": COLOURS[0], "opacity": 0.7, "size": 7, "showscale": False})
    figure.update_yaxes(title=_target(study)["target_name"], col=1)
    return finish(figure, title, described(study), height=60 + 230 * rows)


def importance(study: optuna.Study | None, result: Importance | None = None) -> go.Figure:
    """What share of the objective's variance each hyperparameter explains by itself: fANOVA, by Optuna's evaluator.

    result: what `mattered` returned for this study, if it was called before.

    >>> from fedtune.analysis import plots
    >>> figure = plots.importance(plots.study("runs/NAME"))
    >>> figure.write_html("importance.html")
    """
    what = judged_by(study)
    title = f"Share of {what}'s variance by hyperparameter (fANOVA)"
    if why := lacks(study, "importance"):
        return nothing(title, why)
    assert study is not None
    shares = result.shares if result else shares_of(study)
    if not shares:
        return nothing(title, f"all trials have the same {what} or the same hyperparameters")
    names = list(shares)[::-1]  # the largest on top
    values = [shares[name] for name in names]
    figures = [f"{share:.0%}" if share >= 0.01 else "<1%" for share in values]
    bars = go.Bar(x=values, y=names, orientation="h", text=figures, textposition="outside", cliponaxis=False)
    figure = go.Figure(bars).update_traces(marker_color=COLOURS[0], hovertemplate="%{y}: %{x:.1%}<extra></extra>")
    figure.update_xaxes(title="share of variance", tickformat="~%", range=[0, 1.2 * max(values)])  # room for the figure
    text = result.note if result else note(study)
    return finish(figure, title, text, height=110 + 34 * len(varied(study)))


def _with_our_lines(figure: go.Figure) -> go.Figure:
    """Optuna's figure, whose texts have lines as ours do."""
    for trace in figure.data:
        for name in ("text", "hovertext"):
            if trace[name] is not None and not isinstance(trace[name], str):
                trace[name] = [str(text).replace("<br>", "\n") for text in trace[name]]
    return figure


def _target(study: optuna.Study) -> dict[str, Any]:
    """What Optuna's figures show of a trial, and its name on an axis: the objective, a share in percent."""
    metric = metric_of(study)
    scale, _, unit = unit_of(metric)
    words = "val. accuracy" if metric == METRIC else "\n".join(textwrap.wrap(in_words(metric), WIDE))
    return {"target": lambda t: scale * t.values[0], "target_name": words + f" [{unit.strip()}]" * bool(unit)}
