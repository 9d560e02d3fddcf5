"""The figures of a comparison of algorithms: on fresh seeds, and against the budget of its searches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from fedtune.analysis.plot_tools import in_words, legend_lines
from fedtune.analysis.theme import COLOURS, GREY, band, colours, finish, nothing
from fedtune.core import statistics
from fedtune.core.metrics import limits
from fedtune.core.objectives import ACCURACY, Objective, parse_recorded
from fedtune.core.terminal import several
from fedtune.runs import trial_states
from fedtune.runs.tables import BORROWED, DEFAULT
from fedtune.studies.comparison import budgets, tables
from fedtune.studies.comparison.text import is_share

BANDS = 6  # with more lines, their intervals would hide one another
DASHES = ("solid", "dash", "dot")  # of lines when the colours repeat
LOCAL = "local"  # every client alone
NONE = statistics.Mean(math.nan, math.nan)
MARKS: dict[str, dict[str, Any]] = {  # the last one lies on top
    "default": {"color": COLOURS[1], "size": 11, "symbol": "circle-open", "line": {"width": 2}},
    "borrowed": {"color": COLOURS[2], "size": 11, "symbol": "diamond-open", "line": {"width": 2}},
    "tuned": {"color": COLOURS[0], "size": 11},
}
CELLS = {  # colours of a pair's verdict; "" without one
    "row is better": "#9CCBE8",
    "row is worse": "#F2B98C",
    tables.WITHIN: "#9ED8C0",
    tables.UNTOLD: "#EDEDED",
    tables.UNTESTED: "#FFFFFF",
    "": "#F7F7F7",
}
UNPAIRED = (None, "", "")  # an algorithm with itself
NUMBERED = 15  # algorithms at most whose cells have room for a number


def comparison(evaluations: pd.DataFrame, objective: Objective = ACCURACY, control: Sequence[str] = ()) -> go.Figure:
    """Test accuracy of each algorithm, a row each: tuned as a dot with its 95 % interval, the default as a hollow mark.

    Another hollow mark is borrowed: trained with another algorithm's tuned values of what both have.
    Means are over searches, where each algorithm has several, else over seeds, and so is the interval.  Local and the
    control, both tuned, are vertical lines: whom a federated algorithm should beat, and what luck alone does.
    A configuration that diverged on some seed has words in place of a mean.

    objective: what was searched for, if something else; then the test metric that reports it is shown.
    control: the algorithm that took part twice, and its second name.

    >>> import pandas as pd
    >>> from fedtune.analysis import plots
    >>> evaluations = pd.read_parquet("runs/COMPARISON/evaluations.parquet")
    >>> figure = plots.comparison(evaluations)
    >>> figure.write_html("comparison.html")
    """
    metric = objective.reported(evaluations)
    words, within = in_words(metric), limits(metric)
    lent = BORROWED in set(evaluations.get("configuration", ()))
    title = f"{words[:1].upper()}{words[1:]} of each algorithm on fresh seeds, tuned{', borrowed' * lent} and default"
    needed = {"algorithm", "configuration", "chosen", "seed", metric}
    if not needed <= set(evaluations) or evaluations.empty:
        return nothing(title, "nothing was re-run yet")
    evaluations = tables.with_units(evaluations)
    kinds = {"tuned": evaluations["chosen"].astype(bool), "default": evaluations["configuration"] == DEFAULT}
    kinds |= {BORROWED: evaluations["configuration"] == BORROWED} if lent else {}
    runs = {kind: dict(list(evaluations[of].groupby("algorithm", sort=False))) for kind, of in kinds.items()}
    means = {kind: {a: statistics.mean(tables.numbers(r, metric)) for a, r in of.items()} for kind, of in runs.items()}
    names = [a for a in dict.fromkeys(evaluations["algorithm"]) if a not in control[1:]]
    tuned, sign = {a: means["tuned"].get(a, NONE).mean for a in evaluations["algorithm"]}, objective.sign_of(metric)
    order = sorted(names, key=lambda a: (math.isnan(tuned[a]), -sign * tuned[a]))  # what diverged last, as in the table
    figure = go.Figure()
    lines = {LOCAL: f"{LOCAL}, tuned"} | {a: f"{a}, the control" for a in control[1:]}
    for (a, name), dash in zip(lines.items(), DASHES[1:], strict=False):
        if not math.isnan(x := tuned.get(a, math.nan)):
            line = {"color": GREY if a == LOCAL else COLOURS[3], "dash": dash, "width": 2}
            ends = {"x": [x, x], "y": [-0.5, len(order) - 0.5], "mode": "lines", "line": line, "name": name}
            figure.add_scatter(**ends, hovertemplate=f"{name}: {_interval(means['tuned'][a], metric)}<extra></extra>")
    for kind, marker in ((kind, MARKS[kind]) for kind in MARKS if kind in kinds):
        some = {a: m for a in order if not math.isnan((m := means[kind].get(a, NONE)).mean)}
        above, below = statistics.arms([m.mean for m in some.values()], [m.half for m in some.values()], within)
        bars = {"error_x": {"array": above, "arrayminus": below, "thickness": 2, "width": 6}} if kind == "tuned" else {}
        figure.add_scatter(
            x=[m.mean for m in some.values()],
            y=[order.index(a) for a in some],
            mode="markers",
            name=kind,
            marker=marker,
            text=[_interval(m, metric) for m in some.values()],
            hovertemplate=kind + ": %{text}<extra></extra>",
            **bars,
        )
        _say_lost(figure, kind, {i: runs[kind][a] for i, a in enumerate(order) if a in runs[kind]}, metric)
    figure.update_yaxes(tickvals=list(range(len(order))), ticktext=order, range=[len(order) - 0.5, -0.5])
    figure.update_xaxes(title=f"{words}, last round", tickformat=_ticks(metric))
    units = evaluations[tables.UNIT].nunique()
    n = f"n = {several(units, 'seed' if units == evaluations['seed'].nunique() else 'search')}"
    return finish(figure, title, f"{n}; bars: 95 % interval", height=120 + 34 * len(order), legend=2)


def _say_lost(figure: go.Figure, kind: str, runs: Mapping[int, pd.DataFrame], metric: str) -> None:
    """Words at the end of a row whose configuration has no mean, as some of its runs have no figure."""
    for row, of in runs.items():
        if bad := int(of[metric].isna().sum()):
            how = trial_states.loss_word(of["reason"]) if "reason" in of else "diverged"
            figure.add_annotation(
                text=f"{kind} {how} in {bad} of {len(of)}",
                x=1,
                xref="paper",
                y=row + 0.28 * (1 - [*MARKS].index(kind)),
                xanchor="right",
                showarrow=False,
                font={"size": 11, "color": MARKS[kind]["color"]},
            )


def pairs(table: pd.DataFrame, objective: Objective = ACCURACY) -> go.Figure:
    """Every two tuned algorithms: row minus column in each cell, and its verdict as the cell's colour.

    table: a comparison's pairs.csv, the best algorithm first.  With one search of each algorithm there is no verdict.

    >>> import pandas as pd
    >>> from fedtune.analysis import plots
    >>> figure = plots.pairs(pd.read_csv("runs/COMPARISON/pairs.csv"))
    >>> figure.write_html("pairs.html")
    """
    title = "Every two tuned algorithms: row minus column"
    if table.empty:
        return nothing(title, "there are no two algorithms")
    metric = str(table["metric"].iloc[0]) if "metric" in table else objective.tested
    order = list(dict.fromkeys([*table["algorithm"], *table["other"]]))
    cells = _cells(table, metric, objective.sign_of(metric))
    z, text, words = ([[cells.get((a, b), UNPAIRED)[i] for b in order] for a in order] for i in range(3))
    steps = [((i + k) / len(CELLS), colour) for i, colour in enumerate(CELLS.values()) for k in (0, 1)]
    figure = go.Figure().add_heatmap(
        x=order,
        y=order,
        z=z,
        zmin=-0.5,
        zmax=len(CELLS) - 0.5,
        colorscale=steps,
        xgap=2,
        ygap=2,
        text=text,
        texttemplate="%{text}" if len(order) <= NUMBERED else None,
        customdata=words,
        hovertemplate="%{customdata}<extra></extra>",
        hoverongaps=False,
        showscale=False,
    )
    for kind in [kind for i, kind in enumerate(CELLS) if kind and any(i in row for row in z)]:
        square = {"symbol": "square", "size": 12, "color": CELLS[kind], "line": {"width": 1, "color": GREY}}
        figure.add_scatter(x=[None], y=[None], mode="markers", name=kind, marker=square, showlegend=True)
    figure.update_xaxes(side="top", tickangle=-90 if len(order) > 3 else 0, showgrid=False, ticks="")
    figure.update_yaxes(autorange="reversed", showgrid=False, ticks="")
    note = f"{'points' if is_share(metric) else in_words(metric)}, on fresh seeds; n = {several(len(table), 'pair')}"
    height = 60 + max(20, 34 - len(order) // 2) * len(order)
    figure = finish(figure, title, note, height=height, legend=2)
    return figure.update_layout(margin={"b": 60})  # its axis is above


def _cells(table: pd.DataFrame, metric: str, sign: int) -> dict[tuple[str, str], tuple[int | None, str, str]]:
    """Of each row and column the number of its colour, its text, and all in words.  sign: -1 where less is better."""
    cells: dict[tuple[str, str], tuple[int | None, str, str]] = {}
    verdicts = table["verdict"].astype(object).fillna("") if "verdict" in table else [""] * len(table)
    scale, short, long = (100, "+.1f", "+.2f") if is_share(metric) else (1, "+.3f", "+.4f")
    for row, verdict in zip(table.itertuples(), verdicts, strict=True):
        for a, b, d in ((row.algorithm, row.other, row.difference), (row.other, row.algorithm, -row.difference)):
            kind = {True: "row is better", False: "row is worse"}[sign * d > 0] if verdict == tables.LARGER else verdict
            said = f"{a} − {b}: {statistics.interval(scale * d, scale * row.half, long)}, {verdict or 'no verdict'}"
            cells[a, b] = ([*CELLS].index(kind), statistics.number(scale * d, short), said)
    return cells


def _ticks(metric: str) -> str:
    return ".3~%" if is_share(metric) else ""


def _interval(of: statistics.Mean, metric: str) -> str:
    scale, form, unit = (100, ".2f", " %") if is_share(metric) else (1, ".4f", "")
    low, high = limits(metric)
    return statistics.interval(scale * of.mean, scale * of.half, form, within=(scale * low, scale * high)) + unit


def by_budget(table: pd.DataFrame, objective: str | Objective = ACCURACY, margin: float = 0.0) -> go.Figure:
    """What the searches of each algorithm had found after 1, 2, 3, … trials: mean over searches and 95 % interval.

    table: of `frames.by_budget`.  It is the score that searches select by, as a rule of validation rows.  A line marks
    from when on the order of the means stays as it is, of algorithms that end more than the margin apart.
    objective: with its direction, as in compare.json, if it is not validation accuracy.

    >>> from fedtune.analysis import frames, plots
    >>> figure = plots.by_budget(frames.by_budget("runs/COMPARISON"))
    >>> figure.write_html("by_budget.html")
    """
    objective = parse_recorded(str(objective))
    words, within = in_words(objective.name), limits(objective.name)
    title = f"Best {words} in the searches, against their number of trials"
    scored = table.dropna(subset=["score"])
    if scored.empty:
        return nothing(title, f"no search has a {words}")
    largest, figure = int(table["trials"].max()), go.Figure()
    order = scored.sort_values(["trials", "rank"], kind="stable").drop_duplicates("algorithm", keep="last")
    order = order.sort_values(["trials", "rank"], ascending=[False, True], kind="stable")["algorithm"].tolist()
    bands = len(order) <= BANDS and bool(scored["half"].notna().any())
    for i, (name, colour) in enumerate(colours(order).items()):
        rows = scored[scored["algorithm"] == name]
        above, below = statistics.arms(rows["score"], rows["half"], within)
        if bands:
            band(figure, rows["trials"], rows["score"] - below, rows["score"] + above, colour, name)
        shown = zip(rows["score"], rows["half"], rows["rank"], rows["rounds"], strict=True)
        figure.add_scatter(
            x=rows["trials"],
            y=rows["score"],
            name=name,
            legendgroup=name,
            mode="lines+markers",
            line={"color": colour, "dash": DASHES[i // len(COLOURS) % len(DASHES)], "width": 2.5},
            marker={"size": 6},
            text=[
                f"{_interval(statistics.Mean(mean, half), objective.name)}, place {rank}, {rounds:.0f} rounds trained"
                for mean, half, rank, rounds in shown
            ],
            hovertemplate=name + " after %{x}: %{text}<extra></extra>",
        )
    ticks = [*(2**i for i in range(largest.bit_length()) if 2**i < largest), largest]
    figure.update_xaxes(title="trials of each search", type="log", tickvals=ticks, ticktext=[str(n) for n in ticks])
    figure.update_yaxes(title=words, tickformat=_ticks(objective.name))
    searches = int(table["searches"].iloc[0])
    note = f"n = {several(searches, 'search')} of each; "
    note += "another may order them otherwise" if searches == 1 else "mean" + " and its 95 % interval" * bands
    since = budgets.settled(table, objective, margin)
    if since and since < largest:  # otherwise it changed with the last trial
        figure.add_vline(x=since, line={"dash": "dot", "width": 1})
        beyond = f" of those that end more than {margin:g} apart" * bool(margin)
        note += f"; dotted: from here on the order{beyond} stays as it is"
    return finish(figure, title, note, legend=legend_lines(order))
