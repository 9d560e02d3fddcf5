"""A table's columns as rows, classes, owners and splits: of a CSV or parquet file, or of a Hugging Face data set.

x, y, owner and split name columns; without a name they are found where only one can be meant, and otherwise asked for.
x is one column of pictures, of text, or of lists; or several columns of numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedtune.core.errors import UserError, shown, unknown
from fedtune.core.terminal import few, several
from fedtune.data import user_options, user_rows
from fedtune.data.dataset import PICTURES, RowsOnAccess
from fedtune.data.picture import Encoded
from fedtune.data.user_options import DROP, MEAN, REFUSE, Options, Rows
from fedtune.data.user_pictures import pictures_of

LABELS = ("y", "label", "labels")  # columns of classes if none is named
OWNERS = ("owner", "client")
SPLITS = ("split",)
CLASS_LABEL, IMAGE = "ClassLabel", "Image"  # the types of Hugging Face's features
INTEGER = re.compile(r"0|-?[1-9]\d{0,17}")
REAL = re.compile(r"(?!(\D*\d){16})-?(0|[1-9]\d*)(\.\d*)?")  # 15 digits are exact in float64
MARKS = 3  # the most texts that may stand for missing values in a column of numbers
PANDAS_INDEX = "__index_level_"
Features = Mapping[str, Mapping[str, Any]]


def read(source: str, table: pa.Table, features: Features, options: Options, split: np.ndarray | None = None) -> Rows:
    """The rows of a table.

    features: Hugging Face's, by column.  split: of each row, if it is known from elsewhere.
    """
    names = _column_names(source, table, options)
    y = _column_of(source, names, options.y, LABELS, "y", _of_type(features, CLASS_LABEL, names))
    if not y:
        raise UserError(f"{source} needs the column of classes: give y='…' in brackets after its name; {_all(names)}")
    owner = _column_of(source, names, options.owner, OWNERS, "owner")
    by = _column_of(source, names, options.split, SPLITS, "split") if split is None else None
    others = [n for n in names if n not in (y, owner, by)]
    x = _features(source, table, features, options, others, y)
    used = [n for n in (*x, y, owner, by) if n]
    if table.num_rows == 0:
        raise UserError(f"{source} needs rows, but has none")
    table, rows_left, note = _without_missing(source, table.select(dict.fromkeys(used)), options, x)
    split = split if split is None or rows_left is None else split[rows_left]
    labels, classes = _classes(source, table[y], features.get(y, {}))
    unused = [n for n in names if n not in used]
    notes: tuple[str, ...] = (
        f"columns of {source}: x is {_listed(x)}; y is {y}" + (f"; owner is {owner}" if owner else ""),
    )
    notes = (f"{notes[0]}; split is {by}" if by else notes[0],)
    notes += (f"{several(len(unused), 'column')} not used: {few(unused)}",) if unused else ()
    rows, kind = _rows(source, table, x, features, options)
    owners = _names(source, table[owner], features.get(owner, {})) if owner else None
    splits = split if by is None else _names(source, table[by], features.get(by, {}))
    notes += (note,) if note else ()
    notes += tuple(note_of for name in (y, owner) if name and (note_of := _same_number(name, table[name])))
    return Rows(x=rows, y=labels, owner=owners, split=splits, classes=classes, kind=kind, notes=notes)


def _column_names(source: str, table: pa.Table, options: Options) -> list[str]:
    """The columns' names, without the index that pandas writes; UserError for one without a name, or twice the same."""
    names: list[str] = [n for n in table.column_names if not n.startswith(PANDAS_INDEX)]
    if repeated := next((n for n in names if names.count(n) > 1), None):
        raise UserError(f"columns of {source} must have different names, but two are called {repeated!r}; rename one")
    if "" in names and not options.x:
        raise UserError(
            f"column {names.index('')} of {source} has no name, as that of an index that pandas writes: name the "
            "columns to use, x=['…'], or write it with index=False"
        )
    return [n for n in names if n]


def _column_of(
    source: str, names: list[str], name: str | None, usual: Sequence[str], option: str, known: Sequence[str] = ()
) -> str | None:
    """The column that is named or meant; None if there is none.  found: what the data set itself calls so."""
    if name is None:
        return None
    if name:
        if name not in names:
            raise unknown(f"column in {source}, given as {option}:", name, names)
        return name
    likely = known or [n for n in names if n.lower() in usual]
    if len(likely) > 1:
        raise UserError(f"{source} has {' and '.join(likely)}; say which is {option}: {option}={likely[0]!r}")
    return likely[0] if likely else None


