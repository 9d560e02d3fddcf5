"""Figures of models rather than of searches: clients one by one, points in the plane, what a round sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from fedtune.analysis.plot_tools import ticks
from fedtune.analysis.theme import COLOURS, GREY, colours, finish, nothing
from fedtune.core.metrics import worst_tenth
from fedtune.core.statistics import figure
from fedtune.core.terminal import several

if TYPE_CHECKING:
    from fedtune.analysis.models import Points

MARKS = ["circle", "square", "diamond", "hexagon"]
MOST_LETTERED = 120  # points; with more, marks hold no number
MOST_ROWS = 1000  # points of a set that an embedding shows
PANELS = {"n": "components per class n", "m": "clients m", "ways": "classes per client w̄"}


def per_client(accuracies: pd.DataFrame, by: str = "algorithm") -> go.Figure:
    """Test accuracy of every client, from the worst to the best; with a column `by` (several models), a line each.

    accuracies: as models.Saved.client_accuracies() gives them: client, test_acc and, to be shown, owner, classes and
    rows.

    >>> import pandas as pd
    >>> from fedtune.analysis import plots
    >>> accuracies = pd.DataFrame({"client": [0, 1, 2], "test_acc": [0.9, 0.7, 0.8]})
    >>> [float(y) for y in plots.per_client(accuracies).data[0].y]
    [0.7, 0.8, 0.9]
    """
    title = "Test accuracy of each client, from the worst to the best"
    if "test_acc" not in accuracies or accuracies["test_acc"].dropna().empty:
        return nothing(title, "no client has a test accuracy")
    scored = accuracies.dropna(subset=["test_acc"])
    group = scored[by].astype(str) if by in scored else pd.Series("", index=scored.index)
    figure, summaries = go.Figure(), []
    shown = [c for c in ("client", "owner", "classes", "rows") if c in scored and (scored[c] != "").any()]
    for name, colour in colours(list(dict.fromkeys(group))).items():
        clients = scored[group == name].sort_values("test_acc")
        summaries.append(f"{name}{': ' if name else ''}{_of_clients(clients)}")
        text = [
            "\n".join(f"{c} {v}" for c, v in zip(shown, row, strict=True))
            for row in clients[shown].astype(str).itertuples(index=False)
        ]
        figure.add_scatter(
            x=list(range(1, len(clients) + 1)),
            y=clients["test_acc"],
            mode="lines+markers",
            name=name or "clients",
            showlegend=bool(name),
            line={"color": colour, "width": 1},
            marker={"size": 8},
            text=text,
            hovertemplate="%{y:.2%}<br>%{text}<extra></extra>",
        )
        if not name:
            figure.add_hline(y=clients["test_acc"].mean(), line={"color": GREY, "dash": "dash"})
    figure.update_xaxes(title="client, by its accuracy").update_yaxes(
        title="test accuracy", tickformat=ticks("test_acc")
    )
    counted = several(int(group.value_counts().max()), "client")
    if "seed" in scored and scored["seed"].nunique() > 1:
        each = scored.groupby(group, sort=False)["seed"].nunique()  # fewer where runs diverged
        of = [several(k, "seed") + f" ({n})" * (each.nunique() > 1) for n, k in each.drop_duplicates().items()]
        counted = f"{several(scored['client'].nunique(), 'client')} on each of {' and '.join(of)}"
    note = f"n = {counted}; {'; '.join(summaries)}"
    return finish(figure, title, note, legend=1 if group.nunique() > 1 else 0)


def _of_clients(clients: pd.DataFrame) -> str:
    """Mean and worst tenth of the clients, as test_acc and test_acc_worst10 are: of each run, then the mean of runs."""
    runs = [a for _, a in clients.groupby("seed")["test_acc"]] if "seed" in clients else [clients["test_acc"]]
    worst = [a.nsmallest(worst_tenth(len(a))).mean() for a in runs]
    means = [a.mean() for a in runs]
    return f"mean {figure('test_acc', np.mean(means))}, worst tenth {figure('test_acc', np.mean(worst))}"


def embedding(sets: Mapping[str, Points], together: bool = True, seed: int = 0, colour: str = "class") -> go.Figure:
    """Named sets of points in the plane by scikit-learn's t-SNE: features, projections, prototypes, generated ones.

    together: one plane for all sets, which must be as wide, each with its own mark (prototypes among features);
    otherwise a panel and a plane for each (features beside projections; a generator after several rounds).
    colour: class or client.  Of a larger set, 1,000 points drawn at random are shown.

    >>> import numpy as np
    >>> from fedtune.analysis import models, plots
    >>> draws = np.random.default_rng(0).normal(size=(20, 5))
    >>> rows = models.Points(draws, labels=np.arange(20) % 2, owners=np.zeros(20, int))
    >>> figure = plots.embedding({"features": rows})
    >>> len(figure.data[0].x)
    20
    """
    title = f"t-SNE of {', '.join(sets)}"
    drawn = {name: _sample(rows, seed) for name, rows in sets.items()}
    drawn = {name: rows for name, rows in drawn.items() if len(rows.values)}
    if sum(len(rows.values) for rows in drawn.values()) < 4:
        return nothing(title, "an embedding needs at least four points")
    panels = [list(drawn)] if together else [[name] for name in drawn]
    figure = make_subplots(
        rows=1, cols=len(panels), subplot_titles=None if together else list(drawn), horizontal_spacing=0.03
    )
    every = sorted({v for rows in drawn.values() for v in (rows.labels if colour == "class" else rows.owners)})
    paint = colours([str(v) for v in every])
    for col, names in enumerate(panels, 1):
        points = _plane(np.concatenate([drawn[n].values for n in names]), seed)
        start = 0
        for i, name in enumerate(names):
            rows = drawn[name]
            part, start = points[start : start + len(rows.values)], start + len(rows.values)
            numbers, name_of = (rows.labels, rows.class_) if colour == "class" else (rows.owners, rows.client)
            figure.add_scatter(
                x=part[:, 0],
                y=part[:, 1],
                name=name,
                showlegend=together and len(names) > 1,
                row=1,
                col=col,
                text=[name_of(k) for k in numbers],
                **_mark(i, len(numbers), [paint[str(k)] for k in numbers]),
                customdata=[
                    f"class {rows.class_(c)}, " + ("client " if o >= 0 else "") + rows.client(o)
                    for c, o in zip(rows.labels, rows.owners, strict=True)
                ],
                hovertemplate=f"{name}: %{{customdata}}<extra></extra>",
            )
    figure.update_xaxes(showticklabels=False, ticks="", showgrid=False, title="t-SNE 1, no unit")
    figure.update_yaxes(showticklabels=False, ticks="", showgrid=False)
    figure.update_yaxes(title="t-SNE 2, no unit", col=1)
    counts = ", ".join(f"{len(rows.values)} {name}" for name, rows in drawn.items())
    note = f"n = {counts}; colour and letters: {colour}; distances between far groups mean nothing"
    return finish(figure, title, note, height=460, legend=int(together and len(drawn) > 1), panels=not together)


def communication_by(costs: pd.DataFrame) -> go.Figure:
    """Numbers a client of GFPL sends and receives in a round, measured and by a formula, against n, m, w̄ (Figure 7).

    The formula assumes that nothing fuses.

    costs: as fedtune.analysis.gfpl_costs.measured gives them: varied, value, measured, formula.

    >>> import pandas as pd
    >>> from fedtune.analysis import plots
    >>> costs = pd.DataFrame({"varied": "n", "value": [1, 2], "measured": [900, 1700], "formula": [1000, 2000]})
    >>> [trace.name for trace in plots.communication_by(costs).data]
    ['measured by the ledger', 'formula, if nothing fuses']
    """
    title = "What a client of GFPL sends and receives, against n, m and w̄"
    present = [p for p in PANELS if p in set(costs.get("varied", []))]
    if not present:
        return nothing(title, "nothing was measured")
    figure = make_subplots(rows=1, cols=len(present), shared_yaxes=True, horizontal_spacing=0.03)
    for col, panel in enumerate(present, 1):
        rows = costs[costs["varied"] == panel].sort_values("value")
        look = {"measured": (COLOURS[0], "solid", "circle"), "formula": (GREY, "dash", "x")}
        for column, (colour, dash, mark) in look.items():
            name = "measured by the ledger" if column == "measured" else "formula, if nothing fuses"
            figure.add_scatter(
                x=rows["value"],
                y=rows[column] / 1000,
                name=name,
                mode="lines+markers",
                legendgroup=column,
                showlegend=col == 1,
                line={"color": colour, "dash": dash},
                marker={"symbol": mark, "size": 8},
                hovertemplate="%{x}: %{y:.2f} thousand<extra></extra>",
                row=1,
                col=col,
            )
        figure.update_xaxes(title=PANELS[panel], row=1, col=col, rangemode="tozero")
    figure.update_yaxes(rangemode="tozero").update_yaxes(title="thousand numbers a client and round", col=1)
    return finish(figure, title, f"n = {several(len(costs), 'setting')} run; up and down together", legend=1)


def _sample(rows: Points, seed: int) -> Points:
    if len(rows.values) <= MOST_ROWS:
        return rows
    numbers = np.sort(np.random.default_rng(seed).choice(len(rows.values), MOST_ROWS, replace=False))
    return rows._replace(values=rows.values[numbers], labels=rows.labels[numbers], owners=rows.owners[numbers])


def _plane(points: np.ndarray, seed: int) -> np.ndarray:
    """[N, D] -> [N, 2]; fewer neighbours where there are few points."""
    perplexity = min(30.0, (len(points) - 1) / 3)
    from sklearn.manifold import TSNE  # half a second, and only this figure needs it

    plane: np.ndarray = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(points)
    return plane


def _mark(place: int, points: int, paint: list[str]) -> dict[str, Any]:
    """A point of the first set is a name or number, so that nobody depends on colours; a later one's has a mark."""
    text = {"size": 10, "color": paint}
    if place == 0:
        return {"mode": "text", "textfont": text}
    marker = {"symbol": MARKS[(place - 1) % len(MARKS)], "color": "white", "line": {"width": 2, "color": paint}}
    if points <= MOST_LETTERED:
        return {"mode": "markers+text", "textfont": text, "marker": marker | {"size": 20}}
    return {"mode": "markers", "marker": marker | {"size": 8}}
