"""A user's data as other tools write them: a table or a folder, its reader, and the options that it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedtune.core.errors import UserError
from fedtune.core.terminal import several
from fedtune.data import user_arrays, user_leaf, user_options, user_pfllib, user_rows, user_text
from fedtune.data.dataset import Dataset
from fedtune.data.plain import plain
from fedtune.data.user_options import Options, Read
from fedtune.user_code import layouts

Reader = Callable[[Path, Options], Read]


def _tables() -> Any:
    """Readers of tables, which need pyarrow: loaded when there is a table."""
    from fedtune.data import user_tables

    return user_tables


def _csv(path: Path, options: Options) -> Read:
    found: Read = _tables().csv(path, options)
    return found


def _parquet(path: Path, options: Options) -> Read:
    found: Read = _tables().parquet(path, options)
    return found


def _hugging_face(path: Path, options: Options) -> Read:
    found: Read = _tables().hugging_face(path, options)
    return found


LAYOUTS: Mapping[str, tuple[Reader, tuple[str, ...]]] = {
    layouts.PFLLIB: (user_pfllib.read, user_options.ARRAYS),
    layouts.LEAF: (user_leaf.read, user_options.LEAF),
    layouts.HUGGING_FACE: (_hugging_face, user_options.COLUMNS),
    layouts.PARQUET: (_parquet, user_options.COLUMNS),
}
FILES: Mapping[str, tuple[Reader, tuple[str, ...]]] = {
    ".json": (user_leaf.read, user_options.LEAF),
    ".csv": (_csv, user_options.CSV),
    ".tsv": (_csv, user_options.CSV),
    ".parquet": (_parquet, user_options.COLUMNS),
}


def reader(path: Path) -> tuple[Reader, tuple[str, ...]] | None:
    """What reads a file or folder, and its options; None for arrays and for folders of pictures."""
    if not path.is_dir():
        return FILES.get(path.suffix.lower())
    found = layouts.of(path)
    return LAYOUTS[found.kind] if found else None


def read(name: str, path: Path, given: Mapping[str, Any]) -> Dataset | None:
    """The data set of a file or folder; None where there is no reader.  given: the options after its name."""
    found = reader(path)
    if found is None:
        if given:
            raise UserError(f"{path} takes no options, but got {', '.join(given)}; leave them out")
        return None
    read_it, known = found
    options = user_options.parsed(name, given, known)
    rows = read_it(path, options)
    source = str(path)
    if options.split is None:
        rows = rows._replace(split=None)
    x, kind, notes = _rows(source, rows, options)
    arrays = {"y": _whole(rows.y), "owner": _whole(rows.owner), "split": rows.split, "classes": rows.classes}
    arrays = {n: a for n, a in arrays.items() if a is not None}
    made = user_arrays.of_rows(name, source, x, arrays, kind)
    return made._replace(notes=(*rows.notes, *made.notes, *notes))


def _rows(source: str, read_: Read, options: Options) -> tuple[Any, str, tuple[str, ...]]:
    """The rows as arrays or pictures, what they are, and notes."""
    x = read_.x
    if isinstance(x, list):
        trained = None if read_.split is None else np.asarray(read_.split) == 0
        tokens, note = user_text.tokens(source, x, options.text, options.length, trained)
        return _shaped(source, tokens, options), user_rows.TOKENS, (note,)
    if options.text:
        raise UserError(f"text says how text becomes tokens, but x of {source} is no text; leave it out")
    if not isinstance(x, np.ndarray):
        if options.shape:
            raise UserError(f"shape is for arrays, but {source} holds pictures; leave it out, or give --image-size")
        return x, read_.kind, ()
    x = plain(source, "x", x)
    user_rows.require_rows(source, x, missing=options.missing == user_options.MEAN)
    kind = read_.kind
    if options.shape:
        x, kind = _shaped(source, x, options), ""
    return x, kind or user_rows.kind_of(x), ()


def _shaped(source: str, x: np.ndarray, options: Options) -> np.ndarray:
    """The rows in the given shape."""
    if not options.shape:
        return x
    if np.prod(options.shape) != np.prod(x.shape[1:]):
        raise UserError(
            f"shape must have as many entries as a row of {source}, {several(int(np.prod(x.shape[1:])), 'number')}, "
            f"but {options.shape} has {np.prod(options.shape)}"
        )
    return x.reshape(len(x), *options.shape)


def _whole(names: Any) -> Any:
    """Labels or owners such as 1.0, as JSON and tables with gaps write whole numbers, as such."""
    if isinstance(names, np.ndarray) and names.dtype.kind == "f" and (names == np.floor(names)).all():
        return names.astype(np.int64) if (np.abs(names) < 2**53).all() else names
    return names
