"""The templates of pages: everything from a run is escaped, except JSON, in which no tag can begin."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from fedtune.core.terminal import several

FOLDER = Path(__file__).parent
ENVIRONMENT = Environment(
    loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
ENVIRONMENT.globals["several"] = several


class TextTable(NamedTuple):
    """A table of a page.  Its cells are text, or Markup where they hold more than that."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Collection[str] = ()  # the columns that hold words and stand left; the others hold numbers
    best: int | None = None  # the row that is marked
    sorted: Mapping[str, str] = {}  # the column by which rows can be sorted anew and are now: ascending or descending


def text(name: str) -> str:
    """The text of a file beside the templates."""
    return (FOLDER / name).read_text(encoding="utf-8")


def part(name: str, *content: Any, **named: Any) -> Markup:
    """A part of a page: the macro of this name in `parts.html`, filled in."""
    return Markup(getattr(ENVIRONMENT.get_template("parts.html").module, name)(*content, **named))


def link(text: str, address: str | None) -> str:
    """A text that leads to this address, if there is one."""
    return Markup('<a href="{}">{}</a>').format(address, text) if address else text


def code(text: str) -> Markup:
    """A text in which what stands in backticks is code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def breaking(cell: str) -> Markup:
    """A cell in which a long name may break: `fedavg[compress=topk,sent_share=0.05]`."""
    return Markup(re.sub(r"(?=\[)|(?<=,)(?=\w)", "<wbr>", str(escape(cell)))) if "[" in cell else escape(cell)


ENVIRONMENT.filters |= {"code": code, "breaking": breaking}


def embedded(text: str) -> Markup:
    """JSON for a <script>: `<` is escaped, so that no tag begins or ends there."""
    return Markup(text.replace("<", "\\u003c"))
