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
from fedtune.data.user_options import Options, Rows
from fedtune.user_code import layouts

Reader = Callable[[Path, Options], Rows]


def _tables() -> Any:
    """Readers of tables, which need pyarrow: loaded when there is a table."""
    from fedtune.data import user_tables

    return user_tables


def _csv(path: Path, options: Options) -> Rows:
    table: Rows = _tables().csv(path, options)
    return table


def _parquet(path: Path, options: Options) -> Rows:
    table: Rows = _tables().parquet(path, options)
    return table


def _hugging_face(path: Path, options: Options) -> Rows:
    table: Rows = _tables().hugging_face(path, options)
    return table


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
    layout = layouts.of(path)
    return LAYOUTS[layout.kind] if layout else None


def read(name: str, path: Path, options_given: Mapping[str, Any]) -> Dataset | None:
    """The data set of a file or folder; None where there is no reader.  given: the options after its name."""
    reader_found = reader(path)
    if reader_found is None:
        if options_given:
            raise UserError(f"{path} takes no options, but got {', '.join(options_given)}; leave them out")
        return None
    read_rows, option_names = reader_found
    options = user_options.parsed(name, options_given, option_names)
    rows = read_rows(path, options)
    source = str(path)
    if options.split is None:
        rows = rows._replace(split=None)
    x, kind, notes = _rows(source, rows, options)
    arrays = {"y": _integers(rows.y), "owner": _integers(rows.owner), "split": rows.split, "classes": rows.classes}
    arrays = {n: a for n, a in arrays.items() if a is not None}
    data = user_arrays.of_rows(name, source, x, arrays, kind)
    return data._replace(notes=(*rows.notes, *data.notes, *notes))


def _rows(source: str, user: Rows, options: Options) -> tuple[Any, str, tuple[str, ...]]:
    """The rows as arrays or pictures, what they are, and notes."""
    x = user.x
    if isinstance(x, list):
        is_training = None if user.split is None else np.asarray(user.split) == 0
        tokens, note = user_text.tokens(source, x, options.text, options.length, is_training)
        return _shaped(source, tokens, options), user_rows.TOKENS, (note,)
    if options.text:
        raise UserError(f"text says how text becomes tokens, but x of {source} is no text; leave it out")
    if not isinstance(x, np.ndarray):
        if options.shape:
            raise UserError(f"shape is for arrays, but {source} holds pictures; leave it out, or give --image-size")
        return x, user.kind, ()
    x = plain(source, "x", x)
    user_rows.require_rows(source, x, missing=options.missing == user_options.MEAN)
    kind = user.kind
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


def _integers(names: Any) -> Any:
    """Labels or owners such as 1.0, as JSON and tables with gaps write whole numbers, as such."""
    if isinstance(names, np.ndarray) and names.dtype.kind == "f" and (names == np.floor(names)).all():
        return names.astype(np.int64) if (np.abs(names) < 2**53).all() else names
    return names
