"""A partition as every paper draws it: clients × classes, and how many rows each client has."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from fedtune.analysis.theme import COLOURS, SCALE, finish
from fedtune.core.terminal import several

MOST_CIRCLES = 40  # clients or classes; above, a heat map
LETTERS = 20  # of an owner's name below the picture
SHADES = dict(zip(("train", "val", "test"), COLOURS, strict=False))


def partition(counts: pd.DataFrame, title: str = "Who holds what", images: np.ndarray | None = None) -> go.Figure:
    """Rows of each class at each client, by the area of a circle or, of many, by colour; below, the clients' sizes.

    counts: columns client, owner, class, split, rows (fedtune.studies.partition_view.counts); clients that have owners
    stand under their names.  images: an image of each client, [clients, height, width], drawn below.
    """
    rows = counts.groupby(["class", "client"], sort=False)["rows"].sum().unstack("client")
    classes, clients = rows.shape
    few = max(rows.shape) <= MOST_CIRCLES
    heights = [24.0 * min(classes, 30) + 40, 110.0] + ([] if images is None else [min(90.0, 800 / clients) + 10])
    figure = make_subplots(len(heights), 1, shared_xaxes=True, row_heights=heights, vertical_spacing=0.05)
    who = _names(counts)
    figure.add_trace(_circles(rows, who) if few else _heat(rows, who), row=1, col=1)
    sizes = counts.groupby(["split", "client"])["rows"].sum()
    for split, colour in SHADES.items():
        figure.add_bar(
            x=sizes[split].index,
            y=sizes[split],
            name=split,
            marker_color=colour,
            row=2,
            col=1,
            customdata=who[sizes[split].index],
            hovertemplate=f"%{{customdata}}, {split}: %{{y}} rows<extra></extra>",
        )
    if images is not None:
        figure.add_trace(_strip(images), row=3, col=1)
        figure.update_yaxes(visible=False, autorange="reversed", row=3, col=1)
    figure.update_yaxes(title="class", type="category", autorange="reversed", row=1, col=1)
    figure.update_yaxes(title="rows", row=2, col=1)
    figure.update_xaxes(range=[-0.8, clients - 0.2])
    figure.update_xaxes(title="client", row=len(heights), col=1)
    if clients <= MOST_CIRCLES and (counts["owner"] != "").any():
        names = counts.groupby("client")["owner"].first()
        short = [name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…" for name in names]
        figure.update_xaxes(tickvals=list(range(clients)), ticktext=short)
        figure.update_xaxes(title="owner", row=len(heights), col=1)
    elif clients <= MOST_CIRCLES:
        figure.update_xaxes(dtick=1 if clients <= 25 else 5)
    if not few:
        figure.update_xaxes(showgrid=False, row=1, col=1).update_yaxes(showgrid=False, row=1, col=1)
    note = f"n = {several(int(rows.to_numpy().sum()), 'row')} of {several(clients, 'client')}; " + (
        f"a circle's area is a client's rows of a class, the largest is {rows.to_numpy().max():.0f}"
        if few
        else "colour is a client's rows of a class"
    )
    note += "" if images is None else "; below, an image as each client sees it"
    finish(figure, title, note, height=int(sum(heights)) + 110, legend=1)
    return figure.update_layout(barmode="stack", bargap=0.15, legend={"traceorder": "normal"})


def _strip(images: np.ndarray) -> go.Heatmap:
    """Images beside each other, each where its client stands."""
    clients, _, width = images.shape
    columns = np.arange(clients)[:, None] + 0.9 * ((np.arange(width) + 0.5) / width - 0.5)  # [clients, width]
    gap = np.full((clients, images.shape[1], 1), np.nan)
    x = np.hstack([columns, np.arange(clients)[:, None] + 0.5]).ravel()
    z = np.concatenate([images, gap], axis=2).transpose(1, 0, 2).reshape(images.shape[1], -1)
    return go.Heatmap(x=x, z=z, colorscale="Greys", showscale=False, hoverinfo="skip")


def _names(counts: pd.DataFrame) -> pd.Series:
    """What each client is called when the pointer is on it."""
    owner = counts.groupby("client")["owner"].first()
    return ("client " + owner.index.astype(str) + owner.map(lambda name: f" ({name})" if name else "")).rename("who")


def _circles(rows: pd.DataFrame, who: pd.Series) -> go.Scatter:
    held = rows.stack()
    held = held[held > 0]
    widest = min(26.0, 800 / max(rows.shape))
    return go.Scatter(
        x=held.index.get_level_values("client"),
        y=held.index.get_level_values("class").astype(str),
        mode="markers",
        marker={"size": np.sqrt(held / held.max()) * widest, "color": COLOURS[0], "opacity": 0.85, "sizemin": 1.5},
        customdata=np.stack([held, who[held.index.get_level_values("client")]], axis=1),
        showlegend=False,
        hovertemplate="%{customdata[1]}, class %{y}: %{customdata[0]} rows<extra></extra>",
    )


def _heat(rows: pd.DataFrame, who: pd.Series) -> go.Heatmap:
    return go.Heatmap(
        x=rows.columns,
        y=rows.index.astype(str),
        z=rows.where(rows > 0),
        colorscale=SCALE,
        reversescale=True,
        colorbar={"title": "rows of<br>a class", "len": 0.35, "y": 0, "yanchor": "bottom"},
        hoverongaps=False,
        customdata=np.tile(who[rows.columns].to_numpy(), (len(rows), 1)),
        hovertemplate="%{customdata}, class %{y}: %{z} rows<extra></extra>",
    )
