"""A table's columns as rows, classes, owners and splits: of a CSV or parquet file, or of a Hugging Face data set.

x, y, owner and split name columns; without a name they are found where only one can be meant, and otherwise asked for.
x is one column of pictures, of text, or of lists; or several columns of numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from fedtune.core.errors import UserError, require_known, shown, unknown
from fedtune.core.terminal import few, several
from fedtune.data import user_names, user_options, user_rows
from fedtune.data.dataset import PICTURES
from fedtune.data.picture import Encoded
from fedtune.data.plain import plain
from fedtune.data.user_options import DROP, MEAN, Options, Rows
from fedtune.data.user_pictures import pictures_of

USUAL = {"y": ("y", "label", "labels"), "owner": ("owner", "client"), "split": ("split",)}  # names, if none is given
CLASS_LABEL, IMAGE = "ClassLabel", "Image"  # the types of Hugging Face's features
PANDAS_INDEX = "__index_level_"
Features = Mapping[str, Mapping[str, Any]]
NO_FEATURE: Mapping[str, Any] = MappingProxyType({})


def read(source: str, table: pa.Table, features: Features, options: Options, split: np.ndarray | None = None) -> Rows:
    """The rows of a table.

    features: Hugging Face's, by column.  split: of each row, if it is known from elsewhere.
    """
    names = _column_names(source, table, options)
    labelled = [n for n in names if features.get(n, {}).get("_type") == CLASS_LABEL]
    y = _column_of(source, names, options, "y", labelled)
    if not y:
        raise UserError(
            f"{source} needs the column of classes: give y='…' in brackets after its name; its columns are {few(names)}"
        )
    owner = _column_of(source, names, options, "owner")
    by = _column_of(source, names, options, "split") if split is None else None
    x = _features(source, table, features, options, [n for n in names if n not in (y, owner, by)], y)
    used = [*dict.fromkeys(n for n in (*x, y, owner, by) if n)]
    table, kept, gaps = _without_missing(source, table.select(used), options, x)
    if table.num_rows == 0:
        raise UserError(f"{source} needs rows, but has none{' without missing values' if gaps else ''}")
    labels = _labels(source, table[y])
    owners, splits = (_labels(source, table[n], features.get(n, {})) if n else None for n in (owner, by))
    rows, kind = _rows(source, table, x, features, options)
    many = f"{several(len(x), 'column')}, " if len(x) > 1 else ""
    others = "".join(f"; {option} is {n}" for option, n in (("y", y), ("owner", owner), ("split", by)) if n)
    notes = [f"columns of {source}: x is {many}{few(x)}{others}"]
    if unused := [n for n in names if n not in used]:
        notes.append(f"{several(len(unused), 'column')} not used: {few(unused)}")
    texts = {n: _decoded(table[n]) for n in (y, owner) if n and _is_text(_decoded(table[n]).type)}
    notes += [*gaps, *(note for n, v in texts.items() for note in user_names.same_number(n, pc.unique(v).to_pylist()))]
    return Rows(
        x=rows,
        y=labels,
        owner=owners,
        split=splits if by else split if split is None else split[kept],
        classes=features[y].get("names") if y in labelled and labels.dtype.kind in "iu" else None,
        kind=kind,
        notes=tuple(notes),
    )


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


def _column_of(source: str, names: list[str], options: Options, option: str, known: Sequence[str] = ()) -> str | None:
    """The column that is named or meant; None if there is none.  known: what the data set itself calls so."""
    name: str | None = getattr(options, option)
    if name and name not in names:
        raise unknown(f"column in {source}, given as {option}:", name, names)
    if name or name is None:
        return name
    likely = known or [n for n in names if n.lower() in USUAL[option]]
    if len(likely) > 1:
        raise UserError(f"{source} has {' and '.join(likely)}; say which is {option}: {option}={likely[0]!r}")
    return likely[0] if likely else None


def _features(
    source: str, table: pa.Table, features: Features, options: Options, names: list[str], y: str
) -> list[str]:
    """The columns of x."""
    if options.x not in ((), []):
        columns = user_options.columns(source, options.x)
        if y in columns:
            raise UserError(f"x of {source} must not hold the classes, but has {y!r}, which is y; leave it out")
        require_known(f"column in {source}, given as x:", columns, names)
        return list(columns)
    if not names:
        raise UserError(f"{source} needs a column of features, but has only {y}")
    kinds = {n: table.schema.field(n).type for n in names}
    texts = [n for n in names if _is_text(kinds[n])]
    whole = [n for n in names if _is_picture(kinds[n], features.get(n, {})) or _is_list(kinds[n])]
    if not whole and len(texts) == 1 and options.text:
        whole = texts
    if len(whole) > 1:
        raise UserError(f"{source} has {few(whole)}; say which holds the rows: x={whole[0]!r}")
    return whole or names


def _rows(source: str, table: pa.Table, names: list[str], features: Features, options: Options) -> tuple[Any, str]:
    """The rows of these columns, and what they are if the table says it."""
    first = table[names[0]]
    if len(names) == 1 and _is_picture(first.type, features.get(names[0], {})):
        return pictures_of(source, _Encoded(f"column {names[0]} of {source}", first)), PICTURES
    if len(names) == 1 and _is_list(first.type):
        return _lists(f"column {names[0]!r} of {source}", first, options.length), ""
    if len(names) == 1 and _is_text(first.type) and options.text:
        return first.to_pylist(), user_rows.TEXT
    if text := next((n for n in names if _is_text(table[n].type)), None):
        values = pc.unique(table[text]).to_pandas()
        example = values[pd.to_numeric(values, errors="coerce").isna()].iloc[:1]
        raise UserError(
            f"column {text!r} of {source} is text, like {shown(example.iloc[0] if len(example) else values[0])}: leave "
            "it out of x=['…'], encode it as numbers, or say in brackets after the name how it is read (text='words' "
            "or 'characters'; numbers of a CSV file: decimal=',' or na_values=['?'])"
        )
    frame = table.select(names).to_pandas(ignore_metadata=True)  # else what was pandas' index is no column
    gaps = frame.isna().to_numpy()
    x = plain(source, "x", frame.fillna(dict.fromkeys(frame.columns[gaps.any(axis=0)], 0)))
    return np.where(gaps, np.nan, x) if gaps.any() else x, user_rows.NUMBERS


def _lists(what: str, values: pa.ChunkedArray, length: int) -> np.ndarray:
    """Lists of numbers, perhaps of lists, as an array.  length: of rows of tokens, which are cut or padded with 0."""
    array, shape = values.combine_chunks(), [len(values)]
    if length and not types.is_integer(array.type.value_type):
        raise UserError(f"length is for rows of tokens, but {what} holds {array.type.value_type}; leave it out")
    if length and not array.null_count:
        return plain(what, "x", [(row + [0] * length)[:length] for row in array.to_pylist()])
    while _is_list(array.type) and not array.null_count:
        sizes = {*pc.list_value_length(array).to_pylist()}
        if len(sizes) > 1:
            raise UserError(
                f"rows of {what} must have the same length, but have {min(sizes)} to {max(sizes)}; pad them, or for "
                "tokens give length=128, at which rows are cut and to which they are padded with 0"
            )
        array, shape = array.flatten(), [*shape, *sizes]
    if array.null_count:
        raise UserError(f"{what} has missing values inside its rows; leave such rows out or fill them in")
    if not _is_number(array.type):
        raise UserError(f"{what} must hold numbers, but holds {array.type}; convert it")
    return array.to_numpy(zero_copy_only=False).reshape(shape)


class _Encoded(Sequence[Encoded]):
    """A column of pictures in their files' bytes."""

    def __init__(self, what: str, values: pa.ChunkedArray) -> None:
        self._what, self._values = what, values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, row: Any) -> Any:
        value = self._values[row].as_py()
        content = value["bytes"] if isinstance(value, dict) else value
        if content is None:
            raise UserError(f"row {row} of {self._what} has no bytes of a picture; save the data with its pictures")
        return Encoded(f"row {row} of {self._what}", content)


