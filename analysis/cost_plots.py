"""Figures of accuracy against what it cost: rounds, communication or time."""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go

from fedtune.analysis.plot_tools import (
    KEYS,
    UNITS,
    form,
    hover_texts,
    in_words,
    legend_lines,
    run_of,
    text_column,
    ticks,
    with_cost,
)
from fedtune.analysis.theme import GREY, colours, finish, nothing
from fedtune.core.errors import UserError
from fedtune.core.objectives import ACCURACY, Objective, parse_recorded
from fedtune.core.terminal import several
from fedtune.runs import pareto

MOST_POINTS = 4000  # what a browser can bear


def best_so_far(
    rounds: pd.DataFrame, against: str = "rounds", trials: pd.DataFrame | None = None, objective: Objective = ACCURACY
) -> go.Figure:
    """The best value of the objective so far, against the rounds, MB or seconds that all trials together had used.

    against: rounds, mb or seconds (of training and evaluation, summed over all trials).  Rounds are ordered by the
    column `timestamp` if there is one, otherwise trial after trial in the order in which they began (that of `trials`,
    if given), which is approximate for concurrent trials.  Each of several runs has its own line.  UserError for any
    other `against`.

    >>> from fedtune.analysis import frames, plots
    >>> trials, rounds = frames.load("runs/NAME")
    >>> figure = plots.best_so_far(rounds, against="mb")
    >>> figure.write_html("best_so_far.html")
    """
    if against not in UNITS:
        raise UserError(f"`against` must be one of {', '.join(UNITS)}, but got {against}")
    axis, unit = UNITS[against]
    words, sign = in_words(objective.name), objective.sign
    title = f"Best {words} so far against {axis.split(' [')[0]}"
    scored = with_cost(rounds, against, objective.name)
    if scored.empty:
        return nothing(title, f"no round has a {words}")
    figure, runs = go.Figure(), text_column(scored, "run")
    for run, colour in colours(list(dict.fromkeys(runs))).items():
        rows = _in_order(scored[runs == run], trials)
        best = sign * (sign * rows[objective.name]).cummax()
        rise = (sign * best > (sign * best).shift(fill_value=-math.inf)).to_numpy(copy=True)
        rise[-1] = True  # so that the line goes on to the end
        used = rows["_cost"].cumsum()
        one, hover = runs.nunique() == 1, hover_texts(rows[rise])
        name = "validation" if one else run
        line = {"color": colour, "shape": "hv"}
        figure.add_scatter(
            x=used[rise],
            y=best[rise],
            name=name,
            mode="lines+markers",
            line=line,
            marker={"size": 6},
            text=hover,
            hovertemplate=f"%{{y:{form(objective.name)}}} after %{{x:,.4g}} {unit}%{{text}}<extra></extra>",
        )
        tested = rows.get(objective.tested, pd.Series(math.nan, index=rows.index))
        scored_too = rise & (rows[objective.name] == best) & tested.notna()  # test rows are not scored in every round
        if one and scored_too.any():
            figure.add_scatter(
                x=used[scored_too],
                y=tested[scored_too],
                mode="markers",
                name=f"{in_words(objective.tested)} in that round, where scored (never used)",
                marker={"color": GREY, "size": 7, "symbol": "diamond-open"},
            )
    figure.update_xaxes(title=f"used by the whole search: {axis}", rangemode="tozero")
    label = "accuracy" if objective == ACCURACY else words
    figure.update_yaxes(title=label if runs.nunique() == 1 else words, tickformat=ticks(objective.name))
    n = f"n = {several(run_of(scored).nunique(), 'trial')}, {len(scored):,} rounds"
    return finish(figure, title, n + ("" if runs.nunique() == 1 else f", {runs.nunique()} searches"), legend=1)


def _in_order(scored: pd.DataFrame, trials: pd.DataFrame | None) -> pd.DataFrame:
    """Rounds in the order in which they were trained, as far as is known."""
    if "timestamp" in scored:
        return scored.sort_values("timestamp", kind="stable")
    if trials is None or "trial" not in scored:
        return scored
    place = {name: i for i, name in enumerate(trials["trial"])}
    return scored.assign(_place=scored["trial"].map(place)).sort_values(["_place", "round"], kind="stable")


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