def value_names(feature: Any) -> list[str]:
    """The names that Hugging Face gives the values of a column, in the order of their numbers; those of lists too."""
    if not isinstance(feature, Mapping):
        return []
    own = feature.get("names")
    return list(map(str, own)) if isinstance(own, list) else [n for v in feature.values() for n in value_names(v)]


def _of_type(features: Features, kind: str, names: Sequence[str]) -> list[str]:
    return [n for n in names if features.get(n, {}).get("_type") == kind]


def _features(
    source: str, table: pa.Table, features: Features, options: Options, names: list[str], y: str
) -> list[str]:
    """The columns of x."""
    if options.x not in ((), []):
        columns = user_options.columns(source, options.x)
        for name in columns:
            if name == y:
                raise UserError(f"x of {source} must not hold the classes, but has {name!r}, which is y; leave it out")
            if name not in names:
                raise unknown(f"column in {source}, given as x:", name, names)
        return list(columns)
    if not names:
        raise UserError(f"{source} needs a column of features, but has only {y}")
    lists = [n for n in names if _is_picture(table.schema.field(n).type, features.get(n, {})) or _is_list(table, n)]
    texts = [n for n in names if _is_text(table.schema.field(n).type)]
    if not lists and len(texts) > 1 and len(texts) == len(names) and (todo := _how_read(table[texts[0]])):
        raise UserError(f"column {texts[0]!r} of {source} is text, {todo}")
    if len(lists) > 1 or (not lists and len(texts) > 1 and len(texts) == len(names)):
        raise UserError(f"{source} has {few(lists or texts)}; say which holds the rows: x={(lists or texts)[0]!r}")
    if lists or texts == names or (options.text and len(texts) == 1):
        return lists or texts
    return names


def _rows(
    source: str, table: pa.Table, names: list[str], features: Features, options: Options
) -> tuple[np.ndarray | RowsOnAccess | list[str], str]:
    """The rows of these columns, and what they are if the table says it."""
    if len(names) > 1 or not (_is_list(table, names[0]) or _is_text(table[names[0]].type)):
        if len(names) == 1 and _is_picture(table[names[0]].type, features.get(names[0], {})):
            return pictures_of(source, _Encoded(f"column {names[0]} of {source}", table[names[0]])), PICTURES
        return _numbers(source, table, names), user_rows.NUMBERS
    if _is_text(table[names[0]].type):
        if not options.text and (todo := _how_read(table[names[0]])):
            raise UserError(f"column {names[0]!r} of {source} is text, {todo}")
        if not options.text:
            example = shown(table[names[0]][0].as_py())
            raise UserError(
                f"column {names[0]!r} of {source} is text, like {example}: give text='words' or text='characters' in "
                "brackets after its name for what a token is, or name columns of numbers, x=['…']"
            )
        return table[names[0]].to_pylist(), ""
    return _lists(f"column {names[0]!r} of {source}", table[names[0]], options.length), ""


def _numbers(source: str, table: pa.Table, names: list[str]) -> np.ndarray:
    """Columns of numbers as float64 [rows, columns], or whole numbers where all are; UserError for any other column."""
    columns = []
    for name in names:
        values, what = table[name], f"column {name!r} of {source}"
        kind = values.type
        if _is_text(kind):
            todo = _how_read(values) or f"like {shown(_first_value(values))}; encode it as numbers"
            raise UserError(f"{what} is text, {todo}, or leave it out of x=['…']")
        if pa.types.is_dictionary(kind):
            raise UserError(
                f"{what} holds categories; encode them, as pandas.get_dummies does, or leave it out of x=['…']"
            )
        if pa.types.is_temporal(kind):
            todo = "give numbers, for example days since the first, or leave it out of x=['…']"
            raise UserError(f"{what} holds dates or times, like {shown(str(_first_value(values)))}; {todo}")
        if not _is_number(kind):
            raise UserError(f"{what} must be numbers, but is {kind}; convert it, or leave it out of x=['…']")
        columns.append((values.cast(pa.int8()) if pa.types.is_boolean(kind) else values).to_numpy())
    joined = np.column_stack(columns)
    for name, values in zip(names, columns, strict=True):
        if (
            values.dtype.kind in "iu"
            and joined.dtype.kind == "f"
            and (np.abs(values.astype(np.float64)) >= 2.0**53).any()
        ):
            raise UserError(
                f"column {name!r} of {source} has whole numbers beyond 2**53 beside real ones, which float64 would "
                "round; scale it, or leave it out of x=['…']"
            )
    return joined


