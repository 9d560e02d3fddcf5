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

from fedtune.core.errors import UserError, require_known
from fedtune.data import user_names, user_rows, user_text
from fedtune.data.dataset import PICTURES, Dataset, split_of
from fedtune.data.plain import plain, require_aligned
from fedtune.data.reading import reading
from fedtune.data.user_options import MEAN, Options, Rows

NAMES = ("x", "y", "owner", "split", "classes")


def read_npz(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The arrays of a file, never unpickled; UserError in one line if anything is wrong with it."""
    todo = "save arrays of numbers or text by name, as in np.savez(path, x=x); pickled Python objects are never read"
    with reading(path, "an .npz", todo), np.load(path, allow_pickle=False) as file:
        require_known(f"array in {path}", file.files, names)
        return {name: file[name] for name in file.files}


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
    columns = {n: plain(source, n, a) for n in NAMES[1:4] if (a := getattr(user, n)) is not None}
    columns = {n: a[:, 0] if a.ndim == 2 and a.shape[1] == 1 else a for n, a in columns.items()}  # a column
    split = splits(source, columns["split"]) if "split" in columns else None
    if split is not None and not {0, 2} <= {*split.tolist()}:
        raise UserError(f"split of {source} needs train rows and test rows; leave split out to draw one at random")
    x, kind, notes = _x(source, user, split, options)
    for n, array in columns.items():
        if array.ndim != 1 or len(array) != len(x):
            raise UserError(
                f"{n} of {source} must be one value for each of the {len(x)} rows of x, but has shape "
                f"{array.shape}; for classes in columns give y.argmax(1)"
            )
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


def _x(source: str, user: Rows, split: np.ndarray | None, options: Options) -> tuple[Any, str, tuple[str, ...]]:
    """The rows as arrays or pictures, what they are, and a note."""
    x, kind = user.x, user.kind
    notes: tuple[str, ...] = ()
    if (options.text and kind != user_rows.TEXT) or (options.shape and kind == PICTURES):
        raise UserError(f"text=… is for rows of text and shape=… for arrays, but {source} has neither; leave it out")
    if kind == PICTURES:
        return x, kind, ()
    if kind == user_rows.TEXT:
        x, note = user_text.tokens(source, x, options, split)
        kind, notes = user_rows.TOKENS, (note,)
    else:
        x = plain(source, "x", x)
        user_rows.require_rows(source, x, missing=options.missing == MEAN)
    if options.shape:
        if np.prod(options.shape) != np.prod(x.shape[1:]):
            raise UserError(f"shape must have the {x[0].size} numbers of a row of {source}, but is {options.shape}")
        x, kind = x.reshape(len(x), *options.shape), kind if notes else ""
    return x, kind or user_rows.kind_of(x), notes


def splits(source: str, split: np.ndarray) -> np.ndarray:
    """Splits as 0 train, 1 validation, 2 test; UserError for other values."""
    values, places = np.unique(split, return_inverse=True)
    numbers = [split_of(v) if isinstance(v, str) else v if v in (0, 1, 2) else None for v in values.tolist()]
    if None in numbers:
        strange = values.tolist()[numbers.index(None)]
        raise UserError(f"split of {source} must be 0, 1, 2 or train, val, test, but has {strange!r}")
    return np.array(numbers, np.int64)[places.reshape(-1)]
