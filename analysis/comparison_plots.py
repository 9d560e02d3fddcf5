"""The figures of a comparison of algorithms: on fresh seeds, and against the budget of its searches."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from fedtune.analysis.plot_tools import in_words, legend_lines, ticks, title_of
from fedtune.analysis.theme import COLOURS, GREY, band, colours, finish, nothing
from fedtune.core import statistics
from fedtune.core.metrics import is_share, limits
from fedtune.core.objectives import ACCURACY, Objective, parse_recorded
from fedtune.core.terminal import several
from fedtune.runs import trial_states
from fedtune.runs.tables import BORROWED, DEFAULT, SEARCH
from fedtune.studies.comparison import tables
from fedtune.studies.comparison.level_results import BUDGETS, LOCAL

BANDS = 6  # with more lines, their intervals would hide one another
DASHES = ("solid", "dash", "dot")  # of lines when the colours repeat
TUNED = "tuned"  # the configuration that each search found
MARKS: dict[str, dict[str, Any]] = {  # of configurations; the last one lies on top
    DEFAULT: {"color": COLOURS[1], "size": 11, "symbol": "circle-open", "line": {"width": 2}},
    BORROWED: {"color": COLOURS[2], "size": 11, "symbol": "diamond-open", "line": {"width": 2}},
    TUNED: {"color": COLOURS[0], "size": 11},
}
CELLS = {  # colours of a pair's verdict; "" without one
    "row is better": "#9CCBE8",
    "row is worse": "#F2B98C",
    tables.WITHIN: "#9ED8C0",
    tables.UNTOLD: "#EDEDED",
    tables.UNTESTED: "#FFFFFF",
    "": "#F7F7F7",
}
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
    lent = BORROWED in set(evaluations.get("configuration", ()))
    title = f"{title_of(metric)} of each algorithm on fresh seeds, tuned{', borrowed' * lent} and default"
    needed = {"algorithm", "configuration", "chosen", "seed", metric}
    if not needed <= set(evaluations) or evaluations.empty:
        return nothing(title, "nothing was re-run yet")
    figure, runs = go.Figure(), tables.with_units(evaluations)
    chosen = runs["chosen"].astype(bool)
    kinds = [kind for kind in MARKS if lent or kind != BORROWED]
    rows = {kind: runs[chosen if kind == TUNED else runs["configuration"] == kind] for kind in kinds}
    tuned = _means(rows[TUNED], metric)
    sign, (scale, _, unit) = objective.sign_of(metric), statistics.unit_of(metric)
    names = [a for a in dict.fromkeys(runs["algorithm"]) if a not in control[1:]]
    order = sorted(names, key=lambda a: -sign * tuned[a].mean if a in tuned else math.inf)  # as in the table
    lines = {tables.LOCAL: (f"{tables.LOCAL}, tuned", GREY, "dash")} | {
        a: (f"{a}, the control", COLOURS[3], "dot") for a in control[1:]
    }
    for a, (name, colour, dash) in lines.items():
        if a in tuned:
            figure.add_scatter(
                x=[scale * tuned[a].mean] * 2,
                y=[-0.5, len(order) - 0.5],
                mode="lines",
                name=name,
                line={"color": colour, "dash": dash, "width": 2},
                hovertemplate=f"{name}: {statistics.figure(metric, *tuned[a])}<extra></extra>",
            )
    for kind, of in rows.items():
        _mark(figure, kind, of, order, metric)
    figure.update_yaxes(tickvals=list(range(len(order))), ticktext=order, range=[len(order) - 0.5, -0.5])
    figure.update_xaxes(title=f"{in_words(metric)}, last round{unit and ' [%]'}")
    by_search = SEARCH in runs and runs[SEARCH].nunique() > 1
    n = f"n = {several(runs[tables.UNIT].nunique(), 'search' if by_search else 'seed')}"
    return finish(figure, title, f"{n}; bars: 95 % interval", height=120 + 34 * len(order), legend=2)


def _means(runs: pd.DataFrame, metric: str) -> dict[str, statistics.Mean]:
    """Of each algorithm that has one."""
    means = {str(a): statistics.mean(tables.numbers(of, metric)) for a, of in runs.groupby("algorithm", sort=False)}
    return {a: m for a, m in means.items() if not math.isnan(m.mean)}


def _mark(figure: go.Figure, kind: str, runs: pd.DataFrame, order: list[str], metric: str) -> None:
    """A mark for the mean of each algorithm; words at the end of its row if some of its runs have no figure."""
    means = _means(runs, metric)
    some = {a: means[a] for a in order if a in means}
    at, halves = np.reshape([*some.values()], (-1, 2)).T
    above, below = statistics.arms(at, halves, limits(metric))
    scale, *_ = statistics.unit_of(metric)
    arms = {"array": scale * above, "arrayminus": scale * below, "thickness": 2, "width": 6}
    figure.add_scatter(
        x=scale * at,
        y=[order.index(a) for a in some],
        mode="markers",
        name=kind,
        marker=MARKS[kind],
        error_x=arms if kind == TUNED else None,
        text=[statistics.figure(metric, *m) for m in some.values()],
        hovertemplate=kind + ": %{text}<extra></extra>",
    )
    for a, of in runs[runs["algorithm"].isin(order)].groupby("algorithm", sort=False):
        if lost := trial_states.lost(of, metric):
            place = {"x": 1, "xref": "paper", "y": order.index(str(a)) + 0.28 * (1 - [*MARKS].index(kind))}
            font = {"size": 11, "color": MARKS[kind]["color"]}
            figure.add_annotation(text=f"{kind} {lost}", xanchor="right", showarrow=False, font=font, **place)


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
    z, text, words = ([[cells.get((a, b), (None, "", ""))[i] for b in order] for a in order] for i in range(3))
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
    labels = {"tickvals": order, "ticktext": [re.sub(r"(?=\[)|(?<=,)", "\n", name) for name in order]}
    figure.update_xaxes(side="top", tickangle=-90 if len(order) > 3 else 0, showgrid=False, ticks="", **labels)
    figure.update_yaxes(autorange="reversed", showgrid=False, ticks="")
    note = f"{'points' if is_share(metric) else in_words(metric)}, on fresh seeds; n = {several(len(table), 'pair')}"
    figure = finish(figure, title, note, height=60 + max(20, 34 - len(order) // 2) * len(order), legend=2)
    return figure.update_layout(margin={"b": 60})  # its axis is above


def _cells(table: pd.DataFrame, metric: str, sign: int) -> dict[tuple[str, str], tuple[int | None, str, str]]:
    """Of each row and column the number of its colour, its text, and all in words.  sign: -1 where less is better."""
    cells: dict[tuple[str, str], tuple[int | None, str, str]] = {}
    (scale, _, unit), kinds = statistics.unit_of(metric), [*CELLS]
    verdicts = table["verdict"].astype(object).fillna("") if "verdict" in table else [""] * len(table)
    for row, verdict in zip(table.itertuples(), verdicts, strict=True):
        for a, b, d in ((row.algorithm, row.other, row.difference), (row.other, row.algorithm, -row.difference)):
            larger = kinds[0 if sign * d > 0 else 1]
            said = f"{a} − {b}: {statistics.gained(metric, d, row.half)}, {verdict or 'no verdict'}"
            number = statistics.number(scale * d, "+z.1f" if unit else "+z.3f")
            cells[a, b] = kinds.index(larger if verdict == tables.LARGER else verdict), number, said
    return cells


def by_budget(table: pd.DataFrame, objective: str | Objective = ACCURACY) -> go.Figure:
    """What the searches of each algorithm had found after 1, 2, 3, … trials: mean over searches and 95 % interval.

    table: of `frames.by_budget`.  It is the score that searches select by, as a rule of validation rows.
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
                f"{statistics.figure(objective.name, mean, half)}, place {rank}, {rounds:.0f} rounds trained"
                for mean, half, rank, rounds in shown
            ],
            hovertemplate=name + " after %{x}: %{text}<extra></extra>",
        )
    counts = [*(2**i for i in range(largest.bit_length()) if 2**i < largest), largest]
    figure.update_xaxes(title="trials of each search", type="log", tickvals=counts, ticktext=[str(n) for n in counts])
    figure.update_yaxes(title=words, tickformat=ticks(objective.name))
    searches = int(table["searches"].iloc[0])
    note = f"n = {several(searches, 'search')} of each; "
    note += "another may order them otherwise" if searches == 1 else "mean" + " and its 95 % interval" * bands
    return finish(figure, title, note, legend=legend_lines(order))


