"""The figure of a comparison of algorithms."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from analysis.plot_tools import in_words
from analysis.theme import COLOURS, finish, nothing, see_through
from fedtune.core import statistics
from fedtune.core.metrics import limits
from fedtune.core.objectives import ACCURACY, Objective
from fedtune.core.terminal import several
from fedtune.runs import trial_states
from fedtune.studies.comparison import tables


def comparison(evaluations: pd.DataFrame, objective: Objective = ACCURACY) -> go.Figure:
    """Test accuracy of each algorithm's default and tuned configuration: a point per seed, mean and 95 % interval.

    The interval is over searches, where each algorithm has several, else over seeds.
    A configuration that diverged on some seed has the points of the others, and words in place of a mean.  objective:
    what was searched for, if something else; then the test metric that reports it is shown.

    >>> import pandas as pd
    >>> from analysis import plots
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
            how = trial_states.lost(rows.loc[rows["algorithm"] == a, "reason"]) if "reason" in rows else "diverged"
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
    how = trial_states.lost(evaluations["reason"] if "reason" in evaluations else ())
    gone = f", none where a seed {how}" if figure.layout.annotations else ""
    units = evaluations[tables.UNIT].nunique()
    n = f"n = {several(units, 'seed')}" if units == evaluations["seed"].nunique() else f"n = {units} searches"
    n += f"; diamonds: mean with its 95 % interval{gone}"
    return finish(figure, title, n, height=110 + 46 * len(order), legend=1)
