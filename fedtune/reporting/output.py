"""Where a report goes, checked before the libraries of its figures are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedtune.core.errors import UserError
from fedtune.runs.files import KINDS, REPRODUCTION, RunFiles, require_kind

MARK = '<meta name="generator" content="fedtune report">'  # what tells a report from other files


def place(runs: Sequence[Path], out: Path | None = None) -> Path:
    """The file of a report on these runs: as asked for, or report.html in the folder of the only one.

    UserError for a folder that holds no run, and for a file that exists and is no report.
    """
    if out is None and len(runs) > 1:
        raise UserError(
            f"a report on several runs needs -o, but {len(runs)} runs were given without it; give -o FILE.html"
        )
    for run in runs:
        kind = require_kind(run)
        if kind == REPRODUCTION:
            tables = RunFiles(run).markdown_file
            raise UserError(
                f"a report is of searches and comparisons, but {run} belongs to {KINDS[kind]}: see {tables}"
            )
        _ = RunFiles(run, kind).record  # UserError if it is damaged
    file = out or runs[0] / "report.html"
    if not file.absolute().parent.is_dir():
        raise UserError(f"-o needs a file in a folder that exists, but got {file}; make {file.parent} first")
    if file.exists() and not (file.is_file() and MARK.encode() in file.open("rb").read(1000)):
        raise UserError(f"a report overwrites only an earlier report, but {file} is not one; give another -o")
    return file
