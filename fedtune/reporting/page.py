"""A report as one file: the page's template filled in, with its style, scripts, figures and data inside.

The page fetches nothing, and its content security policy allows no scripts but its own.  Plotly is inside compressed:
the page's script unpacks it, and the policy allows the very text that was packed.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import os
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from markupsafe import Markup
from plotly.offline import get_plotlyjs

from fedtune.core.terminal import several
from fedtune.reporting import output, sections, templates
from fedtune.reporting.output import MARK
from fedtune.reporting.sections import Comparison, SearchSection
from fedtune.runs.files import levels_of, write_whole


def write(runs: Sequence[Path], file: Path) -> None:
    """Write one page on these runs; UserError for one that cannot be read."""
    parts = []
    for i, run in enumerate(runs, 1):
        for level in levels_of(run):
            write([level.path], output.place([level.path]))
        links = {of.name: os.path.relpath(of.path / "report.html", file.parent) for of in levels_of(run)}
        parts.append(sections.read(run, f"run{i}", logs=links))
    write_whole(file, html(parts))


def html(parts: Sequence[SearchSection | Comparison]) -> str:
    """The page.  Everything from a run is escaped, except JSON, in which no tag can begin."""
    plotly, js = get_plotlyjs(), templates.text("report.js")
    return (
        templates.ENVIRONMENT.get_template("report.html")
        .render(
            title=parts[0].title if len(parts) == 1 else several(len(parts), "run"),
            runs=parts,
            overview=sections.overview(parts),
            mark=Markup(MARK),
            policy=_policy(plotly, js),
            css=Markup(templates.text("report.css")),
            plotly=Markup(packed(plotly)),
            js=Markup(js),
            made=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        )
        .lstrip()
    )


@lru_cache(maxsize=1)  # Plotly's script, which takes as long as all figures of a short search
def packed(text: str) -> str:
    """A text compressed (zlib, RFC 1950) and in Base64, as report.js unpacks it."""
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _policy(*scripts: str) -> str:
    """The content security policy: nothing is fetched, and only these scripts run.  Plotly needs inline styles."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "font-src data:; base-uri 'none'; form-action 'none'"
    )
