"""What may follow a user's table or folder in brackets, and what its reader gives: `FILE.csv(y='sick', x=['age'])`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError

from fedtune.core.errors import UserError, shown, unknown
from fedtune.data.user_rows import TEXT

DROP, MEAN = "drop", "mean"


def _listed(value: Any) -> tuple[Any, ...]:
    """A list as a tuple, and anything else as a list of one."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _encoding(name: str) -> str:
    try:
        "a".encode(name)  # not `codecs.lookup`, which knows rot13 too
        return name
    except LookupError:
        raise ValueError("must be one that Python knows, such as 'cp1252'") from None


Count = Annotated[int, Field(ge=0, le=1_000_000)]
Side = Annotated[int, Field(ge=1, le=1_000_000)]


class Options(BaseModel, frozen=True, strict=True):
    """x, y, owner, split   columns, by name; of LEAF's rows x is the number of a field.  split None: drawn at random.
    missing     what becomes of missing values: refuse, drop the rows, or the mean of training rows.
    text        what a token is: words or characters.
    length      tokens of a row: longer ones are cut, shorter ones padded with 0; 0: all have the same.
    shape       the shape of a row; () leaves it.
    delimiter   between the columns of a CSV file; "": a comma, or a tab in FILE.tsv.
    decimal, encoding, na_values, skiprows   of a CSV file, as in pandas.read_csv.
    trust       PFLlib's pickles are read, though they may run any code.
    """  # noqa: D205

    x: Any = ()
    y: str = ""
    owner: str | None = ""
    split: str | None = ""
    missing: Literal["refuse", "drop", "mean"] = "refuse"
    text: Literal["", "words", "characters"] = ""
    length: Count = 0
    shape: Annotated[tuple[Side, ...], BeforeValidator(_listed), Field(max_length=3)] = ()
    delimiter: Annotated[str, Field(max_length=1)] = ""
    decimal: Annotated[str, Field(min_length=1, max_length=1)] = "."
    encoding: Annotated[str, AfterValidator(_encoding)] = "utf-8"
    na_values: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    skiprows: Count = 0
    trust: bool = False


PFLLIB = ("split", "shape", "trust")
LEAF = ("x", "split", "text", "length", "shape")
CSV = tuple(name for name in Options.model_fields if name != "trust")
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


class Part(NamedTuple):
    """The rows of one client and split.  place, form: which part it is, and what its rows are, for messages."""

    place: str
    owner: str | int
    split: int
    form: str
    x: np.ndarray | list[str]
    y: np.ndarray
    note: str = ""


def joined(source: object, parts: Sequence[Part]) -> Rows:
    """The rows of all parts; UserError unless they have one form, and labels are all text or all numbers."""
    for part in parts:
        if part.form != parts[0].form:
            raise UserError(
                f"rows of {source} must all be alike, but are {parts[0].form} in {parts[0].place}, {part.form} in "
                f"{part.place}"
            )
    if len({part.y.dtype.kind == "U" for part in parts}) > 1:
        raise UserError(f"y of {source} must be all numbers or all text, but holds both; write it alike everywhere")
    texts, sizes = isinstance(parts[0].x, list), [len(part.y) for part in parts]
    return Rows(
        x=[text for part in parts for text in part.x] if texts else np.concatenate([part.x for part in parts]),
        y=np.concatenate([part.y for part in parts]),
        owner=np.repeat([part.owner for part in parts], sizes),
        split=np.repeat([part.split for part in parts], sizes),
        kind=TEXT if texts else "",
        notes=tuple(dict.fromkeys(part.note for part in parts if part.note)),
    )


def parsed(name: str, values: Mapping[str, Any], names: tuple[str, ...]) -> Options:
    """The options after a name; UserError for an unknown one, or a value that is not of its kind."""
    source = name.partition("(")[0]
    if strange := [option for option in values if option not in names]:
        raise unknown(f"option of {source}", strange[0], names or ("none",))
    try:
        return Options(**values)
    except ValidationError as error:
        what = error.errors()[0]
        option, rule = str(what["loc"][0]), what["msg"].removeprefix("Value error, ")
        raise UserError(f"the option {option} of {source}: {rule}, but got {shown(values[option])}") from None


def columns(name: str, x: Any) -> tuple[str, ...]:
    """The names of columns that x lists."""
    names = _listed(x)
    if not all(isinstance(n, str) for n in names) or len({*names}) < len(names):
        raise UserError(f"x of {name} must be a column's name or a list of different ones, but is {shown(x)}")
    return names
