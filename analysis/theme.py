"""How every figure looks: colours, fonts, margins, titles, and what stands there when there is nothing to draw."""

from __future__ import annotations

import textwrap
from itertools import cycle

import plotly.graph_objects as go

# Okabe and Ito's colours, which colour-blind people can tell apart; those that show best on white first
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442"]
GREY = "#9A9A9A"
SCALE = "Cividis"  # for quantities: even in lightness, for all eyes
WIDTH = {"title": 43, "note": 58}  # letters of a line, so that a telephone's width holds it

TEMPLATE = go.layout.Template(
    layout=go.Layout(
        colorway=COLOURS,
        font={"family": "system-ui, sans-serif", "size": 13, "color": "#222222"},
        title={"font": {"size": 16}},
        paper_bgcolor="white",
        plot_bgcolor="white",
        modebar={"orientation": "v"},  # beside the figure: along the top it would lie on the title
        hoverlabel={"bgcolor": "white", "namelength": -1},
        legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
        xaxis={"gridcolor": "#E6E6E6", "linecolor": "#777777", "ticks": "outside", "zeroline": False,
               "automargin": True},
        yaxis={"gridcolor": "#E6E6E6", "linecolor": "#777777", "ticks": "outside", "zeroline": False,
               "automargin": True},
        colorscale={"sequential": SCALE},
    )
)  # fmt: skip


def finish(
    figure: go.Figure, title: str, note: str = "", height: int = 400, legend: int = 0, panels: bool = False
) -> go.Figure:
    """The figure with its title (what was varied), a note under it (n, and how to read it), and room for both.

    legend: how many lines of legend to leave room for at the bottom.  panels: whether panels have titles of their own.
    """
    lines = textwrap.wrap(title, WIDTH["title"])
    notes = textwrap.wrap(note, WIDTH["note"]) if note else []
    text = "<br>".join(lines + [f'<span style="font-size:12px;color:#555555">{line}</span>' for line in notes])
    top = 26 + 20 * len(lines) + 16 * len(notes) + 18 * panels
    place = {"x": 0.01, "xref": "container", "xanchor": "left", "y": 1, "yref": "container", "yanchor": "top"}
    figure.update_layout(
        template=TEMPLATE, title={"text": text, "pad": {"t": 12}} | place, width=None,
        height=height + top + 22 * legend, margin={"t": top, "b": 62 + 22 * legend, "l": 60, "r": 40},
    )  # fmt: skip
    return figure


def nothing(title: str, why: str) -> go.Figure:
    """A figure that says why there is nothing to see."""
    text = "<br>".join(textwrap.wrap(why, 70))
    figure = go.Figure().add_annotation(text=text, showarrow=False, xref="paper", yref="paper", x=0.5, y=0.5)
    figure.update_xaxes(visible=False).update_yaxes(visible=False)
    return finish(figure, title, height=200)


def colours(names: list[str]) -> dict[str, str]:
    """A colour for each name, in their order; beyond eight they come again."""
    return dict(zip(names, cycle(COLOURS), strict=False))


def see_through(colour: str, share: float = 0.18) -> str:
    """A colour as CSS writes it with an opacity: that of a band around a line of the colour."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{share})"