def by_level(table: pd.DataFrame, budget: str = "epsilon") -> go.Figure:
    """Each algorithm, tuned at each level of a budget: mean on fresh seeds and 95 % interval over searches.

    table: a budget study's levels.csv.  budget: what the levels are of, epsilon, comm_mb or sim_seconds.
    A filled mark is shown to beat `local`, which costs nothing: its line is grey.

    >>> import pandas as pd
    >>> from fedtune.analysis import plots
    >>> figure = plots.by_level(pd.read_csv("runs/STUDY/levels.csv"), "epsilon")
    >>> figure.write_html("levels.html")
    """
    name, local = BUDGETS[budget]
    if table.empty:
        return nothing(f"Accuracy against {name}", "no level is done yet")
    metric = str(table["metric"].iloc[0])
    levels = sorted({float(level) for level in table["level"]})
    finite = [level for level in levels if math.isfinite(level)] or [1.0]
    step = finite[-1] / finite[-2] if len(finite) > 1 else 2.0
    places = {level: level if math.isfinite(level) else finite[-1] * step for level in levels}
    scale, *_ = statistics.unit_of(metric)
    order = [LOCAL, *(a for a in dict.fromkeys(table["algorithm"]) if a != LOCAL)]
    order = [a for a in order if a in set(table["algorithm"])]
    palette = {LOCAL: GREY} | colours([a for a in order if a != LOCAL])
    figure, spread = go.Figure(), math.log(max(places.values()) / min(places.values()) or 1) or 1.0
    for i, a in enumerate(order):
        rows = table[table["algorithm"] == a]
        aside = math.exp(spread * 0.008 * (i - (len(order) - 1) / 2))  # or intervals would hide one another
        above, below = statistics.arms(rows["tuned"], rows["half"], limits(metric))
        beats = rows.get(f"against {LOCAL}", pd.Series("", rows.index)) == "above"
        marks = ["circle" if b else "circle-open" for b in beats]
        texts = [statistics.figure(metric, *of) for of in zip(rows["tuned"], rows["half"], strict=True)]
        figure.add_scatter(
            x=[places[float(level)] * aside for level in rows["level"]],
            y=scale * rows["tuned"],
            name=local if a == LOCAL else a,
            mode="lines" if a == LOCAL else "lines+markers",
            line={"color": palette[a], "width": 2, "dash": "dash" if a == LOCAL else DASHES[i // len(COLOURS) % 3]},
            marker={"size": 10, "symbol": marks, "line": {"width": 2, "color": palette[a]}},
            error_y={"array": scale * above, "arrayminus": scale * below, "thickness": 1.5, "width": 4},
            text=[f"{a} at {level}: {text}" for level, text in zip(rows["level"], texts, strict=True)],
            hovertemplate="%{text}<extra></extra>",
        )
    ticks_at = {places[level]: f"{level:g}".replace("inf", "∞") for level in levels}
    figure.update_xaxes(title=name, type="log", tickvals=[*ticks_at], ticktext=[*ticks_at.values()], tickangle=0)
    figure.update_yaxes(title=in_words(metric) + " [%]" * (scale == 100))
    title = f"{title_of(metric)} at each level, tuned there"
    return finish(figure, title, "mean and 95 % interval over searches, on fresh seeds", legend=legend_lines(order))
