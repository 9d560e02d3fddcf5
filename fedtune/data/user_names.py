"""Classes and owners by name, for all formats: a number for each name, and only names that a reader can tell apart."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np

from fedtune.core.errors import UserError
from fedtune.core.terminal import few, several

MAX_NUMBERS = 20  # more whole numbers than this look like measurements, unless they number classes from 0 or 1
BINS = "bin a measurement, for instance y = np.digitize(y, np.quantile(y, [0.25, 0.5, 0.75]))"
INTEGER = re.compile(r"0|-?[1-9]\d{0,17}")
REAL = re.compile(r"(?!(\D*\d){16})-?(0|[1-9]\d*)(\.\d*)?")  # 15 digits are exact in float64


class Named(NamedTuple):
    """Classes or owners.  numbers: int64 [rows]; names: of 0, 1, …; notes: for the user, one line each."""

    numbers: np.ndarray
    names: tuple[str, ...]
    notes: tuple[str, ...]


def classes(source: str, y: np.ndarray, split: np.ndarray | None, declared: Sequence[Any] | None) -> Named:
    """Classes: the values that occur, sorted.  declared: the names of all classes, which y then numbers."""
    y = _values(source, "y", y)
    if y.dtype.kind in "iu" and y.min() < 0:
        raise UserError(f"y of {source} must be classes from 0 on, but has {y.min()}; leave rows without a class out")
    if declared is None:
        values, numbers = np.unique(y, return_inverse=True)
        _require_classes(source, y, values)
        names = _printable(source, values)
    else:
        names, numbers = _printable(source, declared), y
        if y.dtype.kind not in "iu" or y.max() >= len(names):
            raise UserError(
                f"y of {source} must be 0 to {len(names) - 1}, because it names {len(names)} classes, but has "
                f"{y.max() if y.dtype.kind in 'iu' else y.dtype}"
            )
    trained = np.ones(len(names), bool) if split is None else np.isin(np.arange(len(names)), numbers[split == 0])
    empty = [n for i, n in enumerate(names) if not trained[i] and (numbers == i).any()]
    folded = {n.casefold() for n in empty if len(n) > 1}  # a and A are letters
    similar = [n for n in names if n.casefold() in folded]
    if pairs := _pairs(map(str.casefold, similar), similar):
        raise UserError(
            f"classes of {source} that differ only in case must all have training rows, but of {few(pairs)} one has "
            "none; write the same name in the same way, or rename one"
        )
    notes = (f"{several(len(empty), 'class')} of {source} without training rows: {few(empty)}",) if empty else ()
    return Named(numbers.astype(np.int64).reshape(-1), names, notes + _only_case(source, names))


def owners(source: str, owner: np.ndarray) -> Named:
    """Owners: the values that occur, sorted."""
    values, numbers = np.unique(_values(source, "owner", owner), return_inverse=True)
    names = _printable(source, values)
    return Named(numbers.astype(np.int64).reshape(-1), names, _only_case(source, names))


def as_written(texts: list[str]) -> np.ndarray:
    """A column of text, as numbers where each is written as a number is.

    Text with a leading zero, an exponent, or more digits than are exact is a name.
    """
    distinct = {*texts}
    for pattern, number in ((INTEGER, int), (REAL, float)):
        if all(map(pattern.fullmatch, distinct)):
            return np.array(list(map(number, texts)))
    return np.array(texts)


def same_number(column: str, texts: Iterable[str]) -> tuple[str, ...]:
    """A note where a column writes one number in several ways."""
    distinct, first_texts = sorted({*texts}), dict[Any, str]()
    for text, number in zip(distinct, as_written(distinct).tolist(), strict=True):
        if (first := first_texts.setdefault(number, text)) != text:
            return (f"column {column} holds numbers, so {first} and {text} are the same",)
    return ()


def _values(source: str, column: str, values: np.ndarray) -> np.ndarray:
    """The values of y or owner, one for each row; whole numbers such as 1.0, as JSON writes them, as whole numbers."""
    gaps = np.char.strip(values) == "" if values.dtype.kind == "U" else np.isnan(values)
    if gaps.any():
        raise UserError(
            f"{column} of {source} must have a value for every row, but {gaps.sum()} of {len(gaps)} have none, the "
            f"first is row {int(gaps.argmax())}; leave them out"
        )
    if values.dtype.kind != "f":
        return values
    if not ((values == np.floor(values)) & (np.abs(values) < 2**53)).all():
        raise UserError(
            f"{column} of {source} must be whole numbers or names, but holds real numbers, from {values.min():g} to "
            f"{values.max():g}; {BINS}"
        )
    return values.astype(np.int64)


def _require_classes(source: str, y: np.ndarray, values: np.ndarray) -> None:
    """UserError unless there are several values, each with rows, as classes have and measurements do not."""
    numbered = y.dtype.kind in "iu"
    consecutive = numbered and values[0] in (0, 1) and values[-1] - values[0] == len(values) - 1
    if not 2 <= len(values) <= len(y) / 2 or (len(values) > MAX_NUMBERS and numbered and not consecutive):
        raise UserError(
            f"y of {source} needs at least two classes, and rows of each, but has {several(len(values), 'value')} in "
            f"{len(y)} rows, from {values[0]} to {values[-1]}: {BINS}; give classes that are numbered so as text"
        )


def _printable(source: str, values: Iterable[Any]) -> tuple[str, ...]:
    """Names, one line each: line ends and tabs are shown as \\n and \\t.

    UserError for names that are or look the same, or that differ only in blanks, a final dot or Unicode form.
    """
    texts = list(map(str, values))
    if twice := next((n for n, count in Counter(texts).items() if count > 1), ""):
        raise UserError(f"classes of {source} must have different names, but {twice!r} occurs twice")
    printable = tuple("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in n) for n in texts)
    if pairs := _pairs(printable, texts) or _pairs(map(_as_read, texts), texts):
        raise UserError(
            f"names in {source} must look different, and differ in more than blanks, a final dot or Unicode form, but "
            f"{few(pairs)} do not; write the same name in the same way, or rename one"
        )
    return printable


def _only_case(source: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """A note about names that differ only in case."""
    pairs = _pairs(map(str.casefold, names), names)
    return (f"names in {source} that differ only in case stay different: {few(pairs)}",) if pairs else ()


def _pairs(keys: Iterable[str], names: Sequence[str]) -> list[str]:
    """The names that have the same key as another one before them, with that one, as text.

    Names that look the same are shown in ASCII.
    """
    first_names: dict[str, str] = {}
    pairs = [(first_names.setdefault(k, n), n) for k, n in zip(keys, names, strict=True)]
    alike = {(a, b): normalize("NFC", a) == normalize("NFC", b) for a, b in pairs if a != b}
    return [f"{a!a} and {b!a}" if same else f"{a!r} and {b!r}" for (a, b), same in alike.items()]


def _as_read(name: str) -> str:
    """A name without what a reader may not see."""
    text = " ".join(normalize("NFC", name).split())
    return text.rstrip(".") or text or name
