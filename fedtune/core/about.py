"""This package: its version, the format of the files that it writes, and the folder it is installed in."""

from pathlib import Path
from typing import Any

from fedtune.core.errors import UserError

VERSION = "0.3.0"
FORMAT = 4  # the format of records and saved models; increased when older ones can no longer be read
UNRELEASED = ("0.1.0", "0.2.0")  # versions that were never released
FOLDER = Path(__file__).parents[1]


def require_format(file: Path, number: Any, version: Any) -> None:
    """UserError for a file in another format than this fedtune writes.  version: of the fedtune that wrote it."""
    if number == FORMAT and version not in UNRELEASED:
        return
    writer = f"fedtune {version}" if version else "another fedtune"
    ending = "" if number == FORMAT else f" and has {number or 'none'}"
    would_do = "update fedtune" if isinstance(number, int) and number > FORMAT else "run it again"
    raise UserError(
        f"a record must have format {FORMAT}, as fedtune {VERSION} writes it, but {file} is of {writer}{ending}; "
        f"{would_do}, or use the fedtune that wrote it"
    )
