"""This package: its version, the format of the files that it writes, its folder, and where its pages are read."""

from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

from fedtune.core.errors import UserError

VERSION = "0.3.0"
FORMAT = 4  # the format of records and saved models; increased when older ones can no longer be read
UNRELEASED = ("0.1.0", "0.2.0")  # versions that were never released
FOLDER = Path(__file__).parents[1]


def page(name: str) -> str:
    """Where a page of docs/ is read: on the site that the package's publisher names, else in the repository."""
    try:
        urls = dict(url.split(", ", 1) for url in metadata("fedtune").get_all("Project-URL", []))
    except PackageNotFoundError:  # a clone that is not installed
        urls = {}
    site = urls.get("Documentation", "").rstrip("/")
    return f"{site}/{name}.html" if site else f"docs/{name}.md"


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
