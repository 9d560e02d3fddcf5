"""A user's own data set: FILE.npz, a folder of pictures, a function in FILE.py, or as another tool wrote it (READERS).

The process that starts a run reads the data.  An experiment carries only their metadata (`user_metadata`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import numpy as np

from fedtune.core.errors import UserError
from fedtune.data import user_arrays, user_leaf, user_options, user_pfllib, user_pictures, user_tables
from fedtune.data.dataset import Dataset
from fedtune.data.user_metadata import DATASET, GROUP, DatasetInfo, ending, of_file, offered
from fedtune.data.user_options import Options, Rows
from fedtune.user_code import entry_points, layouts, references, user_errors, user_files
from fedtune.user_code.references import CODE
from fedtune.user_code.user_files import UserFile

Reader = tuple[Callable[[Path, Options], Rows], tuple[str, ...]]  # and the options that it takes
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


def about(name: str) -> DatasetInfo:
    """The metadata of a user's data set; for a package's data set they are made by reading it."""
    return of_file(name) if user_files.is_own(name) else _about(_read(name, ""), "")


def described(name: str, files: tuple[UserFile, ...]) -> tuple[UserFile, ...]:
    """Read and check an experiment's data set, and return the experiment's files with its metadata.

    name: the data set's canonical name.  Metadata known for the same content are kept, for example those of a resumed
    run.  UserError in one line if anything is wrong with the data.
    """
    user_files.register(files)
    old, call = user_files.known(name).about, ending(name)
    if call not in old.get(DATASET, {}):
        data = _read(name, _content(name))
        info = _about(data, _digest(data) if call else "")
        metadata = info._asdict() | {"shape": list(info.shape), "notes": list(info.notes)}  # as JSON represents it
        old = old | {DATASET: old.get(DATASET, {}) | {call: metadata}}
    files = tuple(f._replace(about=old) if f.name == _file(name) else f for f in files)
    user_files.register(files)
    return files


def load(name: str) -> Dataset:
    """The data set; UserError if it cannot be read, or its function returns other arrays than before."""
    if not user_files.is_own(name):
        return _read(name, "")
    data, info = _read(name, _content(name)), about(name)
    if info.digest and _digest(data) != info.digest:
        raise UserError(
            f"{name} returned other arrays than before; a data set's function must return the same every time"
        )
    return data


def _about(data: Dataset, digest: str) -> DatasetInfo:
    sizes = np.bincount([] if data.owner is None else data.owner)  # of owners
    return DatasetInfo(
        shape=tuple(map(int, data.x.shape[1:])),
        classes=data.classes,
        kind=data.kind,
        owners=len(sizes),
        rows=len(data.y),
        digest=digest,
        sizes=np.transpose(np.unique(sizes, return_counts=True)).tolist(),
        notes=data.notes,
    )


@lru_cache(maxsize=2)
def _read(name: str, content: str) -> Dataset:
    """Read a data set once for the same content."""
    if name in offered():
        function = entry_points.find(GROUP, name, "data set")
        calling: AbstractContextManager[None] = user_errors.reported(f"the data set {name} failed")
    elif not _file(name).endswith(CODE):
        return _of_files(name, user_files.path_of(name))
    else:
        function, calling = user_files.load(name, "data set"), user_files.calling(name, "data set")
    if not callable(function):
        raise UserError(
            f"a data set in a Python file must be a function that returns arrays, FILE.py:NAME, but {name} is a "
            f"{type(function).__name__}"
        )
    with calling:
        returned = function(**user_files.call_options(name))
    if isinstance(returned, tuple | list) and 2 <= len(returned) <= 4:
        returned = dict(zip(user_arrays.NAMES, returned, strict=False))
    if not isinstance(returned, Mapping) or not set(returned) <= set(user_arrays.NAMES):
        got = sorted(map(str, returned)) if isinstance(returned, Mapping) else f"a {type(returned).__name__}"
        names = ", ".join(user_arrays.NAMES)
        raise UserError(f"{name} must return (x, y), (x, y, owner, split) or a dict of {names}, but returned {got}")
    return user_arrays.to_dataset(name, name, user_arrays.rows(name, returned))


def _of_files(name: str, path: Path) -> Dataset:
    """The data set of a file or folder."""
    if path.is_dir():
        layout = layouts.of(path)
        reader, names = READERS[layout.kind] if layout else (user_pictures.read, ())
    else:
        reader, names = READERS.get(path.suffix.lower(), (user_arrays.read, ()))
    options = user_options.parsed(name, user_files.call_options(name), names)
    return user_arrays.to_dataset(name, str(path), reader(path, options), options)


def _content(name: str) -> str:
    """What a data set is read from: path and hash of the data, or the hash of the code."""
    if _file(name).endswith(CODE):
        return user_files.version(name)
    path = user_files.path_of(name)
    return f"{path} {user_files.of_data(path).sha256}"


def _digest(data: Dataset) -> str:
    """The hash of a data set's arrays."""
    digest = hashlib.sha256()
    for array in (data.x, data.y, data.owner, data.split):
        if isinstance(array, np.ndarray):
            digest.update(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _file(name: str) -> str:
    """The file of a canonical name."""
    return references.parsed(name).path