def _lists(what: str, values: pa.ChunkedArray, length: int) -> np.ndarray:
    """Lists of numbers, perhaps of lists, as an array.  length: of rows of tokens, which are cut or padded with 0."""
    array, shape = values.combine_chunks(), [len(values)]
    while pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
        sizes = pc.list_value_length(array).to_numpy(zero_copy_only=False)
        array = array.flatten() if array.null_count == 0 else array
        if array.null_count:
            raise UserError(f"{what} has missing values inside its rows; leave such rows out or fill them in")
        if length and len(shape) == 1:
            return _cut(what, array, sizes.astype(np.int64), length)
        if len({*sizes.tolist()}) > 1:
            raise UserError(
                f"rows of {what} must have the same length, but have {sizes.min()} to {sizes.max()}; pad them, or for "
                "tokens give length=128, at which rows are cut and to which they are padded with 0"
            )
        shape.append(int(sizes[0]))
    if not _is_number(array.type):
        raise UserError(f"{what} must hold numbers, but holds {array.type}; convert it")
    return array.to_numpy(zero_copy_only=False).reshape(shape)


def _cut(what: str, flat: pa.Array, sizes: np.ndarray, length: int) -> np.ndarray:
    """Rows of tokens of one length."""
    if not pa.types.is_integer(flat.type):
        raise UserError(f"length is for rows of tokens, but {what} holds {flat.type}; leave it out")
    numbers = flat.to_numpy(zero_copy_only=False)
    row = np.repeat(np.arange(len(sizes)), sizes)
    position = np.arange(len(numbers)) - np.repeat(sizes.cumsum() - sizes, sizes)
    rows = np.zeros((len(sizes), length), numbers.dtype)
    rows[row[position < length], position[position < length]] = numbers[position < length]
    return rows


class _Encoded(Sequence[Encoded]):
    """A column of pictures in their files' bytes."""

    def __init__(self, what: str, values: pa.ChunkedArray) -> None:
        self._what, self._values = what, values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, row: Any) -> Any:
        value = self._values[row].as_py()
        content = value.get("bytes") if isinstance(value, dict) else value
        if content is None:
            path = value.get("path") if isinstance(value, dict) else None
            raise UserError(
                f"row {row} of {self._what} has no bytes of a picture{f', only the path {path}' if path else ''}; save "
                "the data set again with its pictures"
            )
        return Encoded(f"row {row} of {self._what}", content)


def _without_missing(
    source: str, table: pa.Table, options: Options, x: list[str]
) -> tuple[pa.Table, np.ndarray | None, str]:
    """The table without missing values where rows are to be dropped; the rows that are kept; and a note.

    With the mean of training rows, NaN stays in x until the rows are divided.  UserError for missing values otherwise.
    """
    holes = {name: _is_missing(table[name]) for name in table.column_names}
    holes = {name: rows for name, rows in holes.items() if rows.any()}
    if not holes:
        return table, None, ""
    gaps = np.logical_or.reduce([*holes.values()])
    if options.missing == DROP:
        full = np.flatnonzero(~gaps)
        if not len(full):
            raise UserError(f"missing='drop' leaves no row of {source}, because {few([*holes])} has no value anywhere")
        note = f"{several(int(gaps.sum()), 'row')} of {len(gaps)} dropped, without a value of {few([*holes])}"
        return table.take(full), full, note
    fillable = [n for n in holes if n in x and options.missing == MEAN and _is_number(table[n].type)]
    if unfit := [n for n in holes if n not in fillable]:
        count, first = int(holes[unfit[0]].sum()), int(holes[unfit[0]].argmax())
        advice = "missing='drop' leaves such rows out"
        advice += ", and missing='mean' gives them the mean of training rows" if options.missing == REFUSE else ""
        raise UserError(
            f"column {unfit[0]!r} of {source} has no value in {several(count, 'row')}, the first is row {first}"
            + (f"; {several(len(unfit) - 1, 'other column')} too" if len(unfit) > 1 else "")
            + f": in brackets after its name {advice}"
        )
    for name in fillable:
        table = table.set_column(table.column_names.index(name), name, _filled(table[name]))
    return (
        table,
        None,
        f"{several(int(gaps.sum()), 'row')} of {len(gaps)} have the mean of training rows for {few(fillable)}",
    )


