"""Pictures of the pages, as SVG: drawn once, and written in the colours of a light and of a dark page.

Measures are those of a picture that is 480 wide; a page shows it a quarter wider, a telephone a quarter narrower.  So
12 is the smallest size of letters.  Letters are the reader's own: a word takes `extent` at most.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from string import Template
from typing import Any

from fedtune.analysis.theme import DARK, LIGHT

WIDTH, SHOWN = 480, 600
NAMES = ("blue", "red", "green", "pink", "amber", "sky", "black", "yellow")  # of the theme's colours
MODES = {
    mode: {k: v for k, v in theme.items() if isinstance(v, str)} | dict(zip(NAMES, theme["colours"], strict=True))
    for mode, theme in (("light", LIGHT), ("dark", DARK))
}
Point = tuple[float, float]


def extent(words: str) -> float:
    """How wide words are, about, in the widest of usual letters."""
    return len(words) * 7.2


def _n(value: float) -> str:
    return f"{round(value, 1) + 0:g}"


def _at(points: Sequence[Point]) -> str:
    return " ".join(f"{_n(x)},{_n(y)}" for x, y in points)


class Picture:
    """What has been drawn so far; a colour is a name of the theme: ink, note, axis, grid, blue, red, …"""

    def __init__(self, height: float, title: str, note: str = "") -> None:
        """An empty picture under a line that says what it shows, and one that says how to read it."""
        self.height, self.parts = height, list[str]()
        self.text(0, 15, title, size=14, bold=True)
        self.text(0, 33, note, "note")

    def add(self, tag: str, words: str = "", **given: Any) -> None:
        """An element with the attributes that are not None."""
        known = [
            f'{k.replace("_", "-")}="{v if isinstance(v, str) else _n(v)}"' for k, v in given.items() if v is not None
        ]
        inner = html.escape(words, quote=False).replace("$", "$$")
        self.parts.append(f"<{' '.join([tag, *known])}>{inner}</{tag}>")

    def text(
        self, x: float, y: float, words: str, colour: str = "ink", anchor: str | None = None, size: float | None = None,
        bold: bool = False, code: bool = False, turn: bool = False,
    ) -> None:  # fmt: skip
        """Words whose start, middle or end (anchor) lies at x."""
        look = {"font_weight": "bold" if bold else None, "font_family": "monospace" if code else None}
        turned = f"rotate(-90 {_n(x)} {_n(y)})" if turn else None
        if words:
            self.add(
                "text", words, x=x, y=y, fill=f"${colour}", text_anchor=anchor, font_size=size, transform=turned, **look
            )

    def line(
        self, points: Sequence[Point], colour: str, width: float = 1.5, dash: str | None = None, **more: Any
    ) -> None:
        """A line through points."""
        self.add(
            "polyline",
            points=_at(points),
            fill="none",
            stroke=f"${colour}",
            stroke_width=width,
            stroke_dasharray=dash,
            **more,
        )

    def box(
        self, x: float, y: float, wide: float, high: float, colour: str, fill: float = 1, edge: str | None = None,
        corner: float | None = None,
    ) -> None:  # fmt: skip
        """A rectangle whose upper left corner is at (x, y)."""
        paint = {"fill": f"${colour}", "fill_opacity": fill, "stroke": edge and f"${edge}"}
        self.add("rect", x=x, y=y, width=wide, height=high, rx=corner, **paint)

    def dot(self, x: float, y: float, colour: str, radius: float = 4, hollow: bool = False, **more: Any) -> None:
        """A circle."""
        paint = {"fill": "none", "stroke": f"${colour}", "stroke_width": 1.5} if hollow else {"fill": f"${colour}"}
        self.add("circle", cx=x, cy=y, r=radius, **paint, **more)

    def arrow(self, a: Point, b: Point, colour: str = "axis", both: bool = False) -> None:
        """A line with a head at b, or at both ends."""
        turn = math.atan2(b[1] - a[1], b[0] - a[0])
        self.line([a, b], colour)
        for (x, y), way in ((b, turn), (a, turn + math.pi))[: 1 + both]:
            sides = [(x - 8 * math.cos(way + s), y - 8 * math.sin(way + s)) for s in (0.4, -0.4)]
            self.add("polygon", points=_at([(x, y), *sides]), fill=f"${colour}")

    def legend(self, y: float, entries: Sequence[tuple[str, str]], x: float = 0, hollow: Sequence[str] = ()) -> None:
        """Dots and what they mean, in a row.  entries: (colour, words)."""
        for colour, words in entries:
            self.dot(x + 5, y - 4, colour, hollow=words in hollow)
            self.text(x + 14, y, words, "note")
            x += 26 + extent(words)

    def svg(self, mode: str, words: str) -> str:
        """The file for a light or a dark page; words: what a reader hears who does not see it."""
        size = f'viewBox="0 0 {WIDTH} {_n(self.height)}" width="{SHOWN}" height="{_n(self.height * SHOWN / WIDTH)}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui, sans-serif" font-size="12">'
        said = f"<title>{html.escape(words, quote=False)}</title>"
        return "\n".join([head, said, Template("\n".join(self.parts)).substitute(MODES[mode]), "</svg>\n"])
