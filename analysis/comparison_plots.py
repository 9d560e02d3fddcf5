"""The figures of a comparison of algorithms: on fresh seeds, and against the budget of its searches."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from fedtune.analysis.plot_tools import in_words, legend_lines
from fedtune.analysis.theme import COLOURS, band, colours, finish, nothing, see_through
from fedtune.core import statistics
from fedtune.core.metrics import limits
from fedtune.core.objectives import ACCURACY, Objective, parse_recorded
from fedtune.core.terminal import several
from fedtune.runs import trial_states
from fedtune.studies.comparison import budgets, tables

BANDS = 6  # with more lines, their intervals would hide one another
DASHES = ("solid", "dash", "dot")  # of lines when the colours repeat


def comparison(evaluations: pd.DataFrame, objective: Objective = ACCURACY) -> go.Figure:
    """Test accuracy of each algorithm's default and tuned configuration: a point per seed, mean and 95 % interval.

    The interval is over searches, where each algorithm has several, else over seeds.
    A configuration that diverged on some seed has the points of the others, and words in place of a mean.  objective:
    what was searched for, if something else; then the test metric that reports it is shown.

    >>> import pandas as pd
    >>> from fedtune.analysis import plots
    >>> evaluations = pd.read_parquet("runs/COMPARISON/evaluations.parquet")
    >>> figure = plots.comparison(evaluations)
    >>> figure.write_html("comparison.html")
    """
    metric = objective.reported(evaluations)
    words, within = in_words(metric), limits(metric)
    title = f"{words[:1].upper()}{words[1:]} of each algorithm, default and tuned, on fresh seeds"
    needed = {"algorithm", "configuration", "chosen", "seed", metric}
    if not needed <= set(evaluations) or evaluations.empty:
        return nothing(title, "nothing was re-run yet")
    evaluations = tables.with_units(evaluations)
    tuned = evaluations["chosen"].astype(bool)
    both = {"default": evaluations[evaluations["configuration"] == "default"], "tuned": evaluations[tuned]}
    means = both["tuned"].groupby("algorithm")[metric].agg(lambda v: v.mean(skipna=False))
    means = means.sort_values(ascending=objective.sign_of(metric) < 0)  # what diverged comes last, as in the table
    order = [*means.index, *(a for a in dict.fromkeys(evaluations["algorithm"]) if a not in means.index)]
    figure = go.Figure()
    for (name, rows), colour, offset in zip(both.items(), (COLOURS[4], COLOURS[0]), (0.16, -0.16), strict=True):
        seeds = rows.dropna(subset=[metric])
        y = [order.index(a) + offset for a in seeds["algorithm"]]
        figure.add_scatter(
            x=seeds[metric],
            y=y,
            mode="markers",
            name=f"{name}, each seed",
            legendgroup=name,
            showlegend=False,
            marker={"color": see_through(colour, 0.45), "size": 7},
            text=seeds["seed"],
            hovertemplate=name + ", seed %{text}: %{x:.4f}<extra></extra>",
        )
        lost = {a: (int(g.isna().sum()), g) for a, g in rows.groupby("algorithm")[metric]}
        of = {a: tables.numbers(runs, metric) for a, runs in rows.groupby("algorithm")}
        diamonds = [(a, statistics.mean(of[a])) for a, (bad, _) in lost.items() if not bad]
        above, below = statistics.arms([m.mean for _, m in diamonds], [m.half for _, m in diamonds], within)
        figure.add_scatter(
            x=[m.mean for _, m in diamonds],
            y=[order.index(a) + offset for a, _ in diamonds],
            mode="markers",
            name=name,
            legendgroup=name,
            marker={"color": colour, "size": 11, "symbol": "diamond"},
            error_x={"array": above, "arrayminus": below, "thickness": 2, "width": 6},
            text=[statistics.interval(*m, ".4f", within=within) for _, m in diamonds],
            hovertemplate=name + ": %{text}<extra></extra>",
        )
        for a, (bad, g) in lost.items():
            how = trial_states.loss_word(rows.loc[rows["algorithm"] == a, "reason"]) if "reason" in rows else "diverged"
            if bad:  # beside its points; where there are none, in the middle
                figure.add_annotation(
                    text=f"{name} {how} in {bad} of {len(g)}",
                    x=0.5 if g.isna().all() else g.max(),
                    xref="paper" if g.isna().all() else "x",
                    y=order.index(a) + offset,
                    xanchor="left",
                    xshift=8,
                    showarrow=False,
                    font={"size": 11, "color": colour},
                )
    figure.update_yaxes(tickvals=list(range(len(order))), ticktext=order, autorange="reversed")
    figure.update_xaxes(title=f"{words}, last round")
    how = trial_states.loss_word(evaluations["reason"] if "reason" in evaluations else ())
    gone = f", none where a seed {how}" if figure.layout.annotations else ""
    units = evaluations[tables.UNIT].nunique()
    n = f"n = {several(units, 'seed')}" if units == evaluations["seed"].nunique() else f"n = {units} searches"
    n += f"; diamonds: mean with its 95 % interval{gone}"
    return finish(figure, title, n, height=110 + 46 * len(order), legend=1)


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
                f"{statistics.interval(mean, half, '.4f', within=within)}, place {rank}, {rounds:.0f} rounds trained"
                for mean, half, rank, rounds in shown
            ],
            hovertemplate=name + " after %{x}: %{text}<extra></extra>",
        )
    ticks = [*(2**i for i in range(largest.bit_length()) if 2**i < largest), largest]
    figure.update_xaxes(title="trials of each search", type="log", tickvals=ticks, ticktext=[str(n) for n in ticks])
    figure.update_yaxes(title=words)
    searches = int(table["searches"].iloc[0])
    note = f"n = {several(searches, 'search')} of each; "
    note += "another may order them otherwise" if searches == 1 else "mean" + " and its 95 % interval" * bands
    since = budgets.settled(table, objective, margin)
    if since and since < largest:  # otherwise it changed with the last trial
        figure.add_vline(x=since, line={"dash": "dot", "width": 1})
        beyond = f" of those that end more than {margin:g} apart" * bool(margin)
        note += f"; dotted: from here on the order{beyond} stays as it is"
    return finish(figure, title, note, legend=legend_lines(order))
