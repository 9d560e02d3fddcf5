"""What may follow a user's table or folder in brackets, and what its reader gives: `FILE.csv(y='sick', x=['age'])`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedtune.core.errors import UserError, shown, unknown
from fedtune.data.dataset import RowsOnAccess

REFUSE, DROP, MEAN = MISSING = ("refuse", "drop", "mean")
WORDS, CHARACTERS = TEXTS = ("words", "characters")
LARGEST = 1_000_000  # an axis of `shape`, or `length`


class Options(NamedTuple):
    """x, y, owner, split   columns, by name; of LEAF's rows x is the number of a field.  split None: drawn at random.
    missing     what becomes of missing values: refuse, drop the rows, or the mean of training rows.
    text        what a token is: words or characters.
    length      tokens of a row: longer ones are cut, shorter ones padded with 0; 0: all have the same.
    shape       the shape of a row; () leaves it.
    delimiter   between the columns of a CSV file; "": a comma, or a tab in FILE.tsv.
    decimal, encoding, na_values, skiprows   of a CSV file, as in pandas.read_csv.
    """  # noqa: D205

    x: Any = ()
    y: str = ""
    owner: str | None = ""
    split: str | None = ""
    missing: str = REFUSE
    text: str = ""
    length: int = 0
    shape: tuple[int, ...] = ()
    delimiter: str = ""
    decimal: str = "."
    encoding: str = "utf-8"
    na_values: Any = ()
    skiprows: int = 0


ARRAYS = ("split", "shape")
LEAF = ("x", "split", "text", "length", "shape")
CSV = Options._fields
COLUMNS = CSV[: CSV.index("delimiter")]


class Rows(NamedTuple):
    """A user's rows.  x: arrays, encoded pictures, or a list of texts.  The other fields are as in a user's .npz.

    kind    of the rows, if the format says it.
    notes   for the user, one line each.
    """

    x: np.ndarray | RowsOnAccess | list[str]
    y: Any
    owner: Any = None
    split: Any = None
    classes: Any = None
    kind: str = ""
    notes: tuple[str, ...] = ()


def parsed(name: str, values: Mapping[str, Any], names: tuple[str, ...]) -> Options:
    """The options after a name; UserError for an unknown one, or a value that is not of its kind."""
    for option in values:
        if option not in names:
            raise unknown(f"option of {name.partition('(')[0]}", option, names)
    options = Options(**values)
    _require(options.missing in MISSING, "missing", MISSING, options.missing)
    _require(options.text in ("", *TEXTS), "text", TEXTS, options.text)
    _require(_is_count(options.length), "length", "a whole number from 1 on", options.length)
    for option in ("y", "owner", "split"):
        value = getattr(options, option)
        _require(isinstance(value, str) or (value is None and option != "y"), option, "a column's name", value)
    for option, empty in (("delimiter", True), ("decimal", False)):
        value = getattr(options, option)
        _require(isinstance(value, str) and (len(value) == 1 or (empty and not value)), option, "one character", value)
    _require(_is_encoding(options.encoding), "encoding", "one that Python knows, such as 'cp1252'", options.encoding)
    _require(_is_count(options.skiprows), "skiprows", "a number of lines", options.skiprows)
    marks = [options.na_values] if isinstance(options.na_values, str) else options.na_values
    valid = isinstance(marks, list | tuple) and all(isinstance(m, str) for m in marks)
    _require(valid, "na_values", "text as it stands in the file, or a list of such", options.na_values)
    shape = options.shape if isinstance(options.shape, list | tuple) else (options.shape,)
    _require(
        len(shape) < 4 and all(map(_is_count, shape)) and 0 not in shape, "shape", "1 to 3 whole numbers", options.shape
    )
    return options._replace(shape=tuple(shape), na_values=tuple(marks))


def columns(name: str, x: Any) -> tuple[str, ...]:
    """The names of columns that x lists."""
    names = (x,) if isinstance(x, str) else x
    valid = isinstance(names, list | tuple) and all(isinstance(n, str) for n in names)
    _require(valid, "x", "a column's name or a list of names", x)
    if repeated := next((n for n in names if names.count(n) > 1), None):
        raise UserError(f"x of {name} must name each column once, but has {repeated!r} twice")
    return tuple(names)


def _is_encoding(name: Any) -> bool:
    try:
        return isinstance(name, str) and bool("a".encode(name))
    except (LookupError, ValueError):
        return False


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def _require(valid: bool, option: str, expected: str | tuple[str, ...], actual: Any) -> None:
    if not valid:
        expected = expected if isinstance(expected, str) else " or ".join(repr(w) for w in expected)
        raise UserError(f"the option {option} of a data set must be {expected}, but got {shown(actual)}")
