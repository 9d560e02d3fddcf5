"""Figures of accuracy against what it cost: rounds, communication or time."""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go

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
from fedtune.analysis.theme import GREY, colours, finish, nothing
from fedtune.core.objectives import ACCURACY, Objective, parse_recorded
from fedtune.core.terminal import several
from fedtune.runs import pareto

MOST_POINTS = 4000  # what a browser can bear


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
    title = f"{words[:1].upper()}{words[1:]} against {name.split(' [')[0]}, every round"
    points, seeds = _scored(rounds, [first.name, second.name])
    if points.empty:
        return nothing(title, f"no round has both a {words} and {name.split(' [')[0]}")
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
    unit = {"seconds": " s", "comm_mb": " MB"}.get(second.name, "")
    at = "accuracy 0" if first == ACCURACY else f"{words} {lower_end:.4g}"
    box = f"of {worst:.4g}, reference point: {at} at {worst:.4g}{unit}"
    thinned = "" if len(points) <= MOST_POINTS else f"; about {MOST_POINTS:,} of them drawn"
    what = f"configurations, means of {several(seeds, 'seed')}" if seeds else "trials"
    n = f"n = {points['trial'].nunique()} {what}, {len(points):,} rounds{thinned}"
    note = f"{n}; hypervolume {', '.join(volumes)} {box}"
    return finish(figure, title, note, legend=legend_lines(list(dict.fromkeys(group))))


def _scored(rounds: pd.DataFrame, names: list[str]) -> tuple[pd.DataFrame, int]:
    """The rounds that have both metrics, totals for seconds, means over seeds; and how many seeds there are."""
    points = rounds.assign(trial=run_of(rounds)).reset_index(drop=True) if len(rounds) else rounds
    points = pareto.with_totals(points) if "seconds" in names and len(points) else points
    seeds = points["seed"].nunique() if "seed" in points else 0
    points = _over_seeds(points, run_of(rounds.drop(columns="seed"))) if seeds else points
    return points.dropna(subset=names) if set(names) <= set(points) else points.iloc[:0], seeds


def _worst(points: pd.DataFrame, objective: Objective) -> float:
    return float(objective.sign * (objective.sign * points[objective.name]).min())


def _over_seeds(points: pd.DataFrame, who: pd.Series) -> pd.DataFrame:
    """The mean of each configuration's seeds, round by round.  who: which configuration each round is of."""
    points = points.drop(columns="seed").assign(trial=who.to_numpy())
    keys = [k for k in KEYS if k in points]
    return points.groupby([*keys, "round"], as_index=False, sort=False).mean(numeric_only=True)
