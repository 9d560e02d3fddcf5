"""Check a user's arrays and convert them into a data set: x, y, and optionally owner, split and classes.

x        vectors, tokens, series or images: `user_rows`
y        [rows] whole numbers or names; the classes are the values that occur, sorted, numbered from 0
owner    [rows] the owner of each row: whole numbers or names; owners keep their names, in ascending order
split    [rows] 0, 1, 2 or train, val, test
classes  the names of the classes: then y holds 0 .. number of classes - 1
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np

from fedtune.core import zipped
from fedtune.core.errors import UserError, unknown
from fedtune.core.terminal import few, several
from fedtune.data import user_rows
from fedtune.data.dataset import SPLITS, Dataset, RowsOnAccess, split_of
from fedtune.data.plain import plain, require_aligned

NAMES = ("x", "y", "owner", "split", "classes")
MAX_NUMBERS = 20  # more whole numbers than this look like measurements, unless they number classes from 0 or 1
BINS = "targets are classes, so bin a measurement, for instance y = np.digitize(y, np.quantile(y, [0.25, 0.5, 0.75]))"


def read_npz(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The arrays of a file, never unpickled; UserError in one line if anything is wrong with it."""
    try:
        zipped.require_arrays(path)
        with np.load(path, allow_pickle=False) as file:
            for name in file.files:
                if name not in names:
                    raise unknown(f"array in {path}", name, names)
            return {name: file[name] for name in file.files}
    except UserError:
        raise
    except Exception as error:  # from the zip format, its compression, or NumPy
        reason = (error.strerror or "") if isinstance(error, OSError) else " ".join(str(error).split())
        reason = reason or type(error).__name__
        if "allow_pickle" in reason or "pickle" in reason:
            reason = "it holds pickled Python objects, which are never read; save arrays of numbers or text"
        raise UserError(f"{path} cannot be read as an .npz: {reason}") from error


def to_dataset(name: str, source: str, arrays: Mapping[str, Any]) -> Dataset:
    """The data set of these arrays, not normalised.  source: the name of the file or function in messages."""
    for key in ("x", "y"):
        if key not in arrays:
            raise UserError(f"{source} needs arrays x and y, but has no {key}: it has {', '.join(arrays) or 'none'}")
    require_aligned(source, arrays)
    x = plain(source, "x", arrays["x"])
    user_rows.require_rows(source, x)
    return of_rows(name, source, x, arrays, user_rows.kind_of(x))


def of_rows(name: str, source: str, x: np.ndarray | RowsOnAccess, arrays: Mapping[str, Any], kind: str) -> Dataset:
    """The data set of rows that are checked already, and the other arrays.  kind: of the rows (see Dataset)."""
    columns = {n: plain(source, n, arrays[n]) for n in NAMES[1:4] if n in arrays}
    columns = {n: a[:, 0] if a.ndim == 2 and a.shape[1] == 1 else a for n, a in columns.items()}  # a column
    for n, array in columns.items():
        if n == "y" and array.ndim == 2 and len(array) == len(x):
            raise UserError(f"y of {source} must be one class per row, but has shape {array.shape}; give y.argmax(1)")
        if array.ndim != 1 or len(array) != len(x):
            shapes = f"{n} of shape {array.shape} and x of shape {x.shape}"
            raise UserError(f"{source} needs as many entries of {n} as rows of x, but has {shapes}")
    y, class_names = labels(source, columns["y"], arrays.get("classes"))
    owner, owner_names = _owners(source, columns["owner"]) if "owner" in columns else (None, ())
    split = _split(source, columns["split"]) if "split" in columns else None
    notes = doubts(source, class_names, y, split) + only_case(source, owner_names)
    return Dataset(
        name=name,
        x=x,
        y=y,
        classes=len(class_names),
        train_rows=len(y),
        owner=owner,
        split=split,
        raw=True,
        class_names=class_names,
        owner_names=owner_names,
        notes=notes,
        kind=kind,
    )


