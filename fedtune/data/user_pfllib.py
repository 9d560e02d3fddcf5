"""PFLlib's folders: train/i.npz and test/i.npz hold the rows of client i, config.json the number of classes.

Each file holds one pickled dictionary {"x": …, "y": …}; it is read without running anything (`plain_pickle`).  The
clients are the files; config.json is optional.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from fedtune.core import plain_pickle
from fedtune.core.errors import UserError
from fedtune.core.terminal import several
from fedtune.data import user_names, user_rows
from fedtune.data.plain import plain
from fedtune.data.user_options import Options, Rows

TRAIN, TEST = SPLITS = ("train", "test")
CONFIG = "config.json"
MEMBER = "data"  # the name of the array in an .npz
CLASSES = 100_000  # the largest number of classes


def read(folder: Path, options: Options) -> Rows:
    """The rows of all clients, client by client, training rows first; owners are the files' numbers."""
    numbers = clients(folder)
    files = [(s, k, folder / name / f"{k}.npz") for s, name in ((0, TRAIN), (2, TEST)) for k in numbers]
    contents = [_arrays(file) for _, _, file in files]
    first, *_ = contents[0]
    for (_, _, file), (x, *_) in zip(files, contents, strict=True):
        if x.shape[1:] != first.shape[1:] or x.dtype.kind != first.dtype.kind:
            a, b = (f"{rows.dtype} of shape {rows.shape[1:]}" for rows in (x, first))
            raise UserError(f"rows of {folder} must all be alike, but those of {file} are {a} and those before {b}")
    sizes = [len(y) for _, y, _ in contents]
    split, owner = (np.repeat([file[i] for file in files], sizes) for i in (0, 1))
    y = user_names.joined(str(folder), [y for _, y, _ in contents])
    notes = tuple(dict.fromkeys(note for *_, note in contents if note))
    return Rows(np.concatenate([x for x, *_ in contents]), y, owner, split, _classes(folder, y), notes=notes)


def clients(folder: Path) -> list[int]:
    """The numbers of the clients; UserError unless train and test have the same files 0.npz, 1.npz, …."""
    names = {split: {file.name for file in (folder / split).glob("*.npz")} for split in SPLITS}
    wanted = {f"{k}.npz" for k in range(max(map(len, names.values())))}
    for split in SPLITS:
        if missing := sorted(wanted - names[split]):  # as it is where a file has another name
            raise UserError(
                f"every client of {folder} needs training and test rows, in files 0.npz, 1.npz, … without gaps, but "
                f"{folder / split / missing[0]} is missing; make the data again"
            )
    declared = config(folder).get("num_clients", len(wanted))
    if declared != len(wanted):
        raise UserError(
            f"{folder / CONFIG} says {declared} clients, but there are files of {len(wanted)}; make the data again"
        )
    return list(range(len(wanted)))


def config(folder: Path) -> dict[str, Any]:
    """The content of config.json; {} if there is none."""
    file = folder / CONFIG
    if not file.exists():
        return {}
    try:
        content = json.loads(file.read_bytes())
        if not all(isinstance(content.get(n, 1), int) for n in ("num_clients", "num_classes")):
            raise ValueError("num_clients and num_classes must be whole numbers")
    except (ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"{file} cannot be read as PFLlib's: {' '.join(str(error).split())}; make it again") from error
    return dict(content)


def content(file: Path) -> dict[str, Any]:
    """The dictionary of a file, with x and y as they were saved; UserError in one line if anything is wrong."""
    try:
        with zipfile.ZipFile(file) as archive, archive.open(f"{MEMBER}.npy") as member:
            read_header = {1: npy.read_array_header_1_0, 2: npy.read_array_header_2_0}[npy.read_magic(member)[0]]
            _, _, dtype = read_header(member)
            value = plain_pickle.load(member.read()) if dtype.hasobject else np.empty(0)
            value = value.item() if isinstance(value, np.ndarray) and not value.shape else value
    except plain_pickle.Refused as error:
        raise UserError(
            f"{file} may hold arrays, lists, numbers and text, which are read without running them, but {error}; save "
            "x and y as NumPy arrays"
        ) from error
    except OSError:
        raise
    except Exception as error:  # from the zip format, its compression, or NumPy's headers
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{file} cannot be read as PFLlib's: {reason}; make it again") from error
    if not isinstance(value, dict) or not {"x", "y"} <= set(value):
        raise UserError(f"{file} needs a dictionary of x and y in an array called {MEMBER}, as PFLlib saves it")
    for name in ("x", "y"):
        if not isinstance(value[name], np.ndarray | list | tuple):
            raise UserError(f"{name} of {file} must be an array or a list, but is a {type(value[name]).__name__}")
    if len(value["x"]) != len(value["y"]):
        raise UserError(f"{file} needs as many labels as rows, but x has {len(value['x'])} and y {len(value['y'])}")
    if not len(value["y"]):
        raise UserError(f"every client needs rows, but {file} has none; leave the client out, or make the data again")
    return {n: np.asarray(a) if isinstance(a, np.ndarray) else a for n, a in value.items()}  # of NumPy's own class


def _arrays(file: Path) -> tuple[np.ndarray, np.ndarray, str]:
    """Rows and labels of a file, and a note."""
    arrays = content(file)
    rows, note = arrays["x"], ""
    if isinstance(rows, np.ndarray) and rows.dtype.hasobject and rows.ndim == 2 and rows.shape[1] == 2:
        rows, note = list(rows[:, 0]), "rows are pairs of tokens and their number; only the tokens are used"
    x, y = plain(str(file), "x", rows), plain(str(file), "y", arrays["y"])
    user_rows.require_rows(str(file), x)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise UserError(f"y of {file} must be one class per row, but has shape {y.shape}; make the data again")
    return x, y, note


def _classes(folder: Path, y: np.ndarray) -> list[str] | None:
    """The names of the classes that config.json counts, if it does and labels number them."""
    count = config(folder).get("num_classes")
    if count is None or y.dtype.kind not in "iuf":
        return None
    if not 1 < count <= CLASSES:
        raise UserError(f"{folder / CONFIG} must say how many classes there are, but says {count}; make it again")
    if y.max() >= count:
        raise UserError(
            f"{folder / CONFIG} says {several(count, 'class')}, so labels are 0 to {count - 1}, but one is {y.max():g}"
        )
    return [str(c) for c in range(count)]