def _without_missing(
    source: str, table: pa.Table, options: Options, x: list[str]
) -> tuple[pa.Table, np.ndarray, list[str]]:
    """The table without missing values where rows are to be dropped; the rows that are kept; and a note.

    With the mean of training rows, x keeps its gaps until the rows are divided.
    """
    columns = dict(zip(table.column_names, table.columns, strict=True))
    holes = {n: pc.is_null(v, nan_is_null=types.is_floating(v.type)).to_numpy() for n, v in columns.items()}
    holes = {name: rows for name, rows in holes.items() if rows.any()}
    if not holes:
        return table, np.arange(len(table)), []
    gaps = np.logical_or.reduce([*holes.values()])
    rows, kept = f"{several(int(gaps.sum()), 'row')} of {len(gaps)}", np.flatnonzero(~gaps)
    if options.missing == DROP:
        return table.take(kept), kept, [f"{rows} dropped, without a value of {few([*holes])}"]
    fillable = [n for n in holes if n in x and options.missing == MEAN and _is_number(table[n].type)]
    if unfit := [n for n in holes if n not in fillable]:
        lacking = np.logical_or.reduce([holes[n] for n in unfit])
        raise UserError(
            f"{source} has no value of {few(unfit)} in {several(int(lacking.sum()), 'row')}, the first is row "
            f"{int(lacking.argmax())}: in brackets after its name missing='drop' leaves such rows out, and "
            "missing='mean' gives numbers among x the mean of training rows"
        )
    return table, np.arange(len(table)), [f"{rows} have the mean of training rows for {few(fillable)}"]


def _labels(source: str, values: pa.ChunkedArray, feature: Mapping[str, Any] = NO_FEATURE) -> np.ndarray:
    """A column of classes, owners or splits: whole numbers, or names as written or as Hugging Face gives them."""
    values = _decoded(values)
    if _is_text(values.type):
        return user_names.as_written(values.to_pylist())
    if not types.is_primitive(values.type):
        raise UserError(
            f"classes, owners and splits of {source} must be whole numbers or names, but one is {values.type}"
        )
    numbers, names = np.array(values.to_numpy()), feature.get("names") if feature.get("_type") == CLASS_LABEL else None
    fits = names and numbers.dtype.kind in "iu" and 0 <= numbers.min() and numbers.max() < len(names)
    return np.array(names)[numbers] if fits and names else numbers


def _decoded(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column with its values in place of a dictionary's numbers."""
    return values.cast(values.type.value_type) if types.is_dictionary(values.type) else values


def _is_number(kind: pa.DataType) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_picture(kind: pa.DataType, feature: Mapping[str, Any]) -> bool:
    """Whether a column holds encoded pictures: by Hugging Face's type, or bytes."""
    if types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and kind.get_field_index("path") >= 0
    return bool(types.is_binary(kind) or types.is_large_binary(kind)) or feature.get("_type") == IMAGE
