"""This package: its version, the format of what it writes and reads again, and where its files lie."""

from pathlib import Path
from typing import Any

from fedtune.core.errors import UserError

VERSION = "0.3.0"
FORMAT = 2  # of records and saved models; a change after which older ones cannot be read raises it
BEFORE = ("0.1.0", "0.2.0")  # fedtune that was never released; the latter's records have this number, too
FOLDER = Path(__file__).parents[1]


def require_format(file: Path, written: Any, version: Any) -> None:
    """UserError for a file of another format than this fedtune writes.  version: of the fedtune that wrote it."""
    if written == FORMAT and version not in BEFORE:
        return
    by = f"fedtune {version}" if version else "another fedtune"
    number = "" if written == FORMAT else f" and has {written or 'none'}"
    would_do = "update fedtune" if isinstance(written, int) and written > FORMAT else "run it again"
    raise UserError(
        f"a record must have format {FORMAT}, as fedtune {VERSION} writes it, but {file} is of {by}{number}; "
        f"{would_do}, or use the fedtune that wrote it"
    )
