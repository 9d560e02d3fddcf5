"""python -m fedtune.report RUN…: one page on what searches and comparisons found, which needs nothing but a browser.

    fedtune report runs/gfpl-digits-w4-20261121-050812        # report.html in the run's folder
    fedtune report runs/a runs/b -o both.html

The answer comes first, then figures, then the table of trials, then where the numbers come from.  The page fetches
nothing: style, scripts, figures and tables are in it, and its content security policy allows no others.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from fedtune import arguments
from fedtune.core.errors import UserError
from fedtune.core.terminal import say
from fedtune.reporting import sections
from fedtune.reporting.sections import Comparison, Search

MARK = '<meta name="generator" content="fedtune report">'  # what tells a report from other files


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """The command."""
    p = arguments.Parser(prog="fedtune report", description="One page on what searches and comparisons found.")
    p.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="the folder of a search or a comparison")
    p.add_argument("-o", "--output", type=Path, metavar="FILE.html", help="default, for one RUN: RUN/report.html")
    p.add_argument("--debug", action="store_true", help="show the stack of an error")
    args = p.parse_args(argv)
    if not args.output and len(args.runs) > 1:
        raise UserError(f"a report on several runs needs -o, but {len(args.runs)} came without it; give -o FILE.html")
    out = args.output or args.runs[0] / "report.html"
    if args.output:
        _require_output(out)
    parts = [sections.read(run, f"run{i}") for i, run in enumerate(args.runs, 1)]
    _require_output(out)
    text = page(parts)
    part = out.with_name(out.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(out)
    say(f"report: {out} ({len(text.encode()) / 1e6:.1f} MB)")
    return 0


def page(parts: Sequence[Search | Comparison]) -> str:
    """The page's HTML.  All that comes from a run is escaped, but for JSON, in which no tag can begin."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    plotly, js = get_plotlyjs(), _ours("js")
    return environment.from_string(_ours("html")).render(
        title=parts[0].title if len(parts) == 1 else f"{len(parts)} runs", runs=parts,
        overview=sections.overview(parts) if len(parts) > 1 else None, mark=Markup(MARK),
        policy=_policy(plotly, js), css=Markup(_ours("css")), plotly=Markup(plotly), js=Markup(js),
        made=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    ).lstrip()  # fmt: skip


def _ours(suffix: str) -> str:
    return (Path(__file__).parent / "reporting" / f"report.{suffix}").read_text(encoding="utf-8")


def _policy(*scripts: str) -> str:
    """Nothing from anywhere, and no script but these.  Plotly styles its elements inline."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "font-src data:; base-uri 'none'; form-action 'none'"
    )


def _require_output(out: Path) -> None:
    """UserError unless a report can go there: a new file, or one that holds a report."""
    if not out.absolute().parent.is_dir():
        raise UserError(f"-o needs a file in a folder that exists, but got {out}; make {out.parent} first")
    if out.exists() and not (out.is_file() and MARK.encode() in out.open("rb").read(1000)):
        raise UserError(f"a report overwrites an earlier report and nothing else, but {out} is none; give another -o")


if __name__ == "__main__":
    sys.exit(main())
