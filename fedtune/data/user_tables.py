"""Tables on disk: CSV, parquet, a folder of parquet files, or what `save_to_disk` of the library datasets writes.

They are read with pyarrow alone.  A folder's parts (train, validation, test) are the split.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv
from pyarrow import parquet as arrow_parquet

from fedtune.core.errors import UserError
from fedtune.core.terminal import few, several
from fedtune.data import user_columns
from fedtune.data.dataset import split_of
from fedtune.data.reading import reading
from fedtune.data.user_columns import CLASS_LABEL
from fedtune.data.user_options import Options, Rows
from fedtune.user_code import layouts

FEATURES = b"huggingface"  # the entry of a schema's metadata
HOW = (
    "its first line must name the columns, and brackets after its name say what is unusual: delimiter=';', "
    "decimal=',', encoding='cp1252' (or 'utf-16'), na_values=['?'], skiprows=1 (lines before the columns' names)"
)


def csv(path: Path, options: Options) -> Rows:
    """A CSV file with the columns' names in its first line."""
    delimiter = options.delimiter or ("\t" if path.suffix.lower() == ".tsv" else ",")
    parse = arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    form = arrow_csv.ReadOptions(encoding=options.encoding, skip_rows=options.skiprows)
    with reading(path, "CSV", HOW):
        with path.open("rb") as raw:
            if "\0" in raw.read(4096).decode(options.encoding, "ignore"):
                raise ValueError(f"it is not text in {options.encoding}")
        with arrow_csv.open_csv(path, read_options=form, parse_options=parse) as file:
            names = file.schema.names
        given, usual = (options.y, options.owner, options.split), sum(user_columns.USUAL.values(), ())
        texts = {n: pa.string() for n in names if n in given or n.lower() in usual}  # so that 007 is not 7
        convert = arrow_csv.ConvertOptions(column_types=texts, strings_can_be_null=True, decimal_point=options.decimal)
        convert.quoted_strings_can_be_null = bool(options.na_values)
        convert.null_values = [*convert.null_values, *options.na_values]
        table = arrow_csv.read_csv(path, read_options=form, parse_options=parse, convert_options=convert)
        if strange := [c.name for c in table.schema if pa.types.is_binary(c.type)]:
            raise ValueError(f"column {strange[0]} is not text in {options.encoding}")
        if len(names) < 2:
            raise ValueError(f"it has a single column, {few(names)}")
    if options.na_values and not any(column.null_count for column in table.columns):
        raise UserError(f"{path} must have the text of na_values somewhere, but nothing is missing; leave it out")
    return user_columns.read(str(path), table, {}, options)


def parquet(path: Path, options: Options) -> Rows:
    """A parquet file, or a folder of them; parts are named as train-00000-of-00001.parquet, or by folders."""
    files = layouts.of(path).files if path.is_dir() else (path,)  # type: ignore[union-attr]
    parts: dict[str, list[pa.Table]] = {}
    for file in files:
        with reading(file, "parquet"):
            table = arrow_parquet.ParquetFile(file).read()  # not read_table, which takes columns from folders' names
        parts.setdefault(_part_of(file, path), []).append(table)
    if "" in parts and len({(file.parent, _part_of(file, path)) for file in files}) > 1:
        raise UserError(
            f"parquet files of {path} must all be called train-…, validation-… or test-…, or lie in folders of such "
            "names, or have other names and lie in one folder; move some elsewhere, or give one of its folders"
        )
    return _joined(path, parts, options)


def _part_of(file: Path, folder: Path) -> str:
    """The part that a parquet file of a folder belongs to, by its name or its folder's; "" if none."""
    names = [] if file == folder else [file.stem.split("-")[0], *([file.parent.name] if file.parent != folder else [])]
    return next((name for name in names if split_of(name) is not None), "")


def hugging_face(folder: Path, options: Options) -> Rows:
    """A Dataset or a DatasetDict as save_to_disk wrote it."""
    index = folder / "dataset_dict.json"
    parts = {s: folder / s for s in _content(index, "splits")[1]} if index.exists() else {"": folder}
    return _joined(folder, {name: _arrow(part) for name, part in parts.items()}, options)


