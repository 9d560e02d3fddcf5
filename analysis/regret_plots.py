"""Figures of simulated searches: how far each strategy stays behind the best of the table."""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from fedtune.analysis.plot_tools import legend_lines
from fedtune.analysis.theme import band, colours, finish, nothing
from fedtune.core import statistics
from fedtune.core.terminal import several

MOST = 8  # strategies: there are no more colours that all eyes can tell apart


def regret(searches: pd.DataFrame, most: int = MOST) -> go.Figure:
    """Mean regret and its 95 % interval against the training of a search: a line per strategy, a panel per table.

    searches: what `python -m fedtune.analysis.simulate -o FILE.csv` wrote.  most: strategies that are drawn, those that
    end best over all tables.

    >>> import pandas as pd
    >>> from fedtune.analysis import plots
    >>> searches = pd.DataFrame(
    ...     {"table": "fedavg", "strategy": "tpe", "search": [0, 1], "budget": 8, "regret": [1.2, 0.8]}
    ... )
    >>> plots.regret(searches).data[-1].name
    'tpe'
    """
    title = "Regret of simulated searches against their training"
    if searches.empty:
        return nothing(title, "there is no simulated search")
    tables, shown = list(dict.fromkeys(searches["table"])), _best(searches)[:most]
    titles, spacing = tables if len(tables) > 1 else None, min(0.12, 0.5 / len(tables))
    figure = make_subplots(len(tables), 1, subplot_titles=titles, vertical_spacing=spacing)
    for row, table in enumerate(tables, 1):
        for strategy, colour in colours(shown).items():
            rows = searches[(searches["table"] == table) & (searches["strategy"] == strategy)]
            _line(figure, rows, strategy, colour, row)
    figure.update_xaxes(type="log", tickvals=sorted(searches["budget"].unique()), tickformat="~g")
    figure.update_xaxes(title="training, in trials of full length", row=len(tables))
    figure.update_yaxes(title="regret [points]", rangemode="tozero")
    undrawn = searches["strategy"].nunique() - len(shown)
    note = f"n = {several(searches['search'].nunique(), 'search')} each; bands are 95 % intervals of the mean"
    note += f"; the {len(shown)} of {len(shown) + undrawn} strategies that end best" if undrawn else ""
    height = 300 * len(tables) + 100
    return finish(figure, title, note, height=height, legend=legend_lines(shown), panels=len(tables) > 1)


def _best(searches: pd.DataFrame) -> list[str]:
    """The strategies by their mean regret at a table's last budget, the least first; of equals as they came."""
    last = searches[searches["budget"] == searches.groupby("table")["budget"].transform("max")]
    means = last.groupby("strategy", sort=False)["regret"].mean()
    return [str(s) for s in means.sort_values(kind="stable").index]


def _line(figure: go.Figure, rows: pd.DataFrame, strategy: str, colour: str, row: int) -> None:
    means = [(float(b), statistics.mean(100 * of["regret"].to_numpy())) for b, of in rows.groupby("budget")]
    x = [b for b, _ in means]
    low, high = [max(0.0, m.mean - m.half) for _, m in means], [m.mean + m.half for _, m in means]
    place = {"row": row, "col": 1}
    if not any(map(math.isnan, high)):  # one search has no interval
        band(figure, x, low, high, colour, strategy, **place)
    figure.add_scatter(
        x=x,
        y=[m.mean for _, m in means],
        mode="lines+markers",
        name=strategy,
        legendgroup=strategy,
        showlegend=row == 1,
        line={"color": colour},
        text=[f"± {m.half:.2f}" for _, m in means],
        hovertemplate="%{y:.2f} %{text} points after %{x:g} trials' training<extra></extra>",
        **place,
    )