def _is_missing(values: pa.ChunkedArray) -> np.ndarray:
    """Where a column has no value: null, or NaN."""
    missing: np.ndarray = pc.is_null(values, nan_is_null=pa.types.is_floating(values.type)).to_numpy()
    return missing


def _filled(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of numbers with NaN where it has no value."""
    values = values.cast(pa.int8()) if pa.types.is_boolean(values.type) else values
    return pc.cast(values, pa.float64(), safe=False).fill_null(float("nan"))


def _classes(source: str, values: pa.ChunkedArray, feature: Mapping[str, Any]) -> tuple[Any, list[str] | None]:
    """Labels, and the names of the classes if the data set has them."""
    names = feature.get("names") if feature.get("_type") == CLASS_LABEL else None
    labels = _names(source, values, {})
    return labels, list(map(str, names)) if names and labels.dtype.kind in "iu" else None


def _names(source: str, values: pa.ChunkedArray, feature: Mapping[str, Any]) -> np.ndarray:
    """A column of classes, owners or splits: whole numbers or text."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if not (_is_text(values.type) or pa.types.is_primitive(values.type)):
        raise UserError(
            f"classes, owners and splits of {source} must be whole numbers or names, but one is {values.type}"
        )
    if pa.types.is_boolean(values.type):
        return np.array(values.to_numpy())
    if not _is_text(values.type):
        numbers = values.to_numpy()
        names = feature.get("names") if feature.get("_type") == CLASS_LABEL else None
        fits = names and numbers.dtype.kind in "iu" and 0 <= numbers.min() and numbers.max() < len(names)
        return np.array(names)[numbers] if fits and names else numbers
    texts = values.to_pylist()
    return _numbered(texts)


def _numbered(texts: list[str]) -> np.ndarray:
    """Text, as numbers where each is written as a number is.

    Text with a leading zero, an exponent, or more digits than are exact is a name.
    """
    distinct = {*texts}
    if all(INTEGER.fullmatch(t) for t in distinct):
        return np.array([int(t) for t in texts])
    if all(REAL.fullmatch(t) for t in distinct):
        return np.array([float(t) for t in texts])
    return np.array(texts)


def _same_number(name: str, values: pa.ChunkedArray) -> str:
    """A note where a column writes one number in several ways."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    texts = sorted(pc.unique(values).to_pylist()) if _is_text(values.type) else []
    first_texts: dict[Any, str] = {}
    for text, number in zip(texts, _numbered(texts).tolist(), strict=True):
        if first_texts.setdefault(number, text) != text:
            return f"column {name} holds numbers, so {first_texts[number]} and {text} are the same"
    return ""


def is_real(text: str) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _how_read(values: pa.ChunkedArray) -> str:
    """An example of text in a column of numbers, and the options of a CSV file that read it; "" for other text."""
    texts = pc.unique(values).drop_null().to_pylist()
    commas = [t for t in texts if not is_real(t) and is_real(t.replace(",", ".", 1))]
    marks = [t for t in texts if not is_real(t) and t not in commas]
    if not (commas or marks) or len(marks) > MARKS or len(marks) == len(texts):
        return ""
    options = ["decimal=',' if that is a decimal comma"] if commas else []
    options += [f"na_values={marks!r} if it stands for a missing value"] if marks else []
    return f"like {shown((commas or marks)[0])}; a CSV file takes in brackets after its name {' and '.join(options)}"


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_list(table: pa.Table, name: str) -> bool:
    kind = table.schema.field(name).type
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_picture(kind: pa.DataType, feature: Mapping[str, Any]) -> bool:
    """Whether a column holds encoded pictures: by Hugging Face's type, or bytes."""
    if pa.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and kind.get_field_index("path") >= 0
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind)) or feature.get("_type") == IMAGE


def _first_value(values: pa.ChunkedArray) -> Any:
    """The first value that is there."""
    return next((v.as_py() for v in values if v.is_valid), None)


def _listed(x: list[str]) -> str:
    return x[0] if len(x) == 1 else f"{several(len(x), 'column')}, {few(x)}"


def _all(names: list[str]) -> str:
    return f"its columns are {few(names)}"
