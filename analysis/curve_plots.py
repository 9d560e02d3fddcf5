"""Figures of a metric round by round."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from fedtune.analysis.plot_tools import better, form, in_words, legend_lines, quantiles, run_of, ticks, title_of
from fedtune.analysis.theme import COLOURS, band, colours, finish, nothing
from fedtune.core import statistics
from fedtune.core.metrics import limits
from fedtune.core.terminal import several
from fedtune.runs.tables import CONFIG

DASHES = ["solid", "dash", "dot"]
MOST_GROUPS, MOST_LINES = 8, 200  # what a figure, and a browser, can bear


def learning_curves(
    rounds: pd.DataFrame,
    trials: pd.DataFrame | None = None,
    by: str | Sequence[str] | None = None,
    metric: str = "val_acc",
    mode: str = "",
) -> go.Figure:
    """A metric against rounds: a line per run, or with `by` the mean and spread of the runs that share a value.

    by: columns of rounds or of trials (a hyperparameter's `config/` can be left out).  Colours show the first column,
    dashes the others; numbers of more than eight values are cut into quarters.  Without `by`, rounds of several
    algorithms are grouped by algorithm and configuration, and a search's five best trials are highlighted.
    mode: "min" or "max", which is better, where the metric's declaration does not say.

    >>> from fedtune.analysis import frames, plots
    >>> trials, rounds = frames.load("runs/NAME")
    >>> figure = plots.learning_curves(rounds, trials, by="components")
    >>> figure.write_html("learning_curves.html")
    """
    title = f"{title_of(metric)} round by round"
    scored = rounds.dropna(subset=[metric]).reset_index(drop=True) if metric in rounds else rounds.iloc[:0]
    if scored.empty:
        return nothing(title, f"no round has a {in_words(metric)}")
    if by is None and scored.get("algorithm", pd.Series()).nunique() > 1:
        by = [c for c in ("algorithm", "configuration") if scored.get(c, pd.Series()).nunique() > 1]
    if by is None:
        return _every_run(scored, metric, title, (mode or better(metric)) == "min")
    names = [_full_name(name, scored, trials) for name in ([by] if isinstance(by, str) else by)]
    words = [_group_names(scored, trials, name) for name in names]
    group = pd.Series(list(zip(*words, strict=True)), index=scored.index)
    group = group.where(pd.concat(words, axis=1).notna().all(axis=1))
    shown = [g for g in dict.fromkeys(group.loc[_sorted_rounds(scored, trials, names)]) if isinstance(g, tuple)]
    if not shown:
        return nothing(title, f"no run has a value of {', '.join(map(in_words, names))}")
    paint = colours(list(dict.fromkeys(g[0] for g in shown))[:MOST_GROUPS])
    dashes = dict(zip(dict.fromkeys(g[1:] for g in shown), DASHES, strict=False))
    drawn = [g for g in shown if g[0] in paint and g[1:] in dashes]
    figure, who = go.Figure(), run_of(scored)
    for g in drawn:
        rows = scored[group == g]
        table = _mean_curve(rounds[run_of(rounds).isin(set(who[rows.index]))], metric)
        label = f"{', '.join(g)} (n = {who[rows.index].nunique()})"
        line = {"color": paint[g[0]], "dash": dashes[g[1:]]}
        _mean(figure, table, label, line, len(drawn) <= MOST_GROUPS, metric)
    left_out = f"; {len(shown) - len(drawn)} more groups left out" if len(shown) > len(drawn) else ""
    figure.update_xaxes(title="round").update_yaxes(title=in_words(metric), tickformat=ticks(metric))
    return finish(
        figure,
        f"{title}, by {', '.join(map(in_words, names))}",
        f"n = {several(who.nunique(), 'run')}; mean ± standard deviation over the runs that got that far{left_out}",
        legend=legend_lines([", ".join(g) + "(n = 5)" for g in drawn]),
    )


def _mean_curve(rounds: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Mean, spread and count of a metric over runs, in each round for which all runs that trained it have a value.

    Test rows are not scored in every round, and some runs are tested in rounds where others are not.  A mean over only
    some runs would jump.  If no round has values of all runs, every round with a value is used.
    """
    table = rounds.groupby("round")[metric].agg(["mean", "std", "count", "size"]).reset_index()
    complete = table["count"] == table["size"]
    return table[complete if complete.any() else table["count"] > 0]


def _every_run(scored: pd.DataFrame, metric: str, title: str, ascending: bool) -> go.Figure:
    """A line per run: grey, but for the five that end best."""
    who, (what, label) = run_of(scored), _labels(scored)
    last = scored.groupby(who)[metric].last().sort_values(ascending=ascending)
    rest, best = list(last.index[5:]), list(last.index[:5])
    rest = rest[:: math.ceil(len(rest) / MOST_LINES)] if rest else rest
    figure, by_run = go.Figure(), {name: rows for name, rows in scored.groupby(who)}
    if rest:
        gap = pd.DataFrame({"round": [None], metric: [None]})
        line = pd.concat([part for name in rest for part in (by_run[name][["round", metric]].astype(object), gap)])
        figure.add_scatter(
            x=line["round"],
            y=line[metric],
            mode="lines",
            name=f"{len(rest)} other{'s' if len(rest) > 1 else ''}",
            line={"color": "#BBBBBB", "width": 1},
            hoverinfo="skip",
        )
    for name, colour in zip(best, COLOURS, strict=False):
        rows = by_run[name]
        figure.add_scatter(
            x=rows["round"],
            y=rows[metric],
            name=f"{label[name]} ({statistics.figure(metric, last[name])})",
            mode="lines" if len(rows) > 1 else "markers",
            line={"color": colour},
        )
    figure.update_xaxes(title="round")
    figure.update_yaxes(title=in_words(metric), tickformat=ticks(metric), hoverformat=form(metric))
    more = "" if len(rest) + len(best) == len(last) else f"; {len(rest) + len(best)} of them drawn"
    ends = "one that ends best" if len(best) == 1 else f"{len(best)} that end best"
    note = f"n = {len(last)} {what}{'s' if len(last) > 1 else ''}{more}; in colour the {ends}"
    return finish(figure, f"{title}, every {what}", note, legend=legend_lines([*(label[n] for n in best), "others"]))


def _labels(scored: pd.DataFrame) -> tuple[str, dict[str, str]]:
    """What a line is, a trial or a run on a seed, and each one's name in a legend, by what run_of calls it."""
    keys = [k for k in ("configuration", "trial", "seed") if k in scored]
    words = ["seed " + scored[k].astype(str) if k == "seed" else scored[k].astype(str) for k in keys]
    names = [", ".join(row) for row in zip(*words, strict=True)] if words else run_of(scored)
    return "run" if "seed" in keys else "trial", dict(zip(run_of(scored), names, strict=True))


def _full_name(name: str, scored: pd.DataFrame, trials: pd.DataFrame | None) -> str:
    columns = {*scored, *(() if trials is None else trials)}
    return CONFIG + name if name not in columns and CONFIG + name in columns else name


def _group_names(scored: pd.DataFrame, trials: pd.DataFrame | None, name: str) -> pd.Series:
    """Each round's value of a column in words, numbers of many values by quarters; None without one."""
    values = _values(scored, trials, name)
    numbers = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    if numbers and values.nunique() > MOST_GROUPS:
        values, numbers = quantiles(values, 4), False
    start = f"{in_words(name)} " if name.startswith(CONFIG) else ""
    return values.astype(object).map(lambda v: None if pd.isna(v) else start + (f"{v:g}" if numbers else str(v)))


def _sorted_rounds(scored: pd.DataFrame, trials: pd.DataFrame | None, names: Sequence[str]) -> pd.Index:
    """The rounds' labels by rising numbers; words stand as they came."""
    keys = pd.DataFrame({n: _values(scored, trials, n) for n in names})
    numbers = [n for n in names if pd.api.types.is_numeric_dtype(keys[n])]
    return keys.sort_values(numbers, kind="stable").index if numbers else keys.index


def _values(scored: pd.DataFrame, trials: pd.DataFrame | None, name: str) -> pd.Series:
    if name in scored:
        return scored[name]
    if trials is None or name not in trials:
        return pd.Series(None, index=scored.index, dtype=object)
    on = [k for k in ("run", "trial") if k in scored and k in trials]
    return scored[on].merge(trials[[*on, name]], on=on, how="left").set_axis(scored.index)[name]


def _mean(figure: go.Figure, table: pd.DataFrame, name: str, line: dict[str, str], spreads: bool, metric: str) -> None:
    """A mean line, in a band of a standard deviation where there is more than one run, cut at the values there are."""
    spread = table["std"].fillna(0)
    if spreads and (table["count"] > 1).any():
        low, high = ((table["mean"] + sign * spread).clip(*limits(metric)) for sign in (-1, 1))
        band(figure, table["round"], low, high, line["color"], name)
    figure.add_scatter(
        x=table["round"],
        y=table["mean"],
        name=name,
        legendgroup=name,
        line=line,
        mode="lines" if len(table) > 1 else "markers",
        customdata=np.stack([spread, table["count"]], 1),
        hovertemplate="round %{x}: %{y:FORM} ± %{customdata[0]:FORM}, n = %{customdata[1]}".replace(
            "FORM", form(metric)
        ),
    )
