"""Check a user's arrays and convert them into a data set: x, y, and optionally owner, split and classes.

x        vectors, tokens, series or images: `user_rows`
y        [rows] whole numbers or names; the classes are the values that occur, sorted, numbered from 0
owner    [rows] the owner of each row: whole numbers or names; owners keep their names, in ascending order
split    [rows] 0, 1, 2 or train, val, test
classes  the names of the classes: then y holds 0 .. number of classes - 1
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedtune.core.errors import UserError, unknown
from fedtune.core.terminal import several
from fedtune.data import user_names, user_rows, user_text
from fedtune.data.dataset import PICTURES, SPLITS, Dataset, split_of
from fedtune.data.plain import plain, require_aligned
from fedtune.data.user_options import MEAN, Options, Rows

NAMES = ("x", "y", "owner", "split", "classes")


def read_npz(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The arrays of a file, never unpickled; UserError in one line if anything is wrong with it."""
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise UserError(
                f"{path} holds a single array without a name; save arrays by name, as in np.savez(path, x=x)"
            )
        with file:
            for name in file.files:
                if name not in names:
                    raise unknown(f"array in {path}", name, names)
            return {name: file[name] for name in file.files}
    except UserError:
        raise
    except Exception as error:  # from the zip format, its compression, or NumPy
        reason = (error.strerror or "") if isinstance(error, OSError) else " ".join(str(error).split())
        reason = reason or type(error).__name__
        if "pickle" in reason:
            reason = "it holds pickled Python objects, which are never read; save arrays of numbers or text"
        raise UserError(f"{path} cannot be read as an .npz: {reason}") from error


def read(path: Path, _: Options) -> Rows:
    """The rows of an .npz."""
    return rows(str(path), read_npz(path, NAMES))


def rows(source: str, arrays: Mapping[str, Any]) -> Rows:
    """The rows of these arrays.  source: the name of the file or function in messages."""
    for key in ("x", "y"):
        if key not in arrays:
            raise UserError(f"{source} needs arrays x and y, but has no {key}: it has {', '.join(arrays) or 'none'}")
    require_aligned(source, arrays)
    return Rows(**arrays)


def to_dataset(name: str, source: str, user: Rows, options: Options = Options()) -> Dataset:  # noqa: B008 - immutable
    """The data set of a user's rows, not normalised.  source: the name of the file or function in messages."""
    user = user._replace(split=None) if options.split is None else user
    x, kind, notes = _x(source, user, options)
    columns = {n: plain(source, n, a) for n in NAMES[1:4] if (a := getattr(user, n)) is not None}
    columns = {n: a[:, 0] if a.ndim == 2 and a.shape[1] == 1 else a for n, a in columns.items()}  # a column
    for n, array in columns.items():
        if n == "y" and array.ndim == 2 and len(array) == len(x):
            raise UserError(f"y of {source} must be one class per row, but has shape {array.shape}; give y.argmax(1)")
        if array.ndim != 1 or len(array) != len(x):
            shapes = f"{n} of shape {array.shape} and x of shape {x.shape}"
            raise UserError(f"{source} needs as many entries of {n} as rows of x, but has {shapes}")
    split = _split(source, columns["split"]) if "split" in columns else None
    declared = None if user.classes is None else plain(source, "classes", user.classes).ravel().tolist()
    y = user_names.classes(source, columns["y"], split, declared)
    owner = user_names.owners(source, columns["owner"]) if "owner" in columns else None
    return Dataset(
        name=name,
        x=x,
        y=y.numbers,
        classes=len(y.names),
        train_rows=len(x),
        owner=owner.numbers if owner else None,
        split=split,
        raw=True,
        class_names=y.names,
        owner_names=owner.names if owner else (),
        notes=(*user.notes, *y.notes, *(owner.notes if owner else ()), *notes),
        kind=kind,
    )


def _x(source: str, user: Rows, options: Options) -> tuple[Any, str, tuple[str, ...]]:
    """The rows as arrays or pictures, what they are, and a note."""
    x, kind = user.x, user.kind
    notes: tuple[str, ...] = ()
    if options.text and kind != user_rows.TEXT:
        raise UserError(f"text says how text becomes tokens, but x of {source} is no text; leave it out")
    if options.shape and kind == PICTURES:
        raise UserError(f"shape is for arrays, but {source} holds pictures; leave it out, or give --image-size")
    if kind == PICTURES:
        return x, kind, ()
    if kind == user_rows.TEXT:
        training = None if user.split is None else np.asarray(user.split) == 0
        x, note = user_text.tokens(source, x, options.text, options.length, training)
        kind, notes = user_rows.TOKENS, (note,)
    else:
        x = plain(source, "x", x)
        user_rows.require_rows(source, x, missing=options.missing == MEAN)
    if options.shape:
        if np.prod(options.shape) != np.prod(x.shape[1:]):
            raise UserError(
                f"shape must have as many entries as a row of {source}, "
                f"{several(int(np.prod(x.shape[1:])), 'number')}, but {options.shape} has {np.prod(options.shape)}"
            )
        x, kind = x.reshape(len(x), *options.shape), kind if notes else ""
    return x, kind or user_rows.kind_of(x), notes


def splits(source: str, split: np.ndarray) -> np.ndarray:
    """Splits as 0 train, 1 validation, 2 test; UserError for other values."""
    numbers: dict[Any, int | None] = {0: 0, 1: 1, 2: 2}
    if split.dtype.kind == "U":
        numbers = {name: s for name in np.unique(split).tolist() if (s := split_of(name)) is not None}
    unknown_values = [v for v in np.unique(split).tolist() if v not in numbers]
    if unknown_values:
        raise UserError(f"split of {source} must be 0, 1, 2 or train, val, test, but has {unknown_values[0]!r}")
    return np.array([numbers[v] for v in split.tolist()], np.int64)


def _split(source: str, split: np.ndarray) -> np.ndarray:
    """The splits of a data set; UserError unless it has training and test rows."""
    numbers = splits(source, split)
    for i in (0, 2):
        if not (numbers == i).any():
            raise UserError(
                f"split of {source} needs {SPLITS[i]} rows, but has none; leave split out to draw one at random"
            )
    return numbers
