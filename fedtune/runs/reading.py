"""Read files in a study's folder: checked once, and reported by name if damaged.

Nothing that is read here is executed: JSON, plain YAML values, tables.  Ray's own state is different
(docs/background/security.md).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtune.core.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

NUMBER, TEXT = "a number", "text"  # the possible kinds of a table's columns


def record(file: Path) -> dict[str, Any]:
    """Read a record; ValueError or OSError if it cannot be used."""
    return _checked(file.name, json.loads(file.read_text("utf-8")))


def best(file: Path) -> dict[str, Any]:
    """Read a best.yaml; ValueError or OSError if it cannot be used."""
    import yaml

    try:
        return _checked("best.yaml", yaml.safe_load(file.read_text("utf-8")))
    except yaml.YAMLError as error:
        raise ValueError(short(error)) from error


def _checked(name: str, content: Any) -> dict[str, Any]:
    """The content of a file of this name, or of its line; ValueError if it cannot be used."""
    from fedtune.runs import schema  # imported here, because pydantic takes a moment to load

    return schema.checked(name, content)


def text(file: Path) -> str:
    """The text of a small file; "" if it cannot be read."""
    try:
        return file.read_text("utf-8", errors="replace")
    except OSError:
        return ""


def lines(file: Path) -> list[dict[str, Any]]:
    """The results in a trial's log, or the suggestions in a searcher's; none if there is no such file."""
    return _entries(file, file.read_bytes()) if file.is_file() else []


def new_rows(file: Path, start: int) -> tuple[list[dict[str, Any]], int]:
    """The entries of a log from this byte on, and the byte after its last complete line: the next start.

    A line that its writer has not ended yet is left for the next time.
    """
    with file.open("rb") as opened:
        opened.seek(start)
        text, end, _ = opened.read().rpartition(b"\n")
    return _entries(file, text), start + len(text + end)


def _entries(file: Path, text: bytes) -> list[dict[str, Any]]:
    entries = []
    for line in text.split(b"\n"):
        with suppress(ValueError):
            entries.append(_checked(file.name, json.loads(line.decode(errors="replace"))))
    return entries


def table(file: Path, needed: Collection[str] = (), kinds: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Read a table of a run; UserError with its name if it is damaged.

    needed: columns that it must have.  kinds: name -> NUMBER or TEXT, for columns that exist.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        if not file.exists():
            raise OSError("it does not exist")
        with parquet.ParquetFile(file, page_checksum_verification=True) as opened:
            frame: pd.DataFrame = opened.read().to_pandas()
            fields = (opened.schema_arrow.pandas_metadata or {}).get("columns", [])
            names = [opened.schema.names, opened.schema_arrow.names, [c["name"] for c in fields]]
            if any(
                stored != list(frame) for stored in names
            ):  # pages have checksums, names none, but are stored thrice
                raise ValueError("its column names contradict each other")
    except (OSError, ValueError, TypeError, KeyError, OverflowError, pyarrow.ArrowException) as error:
        raise damaged(file, error) from error
    return _with_columns(frame, file, needed, kinds or {})


def text_table(file: Path, needed: Collection[str] = (), kinds: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Read a .csv of a run; UserError with its name if it is damaged.  needed, kinds: as in `table`."""
    import pandas as pd

    texts = {name: object for name, kind in (kinds or {}).items() if kind == TEXT}  # even if all are empty
    try:
        frame = pd.read_csv(file, dtype=texts)
    except (OSError, ValueError) as error:  # pandas' own errors among them
        raise damaged(file, error) from error
    return _with_columns(frame, file, needed, kinds or {})


def _with_columns(frame: pd.DataFrame, file: Path, needed: Collection[str], kinds: Mapping[str, str]) -> pd.DataFrame:
    if lacking := [name for name in needed if name not in frame]:
        raise damaged(file, f"it has no column {', '.join(lacking)}")
    for name, kind in kinds.items():
        if name in frame and not _holds(frame[name], kind):
            raise damaged(file, f"its column {name} must hold {kind}, but holds {frame[name].dtype}")
    return frame


def _holds(column: pd.Series, kind: str) -> bool:
    """Whether a column has numbers, or text; an empty one counts as both."""
    import pandas as pd

    filled = column.dropna()
    if kind == NUMBER:
        return filled.empty or (pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column))
    return bool(filled.map(type).eq(str).all())


def write_table(frame: pd.DataFrame, file: Path) -> None:
    """Write a table atomically, with a checksum for each page."""
    part = file.with_suffix(file.suffix + ".part")
    frame.to_parquet(part, index=False, write_page_checksum=True)
    part.replace(file)


def damaged(file: Path, why: object) -> UserError:
    """The error for a run's file that cannot be used."""
    return UserError(f"{file} is damaged ({short(why)}); restore it from a copy")


def short(why: object) -> str:
    """The first line of an error, without the path, which the message has already."""
    if isinstance(why, OSError) and why.strerror:
        return why.strerror
    return (str(why).strip().splitlines() or [type(why).__name__])[0][:200]


def rounds_of(record: Mapping[str, Any]) -> int:
    """The rounds of a whole run, from the record of a search."""
    return int(record.get("rounds") or record["scenario"]["rounds"])


def compared_in(record: Mapping[str, Any]) -> list[str]:
    """The algorithms of a comparison's record, without the second name under which one takes part as a control."""
    return [name for name in record["algorithms"] if name not in record.get("control", [])[1:]]


def commits_of(record: Mapping[str, Any]) -> list[str | None]:
    """The commits of the code that a run was made by, the first one first; None where it is unknown."""
    return list(dict.fromkeys([*(record.get("earlier_commits") or []), record.get("git_commit")]))