def _arrow(folder: Path) -> list[pa.Table]:
    """The tables of one split, in the order that state.json gives."""
    (state, names), tables = _content(folder / "state.json", "_data_files", "filename"), []
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise UserError(f"{folder} was saved with a list of chosen rows; call flatten_indices(), and save it again")
    for file in map(folder.joinpath, names):
        file.stat()  # its error names the file, as that of Arrow does not
        with reading(file, "Arrow"), pa.memory_map(str(file)) as mapped:
            tables.append(pa.ipc.open_stream(mapped).read_all())
    return tables


def _content(index: Path, key: str, entry: str = "") -> tuple[dict[str, Any], list[str]]:
    """A file that lists the files or folders beside it, and these: what it has under key, or an entry of each."""
    with reading(index, "an index of Hugging Face's", "save the data again"):
        content: dict[str, Any] = json.loads(index.read_bytes())
        names = [item[entry] if entry else item for item in content[key]]
        if not names or not all(isinstance(name, str) for name in names):
            raise ValueError(f"its {key} lists no names")
        return content, names


def _joined(path: Path, parts: Mapping[str, list[pa.Table]], options: Options) -> Rows:
    """The rows of all parts whose names are those of splits."""
    used = {name: tables for name, tables in parts.items() if not name or split_of(name) is not None}
    if not used:
        raise UserError(f"{path} needs a part train and a part test, but has {few([*parts])}; give one of them")
    tables = [table for part in used.values() for table in part]
    for table in tables:
        if table.schema.types != tables[0].schema.types or table.schema.names != tables[0].schema.names:
            raise UserError(f"all parts of {path} must have the same columns and types, but differ; save them alike")
    with reading(path, "a table"):
        tables, features = _matched(path, tables)
        joined = pa.concat_tables(tables)
    split = None
    if len(used) > 1:
        rows = [sum(table.num_rows for table in part) for part in used.values()]
        split = np.repeat([split_of(name) for name in used], rows).astype(np.int64)
    rows_read = user_columns.read(str(path), joined, features, options, split)
    unused = [name for name in parts if name not in used]
    note = (f"{several(len(unused), 'part')} not used, which no split is called: {few(unused)}",) if unused else ()
    return rows_read._replace(notes=(*rows_read.notes, *note))


def _matched(path: Path, tables: list[pa.Table]) -> tuple[list[pa.Table], dict[str, Mapping[str, Any]]]:
    """The tables with the same number for the same class name, and the types of their columns.

    UserError where tables name the values of a column differently and they cannot be matched.
    """
    kinds = [_features(table.schema) for table in tables]
    features = kinds[0]
    for column in tables[0].column_names:
        lists = [_value_names(kind.get(column, {})) for kind in kinds]
        other = next((names for names in lists if names != lists[0]), None)
        if other is None:
            continue
        if not all(kind.get(column, {}).get("_type") == CLASS_LABEL for kind in kinds):
            raise UserError(
                f"parts of {path} must name the classes of {column} alike, but one has {few(lists[0]) or 'no names'} "
                f"and another {few(other) or 'no names'}; save them alike"
            )
        joined = list(dict.fromkeys(name for names in lists for name in names))
        tables = [_renumbered(t, column, n, joined) for t, n in zip(tables, lists, strict=True)]
        features = features | {column: {**features[column], "names": joined}}
    return tables, features


def _value_names(feature: Any) -> list[str]:
    """The names that Hugging Face gives the values of a column, in the order of their numbers; those of lists too."""
    if not isinstance(feature, Mapping):
        return []
    own = feature.get("names")
    return list(map(str, own)) if isinstance(own, list) else [n for v in feature.values() for n in _value_names(v)]


def _renumbered(table: pa.Table, column: str, names: list[str], joined: list[str]) -> pa.Table:
    """A table whose numbers of these names are those in the joined list."""
    place, values = table.column_names.index(column), table[column]
    numbers = pc.index_in(pa.array(names).take(values), pa.array(joined))
    return table.set_column(place, table.field(place), numbers.cast(values.type))


def _features(schema: pa.Schema) -> dict[str, Mapping[str, Any]]:
    """The types of columns as Hugging Face writes them into a schema; {} if it does not."""
    try:
        features = json.loads((schema.metadata or {}).get(FEATURES, b"{}"))["info"]["features"]
        return {str(n): f for n, f in features.items() if isinstance(f, Mapping)}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}
