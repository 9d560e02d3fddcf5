"""A user's data on disk, as arrays or as other tools write them: what reads each, and the options that it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedtune.data import user_arrays, user_leaf, user_options, user_pfllib, user_pictures, user_tables
from fedtune.data.dataset import Dataset
from fedtune.data.user_options import Options, Rows
from fedtune.user_code import layouts

Reader = tuple[Callable[[Path, Options], Rows], tuple[str, ...]]
READERS: Mapping[str, Reader] = MappingProxyType(
    {
        layouts.PFLLIB: (user_pfllib.read, user_options.PFLLIB),
        layouts.LEAF: (user_leaf.read, user_options.LEAF),
        layouts.HUGGING_FACE: (user_tables.hugging_face, user_options.COLUMNS),
        layouts.PARQUET: (user_tables.parquet, user_options.COLUMNS),
        ".json": (user_leaf.read, user_options.LEAF),
        ".csv": (user_tables.csv, user_options.CSV),
        ".tsv": (user_tables.csv, user_options.CSV),
        ".parquet": (user_tables.parquet, user_options.COLUMNS),
    }
)


def reader(path: Path) -> Reader:
    """What reads a file or folder, and its options: of another tool's layout, or pictures, or arrays."""
    if path.is_dir():
        layout = layouts.of(path)
        return READERS[layout.kind] if layout else (user_pictures.read, ())
    return READERS.get(path.suffix.lower(), (user_arrays.read, ()))


def read(name: str, path: Path, given: Mapping[str, Any]) -> Dataset:
    """The data set of a file or folder.  given: the options after its name."""
    read_rows, names = reader(path)
    options = user_options.parsed(name, given, names)
    return user_arrays.to_dataset(name, str(path), read_rows(path, options), options)
