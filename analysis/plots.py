"""Figures: dataframe in, plotly Figure out.

    from analysis import frames, plots
    trials, rounds = frames.load("runs/NAME")
    plots.learning_curves(rounds, trials, by="config/components").show()
    plots.importance(plots.study("runs/NAME")).write_html("importance.html")

Every figure has a title that says what was varied, units on its axes, and n.  Where a frame is empty, or too small for
the figure, the figure says so.  Those of an Optuna study are Optuna's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.model_plots import communication_by, embedding, per_client
from analysis.study_plots import contour, importance, parallel, slices, study
from analysis.theme import COLOURS, GREY, SCALE, colours, finish, nothing, see_through
from fedtune.core import statistics
from fedtune.core.errors import UserError
from fedtune.core.metrics import METRICS
from fedtune.runs import pareto
from fedtune.runs.tables import CONFIG

__all__ = [
    "accuracy_communication", "best_so_far", "communication_by", "comparison", "contour", "effect", "embedding",
    "importance", "interaction", "learning_curves", "parallel", "per_client", "rung_survival", "slices", "study",
]  # fmt: skip

KEYS = ("run", "algorithm", "configuration", "trial", "seed")  # columns that tell runs of a configuration apart
NAMES = {
    "val_acc": "validation accuracy", "test_acc": "test accuracy", "val_loss": "validation loss",
    "train_loss": "training loss", "comm_mb": "communication [MB]", "seconds": "time [s]",
}  # fmt: skip
UNITS = {"rounds": ("rounds played", "round"), "mb": ("communication [MB]", "MB"), "seconds": ("time [s]", "s")}
FATES = {
    "went on": COLOURS[0], "finished": COLOURS[2], "stopped": COLOURS[4], "diverged": COLOURS[1], "failed": COLOURS[6],
    "still open": GREY,
}  # fmt: skip
DASHES = ["solid", "dash", "dot"]
MOST_GROUPS, MOST_LINES, MOST_POINTS = 8, 200, 4000  # what a figure, and a browser, can bear


# a trial by its rounds ------------------------------------------------------------------------------------------------


def learning_curves(
    rounds: pd.DataFrame, trials: pd.DataFrame | None = None, by: str | Sequence[str] | None = None,
    metric: str = "val_acc",
) -> go.Figure:  # fmt: skip
    """A metric against rounds: a line per run, or with `by` the mean and spread of the runs that share a value.

    by: columns of rounds or of trials (a hyperparameter's `config/` can be left out), the first shown by colour, others
    by dashes; numbers of more than eight values are cut into quarters.  Without it, rounds of several algorithms are
    grouped by algorithm and configuration, and of a search's trials the five best stand out.
    """
    title = f"{_title(metric)} round by round"
    played = rounds.dropna(subset=[metric]).reset_index(drop=True) if metric in rounds else rounds.iloc[:0]
    if played.empty:
        return nothing(title, f"no round has a {_name(metric)}")
    if by is None and played.get("algorithm", pd.Series()).nunique() > 1:
        by = [c for c in ("algorithm", "configuration") if played.get(c, pd.Series()).nunique() > 1]
    if by is None:
        return _single(played, metric, title)
    names = [_whole(name, played, trials) for name in ([by] if isinstance(by, str) else by)]
    words = [_words(played, trials, name) for name in names]
    group = pd.Series(list(zip(*words, strict=True)), index=played.index)
    group = group.where(pd.concat(words, axis=1).notna().all(axis=1))
    shown = [g for g in dict.fromkeys(group.loc[_order(played, trials, names)]) if isinstance(g, tuple)]
    if not shown:
        return nothing(title, f"no run has a value of {', '.join(map(_name, names))}")
    paint = colours(list(dict.fromkeys(g[0] for g in shown))[:MOST_GROUPS])
    dashes = dict(zip(dict.fromkeys(g[1:] for g in shown), DASHES, strict=False))
    drawn = [g for g in shown if g[0] in paint and g[1:] in dashes]
    figure, who = go.Figure(), _who(played)
    for g in drawn:
        mine = played[group == g]
        table = mine.groupby("round")[metric].agg(["mean", "std", "count"]).reset_index()
        label = f"{', '.join(g)} (n = {who[mine.index].nunique()})"
        _band(figure, table, label, {"color": paint[g[0]], "dash": dashes[g[1:]]}, len(drawn) <= MOST_GROUPS)
    left_out = f"; {len(shown) - len(drawn)} more groups left out" if len(shown) > len(drawn) else ""
    figure.update_xaxes(title="round").update_yaxes(title=_name(metric))
    return finish(
        figure, f"{title}, by {', '.join(map(_name, names))}",
        f"n = {who.nunique()} runs; mean ± standard deviation over the runs that got that far{left_out}",
        legend=_lines([", ".join(g) + "(n = 5)" for g in drawn]),
    )  # fmt: skip


def best_so_far(rounds: pd.DataFrame, against: str = "rounds", trials: pd.DataFrame | None = None) -> go.Figure:
    """The highest validation accuracy that the search had seen, against what all its trials together had used.

    against: rounds, mb or seconds (of training and evaluation, of all trials added up).  Rounds count in the order of a
    column `timestamp` if there is one; otherwise trial after trial in the order in which they began (that of trials, if
    given), which trials at once blur a little.  Each of several runs has its line.  UserError for another against.
    """
    if against not in UNITS:
        raise UserError(f"against is one of {', '.join(UNITS)}, but got {against}")
    axis, unit = UNITS[against]
    title = f"Best validation accuracy so far against {axis.split(' [')[0]}"
    played = _with_budget(rounds, against)
    if played.empty:
        return nothing(title, "no round has a validation accuracy")
    figure, runs = go.Figure(), _column(played, "run")
    for run, colour in colours(list(dict.fromkeys(runs))).items():
        mine = _in_order(played[runs == run], trials)
        best = mine["val_acc"].cummax()
        rise = (best > best.shift(fill_value=-math.inf)).to_numpy(copy=True)
        rise[-1] = True  # so that the line goes on to the end
        used = mine["_cost"].cumsum()
        one, hover = runs.nunique() == 1, _told(mine[rise])
        name = "validation" if one else run
        line = {"color": colour, "shape": "hv"}
        figure.add_scatter(
            x=used[rise], y=best[rise], name=name, mode="lines+markers", line=line, marker={"size": 6}, text=hover,
            hovertemplate=f"%{{y:.4f}} after %{{x:,.4g}} {unit}%{{text}}<extra></extra>",
        )  # fmt: skip
        if one and "test_acc" in mine:
            then = mine["test_acc"].where(rise & (mine["val_acc"] == best)).ffill()
            figure.add_scatter(
                x=used[rise], y=then[rise], name="test accuracy in that round (never used)", mode="lines",
                line={"color": GREY, "shape": "hv", "dash": "dot"},
            )  # fmt: skip
    figure.update_xaxes(title=f"used by the whole search: {axis}", rangemode="tozero")
    figure.update_yaxes(title="accuracy" if runs.nunique() == 1 else "validation accuracy")
    n = f"n = {_who(played).nunique()} trials, {len(played):,} rounds"
    return finish(figure, title, n + ("" if runs.nunique() == 1 else f", {runs.nunique()} searches"), legend=1)


def rung_survival(
    trials: pd.DataFrame, rounds: pd.DataFrame, rungs: Sequence[float], unit: str = "rounds"
) -> go.Figure:
    """How many trials came to each rung and what became of them there, above the accuracies they came with.

    rungs: as in run.json, in the unit of the search's budget: rounds, mb or seconds.
    """
    title = "What became of the trials at each rung"
    played = _with_budget(rounds, unit)
    if trials.empty or played.empty:
        return nothing(title, "no trial was played")
    if not len(rungs):
        return nothing(title, "this search had no rungs: every trial was played to its end")
    used = played.assign(_used=played.groupby(_who(played))["_cost"].cumsum())
    end = used.groupby("trial")["_used"].max()
    status = trials.set_index("trial")["status"].astype(str)
    reached = {"begun": end.reindex(status.index).fillna(0) >= 0}
    reached |= {f"{rung:g} {UNITS[unit][1]}{'s' if unit == 'rounds' else ''}": end.reindex(status.index) >= rung
                for rung in rungs}  # fmt: skip
    reached["the end"] = status == "finished"
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.06, row_heights=[0.55, 0.45])
    fate, stages = {}, list(reached)
    for stage, after in zip(stages, [*stages[1:], None], strict=True):
        here = status[reached[stage]]
        on = reached[after][here.index] if after else pd.Series(False, index=here.index)
        ended = here.where(here.isin(["finished", "stopped", "diverged", "failed"]), "still open")
        fate[stage] = ended.mask(on, "went on")
    for how, colour in FATES.items():
        counts = [int((fate[s] == how).sum()) for s in stages]
        if any(counts):
            figure.add_bar(x=stages, y=counts, name=how, marker_color=colour, text=[c or "" for c in counts], row=1,
                           col=1, legendgroup=how)  # fmt: skip
    first = {stage: used[used["_used"] >= rung] for stage, rung in zip(stages[1:-1], rungs, strict=True)}
    for how, colour in FATES.items():
        at = [_at_rung(first[s], fate[s][fate[s] == how].index).assign(stage=s) for s in stages[1:-1]]
        points = pd.concat(at)
        if len(points):
            figure.add_box(  # only for its points, which lie beside one another where they are equal
                x=points["stage"], y=points["val_acc"], name=how, legendgroup=how, showlegend=False,
                boxpoints="all", jitter=0.7, pointpos=0, fillcolor="rgba(0,0,0,0)", line={"width": 0},
                marker={"color": colour, "size": 8, "opacity": 0.7}, text=points["trial"], hoveron="points",
                hovertemplate="%{text}: %{y:.4f}<extra></extra>", row=2, col=1,
            )  # fmt: skip
    figure.update_layout(barmode="stack", boxmode="group")
    figure.update_yaxes(title="trials", row=1, col=1).update_yaxes(title="val. accuracy there", row=2, col=1)
    figure.update_xaxes(categoryorder="array", categoryarray=stages)
    figure.update_xaxes(title=f"stage ({UNITS[unit][0].split(' [')[0]})", row=2, col=1)
    note = f"n = {len(trials)} trials; below, each trial's accuracy when it came to the rung"
    return finish(figure, title, note, height=480, legend=1)


def accuracy_communication(
    rounds: pd.DataFrame, objective: str = "comm_mb", by: str | None = None, reference: float | None = None
) -> go.Figure:
    """Every round of every trial: validation accuracy against communication (or seconds), with the front of all rounds.

    by: a column of rounds that tells several apart (default: algorithm or run where there are several); each has its
    front.  Rounds of several seeds are averaged over them first, lest a front be of lucky seeds.  The hypervolume's
    reference point is accuracy 0 at `reference` (default: the most that any round used).
    """
    name = _name(objective)
    title = f"Validation accuracy against {name.split(' [')[0]}, every round"
    points = rounds.assign(trial=_who(rounds)).reset_index(drop=True) if len(rounds) else rounds
    points = pareto.with_totals(points) if objective == "seconds" and len(points) else points
    seeds = points["seed"].nunique() if "seed" in points else 0
    points = _over_seeds(points, _who(rounds.drop(columns="seed"))) if seeds else points
    points = points.dropna(subset=["val_acc", objective]) if {"val_acc", objective} <= set(points) else points.iloc[:0]
    if points.empty:
        return nothing(title, f"no round has both a validation accuracy and {name.split(' [')[0]}")
    by = by or next((c for c in ("algorithm", "run") if points.get(c, pd.Series()).nunique() > 1), None)
    group = _column(points, by) if by else pd.Series("rounds", index=points.index)
    worst = float(points[objective].max()) if reference is None else reference
    figure, volumes = go.Figure(), []
    each = MOST_POINTS // group.nunique()
    for value, colour in colours(list(dict.fromkeys(group))).items():
        mine = points[group == value]
        some = mine.iloc[:: math.ceil(len(mine) / each)]
        best = pareto.front(mine, ["val_acc", objective])
        volume = pareto.hypervolume(mine, ["val_acc", objective], [0.0, worst])
        volumes.append(f"{value} {volume:.4g}" if by else f"{volume:.4g}")
        figure.add_scatter(
            x=some[objective], y=some["val_acc"], mode="markers", name=str(value), legendgroup=str(value),
            marker={"color": colour if by else GREY, "size": 5, "opacity": 0.4}, text=_told(some),
            hovertemplate=f"%{{y:.4f}} at %{{x:.4g}} {name[-3:-1].strip('[')}%{{text}}<extra></extra>",
        )  # fmt: skip
        figure.add_scatter(
            x=best[objective], y=best["val_acc"], mode="lines+markers", legendgroup=str(value),
            name=f"front of {value}" if by else f"front: {len(best)} rounds that none beats",
            line={"color": colour, "shape": "hv", "width": 2.5}, marker={"size": 6}, showlegend=not by,
            text=_told(best),
            hovertemplate="front: %{y:.4f} at %{x:.4g}%{text}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title=name, rangemode="tozero").update_yaxes(title="validation accuracy")
    box = f"of {worst:.4g}, reference point: accuracy 0 at {worst:.4g} {'s' if objective == 'seconds' else 'MB'}"
    thinned = "" if len(points) <= MOST_POINTS else f"; about {MOST_POINTS:,} of them drawn"
    what = f"configurations, means of {seeds} seeds" if seeds else "trials"
    n = f"n = {points['trial'].nunique()} {what}, {len(points):,} rounds{thinned}"
    note = f"{n}; hypervolume {', '.join(volumes)} {box}"
    return finish(figure, title, note, legend=_lines(list(dict.fromkeys(group))))


# a search by its hyperparameters --------------------------------------------------------------------------------------


def effect(
    trials: pd.DataFrame, name: str, measures: Sequence[str] = ("last_val_acc", "last_test_acc"),
    costs: Sequence[str] = (), rounds: pd.DataFrame | None = None,
) -> go.Figure:  # fmt: skip
    """Accuracy against one hyperparameter, over the trials of a grid that differ in it alone.

    They are those whose other hyperparameters have the grid's commonest values.  Trials that a scheduler stopped are
    left out, for their accuracies are of shorter training, unless none finished.  costs: columns of a second panel
    below, say comm_mb.  rounds: with them, and several seeds per trial, bars show the accuracies' standard errors.
    """
    column, title = CONFIG + name, f"The effect of {name} alone"
    if column not in trials:
        return nothing(title, f"{name} was not searched")
    others = [c for c in trials if c.startswith(CONFIG) and c != column]
    kept = _comparable(trials[trials["rounds"] > 0])
    for other in others:
        common = trials[other].mode(dropna=False)
        if len(common):
            value = common.iloc[0]
            kept = kept[kept[other].isna() if pd.isna(value) else kept[other] == value]
    kept = kept.dropna(subset=[column]).sort_values(column)
    if kept[column].nunique() < 2:
        return nothing(title, f"fewer than two trials differ in {name} alone")
    rows = 2 if costs else 1
    figure = make_subplots(rows=rows, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    drawn = [*((m, 1) for m in measures), *((c, 2) for c in costs)]
    for (measure, row), colour in zip(drawn, COLOURS, strict=False):
        label = _name(measure)
        figure.add_scatter(x=kept[column], y=kept[measure], mode="lines+markers", name=label, row=row, col=1,
                           marker={"size": 8}, line={"color": colour},
                           error_y=_errors(kept["trial"], rounds, measure))  # fmt: skip
    figure.update_yaxes(title="accuracy", row=1, col=1)
    if costs:
        figure.update_yaxes(title=_name(costs[0]), rangemode="tozero", row=2, col=1)
    _scaled(figure, kept[column])
    figure.update_xaxes(title=name, row=rows, col=1)
    same = ", ".join(f"{c.removeprefix(CONFIG)} = {_short(kept[c].iloc[0])}" for c in others)
    bars = "; bars: standard errors" if any(t.error_y.array is not None for t in figure.data) else ""
    note = f"n = {len(kept)} trials" + (f", all with {same}" if same else "") + bars
    return finish(figure, title, note, height=400 + 120 * (rows - 1), legend=1)


def _comparable(trials: pd.DataFrame) -> pd.DataFrame:
    """Those of equal training: what finished, or if nothing did whatever neither diverged nor failed."""
    fine = trials[~trials["status"].isin(["diverged", "failed"])]
    over = fine[fine["status"] == "finished"]
    return fine if over.empty else over


def interaction(trials: pd.DataFrame, first: str, second: str, value: str = "last_val_acc") -> go.Figure:
    """A pair of hyperparameters: best and mean accuracy of the trials in each cell, with their count.

    value: another column of trials, say comm_mb or seconds, of which the least is shown.  Numbers of more than six
    values are cut into five cells of equal count.  Trials that a scheduler stopped are left out, for their accuracies
    are of shorter training, unless none finished.
    """
    title = f"{_title(value)}: {first} × {second}"
    if not {CONFIG + first, CONFIG + second} <= set(trials):
        return nothing(title, f"{first} and {second} were not both searched")
    kept = _comparable(trials.dropna(subset=[CONFIG + first, CONFIG + second, value]))
    if len(kept) < 2:
        return nothing(title, f"a pair needs at least two trials with an accuracy, but there are {len(kept)}")
    cells = pd.DataFrame({"x": _cut(kept[CONFIG + first]), "y": _cut(kept[CONFIG + second]), "value": kept[value]})
    best, form = ("max", ".3f") if value.endswith("_acc") else ("min", ".3g")
    names = ["best" if best == "max" else "least", "mean"]
    figure = make_subplots(rows=2, cols=1, subplot_titles=names, shared_xaxes=True, vertical_spacing=0.08)
    table = cells.groupby(["y", "x"], observed=False)["value"].agg([best, "mean", "count"])
    low, high = table[[best, "mean"]].min(axis=None), table[[best, "mean"]].max(axis=None)
    for at, what in enumerate((best, "mean"), 1):
        grid, counts = table[what].unstack("x"), table["count"].unstack("x").fillna(0).astype(int)
        text = [[f"{v:{form}}<br>n = {n}" if n else "" for v, n in zip(*row, strict=True)]
                for row in zip(grid.to_numpy(), counts.to_numpy(), strict=True)]  # fmt: skip
        figure.add_heatmap(
            z=grid, x=[_short(c) for c in grid.columns], y=[_short(i) for i in grid.index], text=text,
            texttemplate="%{text}", textfont={"size": 11}, coloraxis="coloraxis", xgap=2, ygap=2, row=at, col=1,
            hovertemplate=f"{first} %{{x}}, {second} %{{y}}: %{{z:.4f}}<extra></extra>",
        )  # fmt: skip
    figure.update_layout(coloraxis={"colorscale": SCALE, "cmin": low, "cmax": high, "colorbar": {"thickness": 12}})
    figure.update_xaxes(type="category", showgrid=False).update_xaxes(title=first, row=2)
    figure.update_yaxes(title=second, type="category", showgrid=False)
    what = "finished trials" if (kept["status"] == "finished").all() else "trials, none of them finished,"
    note = f"n = {len(kept)} {what} of {len(trials)}; each cell: the value and how many trials"
    return finish(figure, title, note, height=600, panels=True)


# several algorithms ---------------------------------------------------------------------------------------------------


def comparison(evaluations: pd.DataFrame) -> go.Figure:
    """Test accuracy of each algorithm's default and tuned configuration: a point per seed, mean and 95 % interval.

    A configuration that diverged on some seed has the points of the others, and words in place of a mean.
    """
    title = "Test accuracy of each algorithm, default and tuned, on fresh seeds"
    needed = {"algorithm", "configuration", "chosen", "seed", "test_acc"}
    if not needed <= set(evaluations) or evaluations.empty:
        return nothing(title, "nothing was re-run yet")
    tuned = evaluations["chosen"].astype(bool)
    both = {"default": evaluations[evaluations["configuration"] == "default"], "tuned": evaluations[tuned]}
    means = both["tuned"].groupby("algorithm")["test_acc"].agg(lambda v: v.mean(skipna=False))
    means = means.sort_values(ascending=False)  # what diverged on a seed comes last, as in the table
    order = [*means.index, *(a for a in dict.fromkeys(evaluations["algorithm"]) if a not in means.index)]
    figure = go.Figure()
    for (name, rows), colour, offset in zip(both.items(), (COLOURS[4], COLOURS[0]), (0.16, -0.16), strict=True):
        seeds = rows.dropna(subset=["test_acc"])
        y = [order.index(a) + offset for a in seeds["algorithm"]]
        figure.add_scatter(
            x=seeds["test_acc"], y=y, mode="markers", name=f"{name}, each seed", legendgroup=name, showlegend=False,
            marker={"color": see_through(colour, 0.45), "size": 7}, text=seeds["seed"],
            hovertemplate=name + ", seed %{text}: %{x:.4f}<extra></extra>",
        )  # fmt: skip
        lost = {a: (int(g.isna().sum()), g) for a, g in rows.groupby("algorithm")["test_acc"]}
        found = [(a, statistics.mean(g)) for a, (bad, g) in lost.items() if not bad]
        figure.add_scatter(
            x=[m.mean for _, m in found], y=[order.index(a) + offset for a, _ in found], mode="markers", name=name,
            legendgroup=name, marker={"color": colour, "size": 11, "symbol": "diamond"},
            error_x={"array": [0 if math.isnan(m.half) else m.half for _, m in found], "thickness": 2, "width": 6},
            hovertemplate=name + ": %{x:.4f} ± %{error_x.array:.4f}<extra></extra>",
        )  # fmt: skip
        for a, (bad, g) in lost.items():
            if bad:  # beside its points; where there are none, in the middle
                figure.add_annotation(
                    text=f"{name} diverged in {bad} of {len(g)}", x=0.5 if g.isna().all() else g.max(),
                    xref="paper" if g.isna().all() else "x", y=order.index(a) + offset, xanchor="left", xshift=8,
                    showarrow=False, font={"size": 11, "color": colour},
                )  # fmt: skip
    figure.update_yaxes(tickvals=list(range(len(order))), ticktext=order, autorange="reversed")
    figure.update_xaxes(title="test accuracy, last round")
    gone = ", none where a seed diverged" if figure.layout.annotations else ""
    n = f"n = {evaluations['seed'].nunique()} seeds; diamonds: mean with its 95 % interval{gone}"
    return finish(figure, title, n, height=110 + 46 * len(order), legend=1)


# what they share ------------------------------------------------------------------------------------------------------


def _name(column: str) -> str:
    """A column in words."""
    column = column.removeprefix("last_").removeprefix("best_")
    return NAMES.get(column, column.removeprefix(CONFIG) if column not in METRICS else column.replace("_", " "))


def _title(column: str) -> str:
    return _name(column)[:1].upper() + _name(column)[1:]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _column(frame: pd.DataFrame, name: str) -> pd.Series:
    return frame[name].astype(str) if name in frame else pd.Series("", index=frame.index)


def _who(frame: pd.DataFrame) -> pd.Series:
    """Which run of which configuration each round is of."""
    keys = [k for k in KEYS if k in frame]
    if keys == ["trial"]:
        return frame["trial"].astype(str)
    whole = pd.Series("", index=frame.index)
    for key in keys:
        whole = whole + "/" + frame[key].astype(str)
    return whole


def _over_seeds(points: pd.DataFrame, who: pd.Series) -> pd.DataFrame:
    """The mean of each configuration's seeds, round by round.  who: which configuration each round is of."""
    points = points.drop(columns="seed").assign(trial=who.to_numpy())
    keys = [k for k in KEYS if k in points]
    return points.groupby([*keys, "round"], as_index=False, sort=False).mean(numeric_only=True)


def _told(frame: pd.DataFrame) -> list[str]:
    """What the pointer shows of each row."""
    known = [c for c in ("trial", "seed", "round") if c in frame]
    return ["<br>" + ", ".join(f"{c} {v}" for c, v in zip(known, row, strict=True))
            for row in frame[known].astype(str).itertuples(index=False)]  # fmt: skip


def _lines(names: Sequence[str] | dict[str, str]) -> int:
    """Lines of legend that these names fill."""
    return max(1, math.ceil(sum(len(str(n)) + 9 for n in names) / 90))


def _single(played: pd.DataFrame, metric: str, title: str) -> go.Figure:
    """A line per run: grey, but for the five that end best."""
    who, (what, label) = _who(played), _labels(played)
    last = played.groupby(who)[metric].last().sort_values(ascending=metric.endswith("loss"))
    rest, best = list(last.index[5:]), list(last.index[:5])
    rest = rest[:: math.ceil(len(rest) / MOST_LINES)] if rest else rest
    figure, apart = go.Figure(), {name: mine for name, mine in played.groupby(who)}
    if rest:
        gap = pd.DataFrame({"round": [None], metric: [None]})
        line = pd.concat([part for name in rest for part in (apart[name][["round", metric]].astype(object), gap)])
        figure.add_scatter(x=line["round"], y=line[metric], mode="lines",
                           name=f"{len(rest)} other{'s' if len(rest) > 1 else ''}",
                           line={"color": "#BBBBBB", "width": 1}, hoverinfo="skip")  # fmt: skip
    for name, colour in zip(best, COLOURS, strict=False):
        mine = apart[name]
        figure.add_scatter(x=mine["round"], y=mine[metric], name=f"{label[name]} ({last[name]:.3f})",
                           mode="lines" if len(mine) > 1 else "markers", line={"color": colour})  # fmt: skip
    figure.update_xaxes(title="round").update_yaxes(title=_name(metric))
    more = "" if len(rest) + len(best) == len(last) else f"; {len(rest) + len(best)} of them drawn"
    ends = "one that ends best" if len(best) == 1 else f"{len(best)} that end best"
    note = f"n = {len(last)} {what}{'s' if len(last) > 1 else ''}{more}; in colour the {ends}"
    return finish(figure, f"{title}, every {what}", note, legend=_lines([*(label[n] for n in best), "others"]))


def _labels(played: pd.DataFrame) -> tuple[str, dict[str, str]]:
    """What a line is, a trial or a run on a seed, and each one's name in a legend, by what _who calls it."""
    keys = [k for k in ("configuration", "trial", "seed") if k in played]
    words = ["seed " + played[k].astype(str) if k == "seed" else played[k].astype(str) for k in keys]
    names = [", ".join(row) for row in zip(*words, strict=True)] if words else _who(played)
    return "run" if "seed" in keys else "trial", dict(zip(_who(played), names, strict=True))


def _whole(name: str, played: pd.DataFrame, trials: pd.DataFrame | None) -> str:
    """A column's name; of a hyperparameter it may have come without `config/`."""
    known = {*played, *(() if trials is None else trials)}
    return CONFIG + name if name not in known and CONFIG + name in known else name


def _words(played: pd.DataFrame, trials: pd.DataFrame | None, name: str) -> pd.Series:
    """Each round's value of a column in words, numbers of many values by quarters; None without one."""
    values = _values(played, trials, name)
    numbers = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    if numbers and values.nunique() > MOST_GROUPS:
        values, numbers = _quantiles(values, 4), False
    start = f"{_name(name)} " if name.startswith(CONFIG) else ""
    return values.astype(object).map(lambda v: None if pd.isna(v) else start + (f"{v:g}" if numbers else str(v)))


def _order(played: pd.DataFrame, trials: pd.DataFrame | None, names: Sequence[str]) -> pd.Index:
    """The rounds' labels by rising numbers; words stand as they came."""
    keys = pd.DataFrame({n: _values(played, trials, n) for n in names})
    numbers = [n for n in names if pd.api.types.is_numeric_dtype(keys[n])]
    return keys.sort_values(numbers, kind="stable").index if numbers else keys.index


def _values(played: pd.DataFrame, trials: pd.DataFrame | None, name: str) -> pd.Series:
    return played[name] if name in played else _of_trial(played, trials, name)


def _of_trial(played: pd.DataFrame, trials: pd.DataFrame | None, name: str) -> pd.Series:
    """A column of trials, for each round."""
    if trials is None or name not in trials:
        return pd.Series(None, index=played.index, dtype=object)
    on = [k for k in ("run", "trial") if k in played and k in trials]
    return played[on].merge(trials[[*on, name]], on=on, how="left").set_axis(played.index)[name]


def _cut(values: pd.Series) -> pd.Series:
    """Values, or five intervals of equal count where there are many."""
    if not pd.api.types.is_numeric_dtype(values) or values.nunique() <= 6:
        return values
    return _quantiles(values, 5)


def _quantiles(values: pd.Series, parts: int) -> pd.Series:
    """Each value's interval of about equal counts, in words: from its least value to its largest; ordered."""
    part = pd.qcut(values, parts, labels=False, duplicates="drop")
    ends = values.groupby(part).agg(["min", "max"])
    words = {i: f"{low:.3g}" if low == high else f"{low:.3g}–{high:.3g}" for i, low, high in ends.itertuples()}
    named = pd.Categorical(part.map(words), list(dict.fromkeys(words.values())), ordered=True)
    return pd.Series(named, index=values.index)


def _band(figure: go.Figure, table: pd.DataFrame, name: str, line: dict[str, str], band: bool) -> None:
    """A mean line, in a band of a standard deviation where there is more than one run."""
    spread = table["std"].fillna(0)
    if band and (table["count"] > 1).any():
        x = pd.concat([table["round"], table["round"][::-1]])
        y = pd.concat([table["mean"] + spread, (table["mean"] - spread)[::-1]])
        figure.add_scatter(x=x, y=y, fill="toself", fillcolor=see_through(line["color"]), line={"width": 0},
                           mode="lines", hoverinfo="skip", showlegend=False, legendgroup=name)  # fmt: skip
    figure.add_scatter(
        x=table["round"], y=table["mean"], name=name, legendgroup=name, line=line,
        mode="lines" if len(table) > 1 else "markers", customdata=np.stack([spread, table["count"]], 1),
        hovertemplate="round %{x}: %{y:.4f} ± %{customdata[0]:.4f}, n = %{customdata[1]}",
    )  # fmt: skip


def _with_budget(rounds: pd.DataFrame, against: str) -> pd.DataFrame:
    """Rounds with an accuracy, and what each of them cost."""
    if not len(rounds) or "val_acc" not in rounds:
        return rounds.iloc[:0]
    rounds = rounds.reset_index(drop=True)
    who = _who(rounds)
    cost: dict[str, Callable[[], Any]] = {
        "rounds": lambda: rounds.groupby(who)["round"].diff().fillna(rounds["round"]),
        "mb": lambda: rounds.groupby(who)["comm_mb"].diff().fillna(rounds["comm_mb"]),
        "seconds": lambda: rounds["seconds"] + rounds["eval_seconds"],
    }
    return rounds.assign(_cost=cost[against]()).dropna(subset=["val_acc"])


def _in_order(played: pd.DataFrame, trials: pd.DataFrame | None) -> pd.DataFrame:
    """Rounds as they were played, as far as is known."""
    if "timestamp" in played:
        return played.sort_values("timestamp", kind="stable")
    if trials is None or "trial" not in played:
        return played
    place = {name: i for i, name in enumerate(trials["trial"])}
    return played.assign(_place=played["trial"].map(place)).sort_values(["_place", "round"], kind="stable")


def _at_rung(reached: pd.DataFrame, names: pd.Index) -> pd.DataFrame:
    """The first round of each of these trials in which the rung was reached."""
    return reached[reached["trial"].isin(names)].groupby("trial", as_index=False).first()[["trial", "val_acc"]]


def _errors(trials: pd.Series, rounds: pd.DataFrame | None, measure: str) -> dict[str, Any]:
    """Of the last round of each of these trials, where there are several seeds."""
    column = f"{measure.removeprefix('last_')}_se"
    if rounds is None or column not in rounds or rounds[column].isna().all():
        return {}
    return {"array": trials.map(rounds.groupby("trial")[column].last()), "thickness": 1.2, "width": 4}


def _scaled(figure: go.Figure, values: pd.Series) -> None:
    """A logarithmic axis where values span decades; a category where they are words."""
    if not pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values):
        figure.update_xaxes(type="category")
    elif values.min() > 0 and values.max() / values.min() >= 50:
        figure.update_xaxes(type="log", dtick=1)