def labels(source: str, y: np.ndarray, names: Any = None) -> tuple[np.ndarray, tuple[str, ...]]:
    """Classes as int64 numbered from 0, and their names."""
    _require_all(source, "y", y)
    if y.dtype.kind == "f" and (y == np.floor(y)).all():
        raise UserError(f"y of {source} must be whole numbers or names, but is {y.dtype}; give y.astype(int)")
    if y.dtype.kind == "f":
        raise UserError(f"y of {source} must be classes, but holds real numbers, {_range(y)}: {BINS}")
    if y.dtype.kind in "iu" and y.min() < 0:
        raise UserError(f"y of {source} must be classes from 0 on, but has {y.min()}; leave rows without a class out")
    if names is not None:
        classes = names_of(source, plain(source, "classes", names).ravel())
        if repeated := next((n for n in classes if classes.count(n) > 1), ""):
            raise UserError(f"classes of {source} must have different names, but {repeated!r} occurs twice")
        if y.dtype.kind not in "iu" or y.max() >= len(classes):
            raise UserError(
                f"y of {source} must be 0 to {len(classes) - 1}, because it names {len(classes)} classes, but has "
                f"{y.max() if y.dtype.kind in 'iu' else y.dtype}"
            )
        return y.astype(np.int64), classes
    values, numbers = np.unique(y, return_inverse=True)
    if len(values) < 2:
        raise UserError(
            f"y of {source} needs at least two classes, but has {len(values)}: {', '.join(map(str, values))}"
        )
    consecutive = y.dtype.kind in "iu" and values[0] in (0, 1) and values[-1] - values[0] == len(values) - 1
    if len(values) > len(y) / 2 or (len(values) > MAX_NUMBERS and y.dtype.kind in "iu" and not consecutive):
        note = f", {_range(y)}" if y.dtype.kind in "iu" else ""
        raise UserError(
            f"y of {source} needs rows of each class, but has {len(values)} values in {len(y)} rows{note}; are they "
            f"classes? {BINS[0].upper()}{BINS[1:]}"
            + ("; for classes with such numbers give y.astype(str)" if note else "")
        )
    return numbers.astype(np.int64).reshape(-1), names_of(source, values)


def names_of(source: str, values: Iterable[Any]) -> tuple[str, ...]:
    """The names of owners or classes, one line each: line ends and tabs are shown as \\n and \\t.

    UserError for names that look the same, or that differ only in blanks, a final dot or Unicode form.
    """
    texts = list(map(str, values))
    printable = tuple(n if n.isprintable() else "".join(_escaped(c) for c in n) for n in texts)
    if pairs := _pairs(printable, texts) or _pairs(map(_as_read, texts), texts):
        raise UserError(
            f"names in {source} must look different, and differ in more than blanks, a final dot or Unicode form, but "
            f"{few(pairs)} do not; write the same name in the same way, or rename one"
        )
    return printable


def doubts(source: str, names: tuple[str, ...], y: np.ndarray, split: np.ndarray | None) -> tuple[str, ...]:
    """Notes about the names of classes; UserError if one that differs only in case has no training rows."""
    has_rows = np.ones(len(names), bool) if split is None else np.isin(np.arange(len(names)), y[split == 0])
    empty = [n for i, n in enumerate(names) if not has_rows[i] and (y == i).any()]
    folded = {n.casefold() for n in empty if len(n) > 1}  # a and A are letters
    similar = [n for n in names if n.casefold() in folded]
    if pairs := _pairs(map(str.casefold, similar), similar):
        raise UserError(
            f"classes of {source} that differ only in case must all have training rows, but of {few(pairs)} one has "
            "none; write the same name in the same way, or rename one"
        )
    note = (f"{several(len(empty), 'class')} of {source} without training rows: {few(empty)}",) if empty else ()
    return note + only_case(source, names)


def only_case(source: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """A note about names that differ only in case."""
    pairs = _pairs(map(str.casefold, names), names)
    return (f"names in {source} that differ only in case stay different: {few(pairs)}",) if pairs else ()


def _pairs(keys: Iterable[str], names: Sequence[str]) -> list[str]:
    """The names that have the same key as another one before them, with that one, as text."""
    first_names: dict[str, str] = {}
    pairs = [(first_names.setdefault(k, n), n) for k, n in zip(keys, names, strict=True)]
    return [f"{_exactly(a, b)} and {_exactly(b, a)}" for a, b in pairs if a != b]


def _as_read(name: str) -> str:
    """A name without what a reader may not see."""
    text = " ".join(normalize("NFC", name).split())
    return text.rstrip(".") or text or name


def _exactly(name: str, confused_with: str) -> str:
    """A name in quotes, as ASCII where it otherwise looks like the other one."""
    return ascii(name) if normalize("NFC", name) == normalize("NFC", confused_with) else repr(name)


def _escaped(letter: str) -> str:
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode()


def _require_all(source: str, name: str, values: np.ndarray) -> None:
    """UserError for rows where an array has no value."""
    gaps = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)
    if values.dtype.kind == "U":
        gaps = np.char.strip(values) == ""
    if gaps.any():
        raise UserError(
            f"{name} of {source} must have a value for every row, but {gaps.sum()} of {len(gaps)} have none, the first "
            f"is row {int(gaps.argmax())}; leave them out"
        )


def _range(y: np.ndarray) -> str:
    return f"from {y.min():g} to {y.max():g}"


def _owners(source: str, owner: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Owners as int64 numbered from 0, and their names."""
    _require_all(source, "owner", owner)
    if owner.dtype.kind == "f":
        advice = "give owner.astype(int)" if (owner == np.floor(owner)).all() else "convert it first"
        raise UserError(f"owner of {source} must be whole numbers or names, but is {owner.dtype}; {advice}")
    owners, numbers = np.unique(owner, return_inverse=True)
    return numbers.astype(np.int64).reshape(-1), names_of(source, owners)


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
