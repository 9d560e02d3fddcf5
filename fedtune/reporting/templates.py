"""The templates of pages: everything from a run is escaped, except JSON, in which no tag can begin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fedtune.core.terminal import several

FOLDER = Path(__file__).parent
ENVIRONMENT = Environment(
    loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
ENVIRONMENT.globals["several"] = several


def text(name: str) -> str:
    """The text of a file beside the templates."""
    return (FOLDER / name).read_text(encoding="utf-8")


def embedded(text: str) -> Markup:
    """JSON for a <script>: `<` is escaped, so that no tag begins or ends there."""
    return Markup(text.replace("<", "\\u003c"))


def embedded_json(content: Any) -> Markup:
    """Content as such JSON."""
    return embedded(json.dumps(content, ensure_ascii=False, separators=(",", ":")))
