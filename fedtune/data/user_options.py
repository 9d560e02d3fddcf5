"""What may follow a user's table or folder in brackets, and what its reader gives: `FILE.csv(y='sick', x=['age'])`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fedtune.core.errors import UserError, shown, unknown

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
    """A user's rows.  x: arrays, pictures, or a list of texts.  The other fields are as in a user's .npz.

    kind    of the rows, if the format says it (`user_rows`, or pictures).
    notes   for the user, one line each.
    """

    x: Any
    y: Any
    owner: Any = None
    split: Any = None
    classes: Any = None
    kind: str = ""
    notes: tuple[str, ...] = ()


def parsed(name: str, values: Mapping[str, Any], names: tuple[str, ...]) -> Options:
    """The options after a name; UserError for an unknown one, or a value that is not of its kind."""
    source = name.partition("(")[0]
    if values and not names:
        raise UserError(f"{source} takes no options, but got {', '.join(values)}; leave them out")
    for option, value in values.items():
        if option not in names:
            raise unknown(f"option of {source}", option, names)
        expected, fits = RULES.get(option, ("", None))
        if fits and not fits(value):
            raise UserError(f"the option {option} of a data set must be {expected}, but got {shown(value)}")
    options = Options(**values)
    return options._replace(shape=_listed(options.shape), na_values=_listed(options.na_values))


def columns(name: str, x: Any) -> tuple[str, ...]:
    """The names of columns that x lists."""
    names = _listed(x)
    if not all(isinstance(n, str) for n in names):
        raise UserError(f"the option x of a data set must be a column's name or a list of names, but got {shown(x)}")
    if repeated := next((n for n in names if names.count(n) > 1), None):
        raise UserError(f"x of {name} must name each column once, but has {repeated!r} twice")
    return names


def _listed(value: Any) -> tuple[Any, ...]:
    """A list as a tuple, and anything else as a list of one."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def _is_shape(value: Any) -> bool:
    return len(_listed(value)) < 4 and all(_is_count(n) and n for n in _listed(value))


def _is_encoding(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool("a".encode(value))
    except (LookupError, ValueError):
        return False


RULES: Mapping[str, tuple[str, Callable[[Any], bool]]] = MappingProxyType(
    {
        "y": ("a column's name", lambda v: isinstance(v, str)),
        "owner": ("a column's name", lambda v: v is None or isinstance(v, str)),
        "split": ("a column's name", lambda v: v is None or isinstance(v, str)),
        "missing": (" or ".join(map(repr, MISSING)), MISSING.__contains__),
        "text": (" or ".join(map(repr, TEXTS)), ("", *TEXTS).__contains__),
        "length": ("a whole number from 1 on", _is_count),
        "shape": ("1 to 3 whole numbers", _is_shape),
        "delimiter": ("one character", lambda v: isinstance(v, str) and len(v) < 2),
        "decimal": ("one character", lambda v: isinstance(v, str) and len(v) == 1),
        "encoding": ("one that Python knows, such as 'cp1252'", _is_encoding),
        "na_values": (
            "text as it stands in the file, or a list of such",
            lambda v: all(isinstance(mark, str) for mark in _listed(v)),
        ),
        "skiprows": ("a number of lines", _is_count),
    }
)
