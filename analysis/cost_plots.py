"""Figures of accuracy against what it cost: rounds, communication or time."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from fedtune.analysis.plot_tools import (
    KEYS,
    form,
    hover_texts,
    in_words,
    legend_lines,
    run_of,
    text_column,
    ticks,
)
from fedtune.analysis.theme import GREY, SCALE, colours, finish, nothing
from fedtune.core.metrics import METRICS, is_share, label
from fedtune.core.objectives import ACCURACY, Objective, parse_recorded
from fedtune.core.statistics import figure as figured
from fedtune.core.statistics import unit_of
from fedtune.core.terminal import several
from fedtune.runs import pareto

MOST_POINTS = 4000  # what a browser can bear
MOST_LINES = 60  # what an eye can follow


def accuracy_communication(
    rounds: pd.DataFrame,
    objective: str | Objective = "comm_mb",
    by: str | None = None,
    reference: float | None = None,
    first: Objective = ACCURACY,
) -> go.Figure:
    """Every round of every trial: validation accuracy against communication (or seconds), with the Pareto front.

    by: a column of rounds that separates groups (default: algorithm or run where there are several); each group has its
    own front.  Rounds of several seeds are averaged first, so that no front consists of lucky seeds.  The hypervolume's
    reference point is accuracy 0 at `reference` (default: the most that any round used).  first: the objective to show
    instead of accuracy; its worst value in any round is then the reference.

    >>> from fedtune.analysis import frames, plots
    >>> trials, rounds = frames.load("runs/NAME")
    >>> figure = plots.accuracy_communication(rounds)
    >>> figure.write_html("accuracy_communication.html")
    """
    second = parse_recorded(str(objective))
    name, words = in_words(second.name), in_words(first.name)
    title = f"{words[:1].upper()}{words[1:].split(' [')[0]} against {name.split(' [')[0]}, every round"
    points, seeds, left = _scored(rounds, [first.name, second.name])
    if points.empty:
        return nothing(title, f"no round has both a {words} and {name.split(' [')[0]}{left}")
    by = by or next((c for c in ("algorithm", "run") if points.get(c, pd.Series()).nunique() > 1), None)
    group = text_column(points, by) if by else pd.Series("rounds", index=points.index)
    worst = _worst(points, second) if reference is None else reference
    lower_end = 0.0 if first == ACCURACY else _worst(points, first)
    figure, volumes = go.Figure(), []
    each = MOST_POINTS // group.nunique()
    for value, colour in colours(list(dict.fromkeys(group))).items():
        rows = points[group == value]
        sample = rows.iloc[:: math.ceil(len(rows) / each)]
        best = pareto.front(rows, [first, second])
        volume = pareto.hypervolume(rows, [first, second], [lower_end, worst])
        volumes.append(f"{value} {volume:.4g}" if by else f"{volume:.4g}")
        figure.add_scatter(
            x=sample[second.name],
            y=sample[first.name],
            mode="markers",
            name=str(value),
            legendgroup=str(value),
            showlegend=not by,
            marker={"color": colour if by else GREY, "size": 5, "opacity": 0.4},
            text=hover_texts(sample),
            hovertemplate=f"%{{y:{form(first.name)}}} at %{{x:.4g}} {name[-3:-1].strip('[')}%{{text}}<extra></extra>",
        )
        figure.add_scatter(
            x=best[second.name],
            y=best[first.name],
            mode="lines+markers",
            legendgroup=str(value),
            name=str(value) if by else f"Pareto front: {several(len(best), 'round')}",
            line={"color": colour, "shape": "hv", "width": 2.5},
            marker={"size": 6},
            text=hover_texts(best),
            hovertemplate=f"front: %{{y:{form(first.name)}}} at %{{x:.4g}}%{{text}}<extra></extra>",
        )
    figure.update_xaxes(title=name, rangemode="tozero").update_yaxes(title=words, tickformat=ticks(first.name))
    unit = f" {METRICS[second.name].unit}".rstrip() if second.name in METRICS else ""
    at = "accuracy 0" if first == ACCURACY else f"{words} {lower_end:.4g}"
    box = f" of {worst:.4g}" * (first == ACCURACY) + f", reference point: {at} at {worst:.4g}{unit}"
    thinned = "" if len(points) <= MOST_POINTS else f"; about {MOST_POINTS:,} of them drawn"
    what = f"configurations, means of {several(seeds, 'seed')}" if seeds else "trials"
    n = f"n = {points['trial'].nunique()} {what}, {len(points):,} rounds{thinned}"
    note = f"{n}{left}; hypervolume {', '.join(volumes)}{box}"
    return finish(figure, title, note, legend=legend_lines(list(dict.fromkeys(group))))


def tradeoffs(rounds: pd.DataFrame, objectives: Sequence[Objective]) -> go.Figure:
    """The rounds on the Pareto front of several objectives as parallel coordinates: a line each, better further up.

    >>> from fedtune.analysis import frames, plots
    >>> from fedtune.core.objectives import parse
    >>> trials, rounds = frames.load("runs/NAME")
    >>> figure = plots.tradeoffs(rounds, parse("val_acc,comm_mb,seconds"))
    >>> figure.write_html("tradeoffs.html")
    """
    names = [o.name for o in objectives]
    title = f"The Pareto front of all {len(names)} objectives"
    points, seeds, left = _scored(rounds, names)
    if points.empty:
        return nothing(title, f"no round has all of {', '.join(map(label, names))}{left}")
    best = pareto.front(points, objectives)
    shown = best.iloc[np.unique(np.linspace(0, len(best) - 1, MOST_LINES).round().astype(int))]
    gains = np.column_stack([o.sign * best[o.name] for o in objectives])
    low, span = gains.min(0), np.ptp(gains, axis=0)
    heights = np.where(span > 0, (gains[shown.index] - low) / np.where(span > 0, span, 1), 0.5)
    texts = [", ".join(f"{label(n)} {figured(n, row[n])}" for n in names) for row in shown.to_dict("records")]
    axes, figure = list(range(len(names))), go.Figure()
    for height, text in zip(heights, map("".join, zip(texts, hover_texts(shown), strict=True)), strict=True):
        figure.add_scatter(
            x=axes,
            y=height,
            text=[text] * len(axes),
            hovertemplate="%{text}<extra></extra>",
            line={"color": sample_colorscale(SCALE, 1 - height[0])[0], "width": 1.5},
            marker={"size": 5},
            opacity=0.8,
            showlegend=False,
        )
    for axis, objective in enumerate(objectives):
        for at, end, shift in ((1, gains.max(0), 12), (0, low, -12)):
            text = figured(objective.name, objective.sign * end[axis])
            figure.add_annotation(x=axis, y=at, text=text, showarrow=False, yshift=shift)
    words = ["\n".join(textwrap.wrap(in_words(n), 13)) for n in names]
    figure.update_xaxes(tickvals=axes, ticktext=words, tickangle=0, range=[-0.3, len(names) - 0.7])
    figure.update_yaxes(visible=False, range=[-0.12, 1.12])
    n = f"n = {several(len(best), 'round')}" + f", {len(shown)} of them drawn" * (len(shown) < len(best)) + left
    n += f", means of {several(seeds, 'seed')}" * bool(seeds)
    return finish(figure, title, f"{n}; the darker, the better in {label(names[0])}", height=380)


def price(rounds: pd.DataFrame, first: Objective, other: Objective) -> str:
    """What a point or unit of the first objective costs of another along their Pareto front, in a sentence.

    In steps towards the best: half of the way, half of what is left, again, and the rest; "" without a second point.
    """
    points, *_ = _scored(rounds, [first.name, other.name])
    best = pareto.front(points, [first, other]) if len(points) else points
    if len(best) < 2:
        return ""
    left = first.sign * (best[first.name].iloc[-1] - best[first.name])
    steps = best.loc[list(dict.fromkeys((left <= share * left[0]).idxmax() for share in (1, 0.5, 0.25, 0.125, 0)))]
    scale, times = unit_of(first.name)[0], unit_of(other.name)[0]
    each = (times * other.sign * steps[other.name].diff()).abs() / (scale * steps[first.name].diff()).abs()
    unit = METRICS[other.name].unit if other.name in METRICS else ""
    unit = unit or f"{'points ' * is_share(other.name)}of {label(other.name)}"
    values = [figured(first.name, v) for v in steps[first.name]]
    way = "up" if first.sign > 0 else "down"
    parts = [f"{price:.3g} {unit} {way} to {value}" for price, value in zip(each[1:], values[1:], strict=True)]
    one = "further point" if is_share(first.name) else "unit"
    return f"From {values[0]} on, each {one} of {label(first.name)} costs {', then '.join(parts)}."


def _scored(rounds: pd.DataFrame, names: list[str]) -> tuple[pd.DataFrame, int, str]:
    """The rounds with finite values of all metrics, total seconds, means over seeds; their number; what is left out."""
    points = rounds.assign(trial=run_of(rounds)).reset_index(drop=True) if len(rounds) else rounds
    points = pareto.with_totals(points) if "seconds" in names and len(points) else points
    seeds = points["seed"].nunique() if "seed" in points else 0
    points = _over_seeds(points, run_of(rounds.drop(columns="seed"))) if seeds else points
    points = points.dropna(subset=names) if set(names) <= set(points) else points.iloc[:0]
    finite = points[np.isfinite(points.reindex(columns=names).astype(float)).all(axis=1)]
    rest = len(points) - len(finite)
    return finite, seeds, f"; {several(rest, 'round')} without bound left out" * bool(rest)


def _worst(points: pd.DataFrame, objective: Objective) -> float:
    return float(objective.sign * (objective.sign * points[objective.name]).min())


def _over_seeds(points: pd.DataFrame, who: pd.Series) -> pd.DataFrame:
    """The mean of each configuration's seeds, round by round.  who: which configuration each round is of."""
    points = points.drop(columns="seed").assign(trial=who.to_numpy())
    keys = [k for k in KEYS if k in points]
    return points.groupby([*keys, "round"], as_index=False, sort=False).mean(numeric_only=True)
