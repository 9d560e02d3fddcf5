"""How every figure looks: colours, fonts, margins, titles, and what stands there when there is nothing to draw."""

from __future__ import annotations

import html
import os
import textwrap
from collections.abc import Iterable
from itertools import cycle
from typing import Any

import numpy as np
import plotly.graph_objects as go

from fedtune.core.terminal import in_notebook

# Okabe and Ito's colours, which colour-blind people can tell apart; those that show best on white first
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442"]
GREY = "#9A9A9A"
# of a light and of a dark page: text, notes, axes, grid, and the colours in the order of those above
LIGHT: dict[str, Any] = {"ink": "#222222", "note": "#555555", "axis": "#777777", "grid": "#E6E6E6", "colours": COLOURS}
ON_DARK = ["#56B4E9", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#0072B2", "#FFFFFF", "#F0E442"]
DARK: dict[str, Any] = {"ink": "#E6E6E6", "note": "#B0B0B0", "axis": "#8C8C8C", "grid": "#3D424A", "colours": ON_DARK}
SCALE = "Cividis"  # for quantities: even in lightness, for all eyes
RENDERER = "plotly_mimetype+notebook"  # of notebooks: what draws figures beside cells, and what a page has of them
PARTIAL = ("plotly_mimetype", "vscode", "jupyterlab", "nteract")  # the first of these alone
TEXTS = ("name", "x", "y", "text", "hovertext", "customdata", "labels")  # entries of a trace that hold text
WIDTH = {"title": 43, "note": 58}  # letters of a line, so that a telephone's width holds it

AXIS = {
    "gridcolor": LIGHT["grid"],
    "linecolor": LIGHT["axis"],
    "ticks": "outside",
    "zeroline": False,
    "automargin": True,
}
TEMPLATE = go.layout.Template(
    layout=go.Layout(
        colorway=COLOURS,
        font={"family": "system-ui, sans-serif", "size": 13, "color": LIGHT["ink"]},
        title={"font": {"size": 16}},
        paper_bgcolor="white",
        plot_bgcolor="white",
        modebar={"orientation": "v"},  # beside the figure: along the top it would lie on the title
        hoverlabel={"bgcolor": "white", "namelength": -1},
        legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
        xaxis=AXIS,
        yaxis=AXIS,
        colorscale={"sequential": SCALE},
    )
)


def show_in_pages() -> None:
    """Have a notebook keep its figures as pages, too, unless somebody chose otherwise; elsewhere nothing changes.

    Plotly leaves figures that JupyterLab and VS Code draw, but that are blank in the page which nbconvert makes.
    """
    if in_notebook() and "PLOTLY_RENDERER" not in os.environ:
        import plotly.io

        if plotly.io.renderers.default in PARTIAL:
            plotly.io.renderers.default = RENDERER


def finish(
    figure: go.Figure, title: str, note: str = "", height: int = 400, legend: int = 0, panels: bool = False
) -> go.Figure:
    """The figure with its title (what was varied), a note under it (n, and how to read it), and room for both.

    Every text in it is shown as it is written, with a line for each of its lines.

    legend: how many lines of legend to leave room for at the bottom.  panels: whether panels have titles of their own.
    """
    _as_written(figure)
    lines = [_literal(line) for line in textwrap.wrap(title, WIDTH["title"])]
    notes = [_literal(line) for line in textwrap.wrap(note, WIDTH["note"])] if note else []
    text = "<br>".join(lines + [f'<span style="font-size:12px;color:{LIGHT["note"]}">{line}</span>' for line in notes])
    top = 26 + 20 * len(lines) + 16 * len(notes) + 18 * panels
    place = {"x": 0.01, "xref": "container", "xanchor": "left", "y": 1, "yref": "container", "yanchor": "top"}
    figure.update_layout(
        template=TEMPLATE,
        title={"text": text, "pad": {"t": 12}} | place,
        width=None,
        height=height + top + 22 * legend,
        margin={"t": top, "b": 62 + 22 * legend, "l": 60, "r": 40},
    )
    return figure


def nothing(title: str, why: str) -> go.Figure:
    """A figure that says why there is nothing to see."""
    text = "\n".join(textwrap.wrap(why, 70))
    figure = go.Figure().add_annotation(text=text, showarrow=False, xref="paper", yref="paper", x=0.5, y=0.5)
    figure.update_xaxes(visible=False).update_yaxes(visible=False)
    return finish(figure, title, height=200)


def _as_written(figure: go.Figure) -> None:
    """Texts of data and axes, which Plotly would take for mark-up: a class named <b>, a price of $5 and $6."""
    for trace in figure.data:
        texts = {name: trace[name] for name in TEXTS if name in trace and trace[name] is not None}
        trace.update({name: shown for name, value in texts.items() if (shown := _literal(value)) is not value})
    for axis in (*figure.select_xaxes(), *figure.select_yaxes()):
        axis.update({n: _literal(axis[n]) for n in ("ticktext", "categoryarray") if axis[n] is not None})
        if axis.title.text:
            axis.title.text = _literal(axis.title.text)
    for annotation in figure.layout.annotations:
        annotation.text = _literal(annotation.text)


def _literal(value: Any) -> Any:
    """Texts, one or nested in lists and arrays, so that Plotly shows them as they are; numbers as they came."""
    if isinstance(value, str):
        return html.escape(value, quote=False).replace("$", "&#36;").replace("\n", "<br>")
    if isinstance(value, np.ndarray) and value.dtype.kind in "OUS":
        return np.array([_literal(v) for v in value], dtype=object)
    if isinstance(value, list | tuple) and any(isinstance(v, str | list | tuple | np.ndarray) for v in value):
        return [_literal(v) for v in value]
    return value


def colours(names: list[str]) -> dict[str, str]:
    """A colour for each name, in their order; beyond eight they come again."""
    return dict(zip(names, cycle(COLOURS), strict=False))


def see_through(colour: str, share: float = 0.18) -> str:
    """A colour as CSS writes it with an opacity: that of a band around a line of the colour."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{share})"


def band(
    figure: go.Figure, x: Iterable[Any], low: Iterable[float], high: Iterable[float], colour: str, name: str, **how: Any
) -> None:
    """A see-through band of a line's colour between two limits; it comes and goes with the line of this name."""
    there = list(x)
    figure.add_scatter(
        x=[*there, *there[::-1]],
        y=[*high, *list(low)[::-1]],
        mode="lines",
        fill="toself",
        fillcolor=see_through(colour),
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
        legendgroup=name,
        **how,
    )


show_in_pages()
