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

from fedtune.core import bounded, plain_pickle, zipped
from fedtune.core.errors import UserError
from fedtune.core.terminal import several
from fedtune.data import user_rows
from fedtune.data.plain import joined_labels, plain
from fedtune.data.user_options import Options, Rows

TRAIN, TEST = SPLITS = ("train", "test")
CONFIG = "config.json"
MEMBER = "data"  # the name of the array in an .npz
CLASSES = 100_000  # the largest number of classes


def read(folder: Path, options: Options) -> Rows:
    """The rows of all clients, client by client, training rows first; owners are the files' numbers."""
    numbers = clients(folder)
    x: list[np.ndarray] = []
    y: list[np.ndarray] = []
    owner: list[np.ndarray] = []
    split: list[np.ndarray] = []
    notes: tuple[str, ...] = ()
    for s, name in ((0, TRAIN), (2, TEST)):
        for k in numbers:
            file = folder / name / f"{k}.npz"
            rows, labels_of_file, note = _arrays(file)
            if x and (rows.shape[1:] != x[0].shape[1:] or rows.dtype.kind != x[0].dtype.kind):
                raise UserError(
                    f"rows of {folder} must all be alike, but those of {file} are {_form(rows)} and those before "
                    f"{_form(x[0])}"
                )
            x.append(rows)
            y.append(labels_of_file)
            owner.append(np.full(len(labels_of_file), k))
            split.append(np.full(len(labels_of_file), s))
            notes = (note,) if note else notes
    labels = joined_labels(str(folder), y)
    classes = _classes(folder, labels)
    return Rows(np.concatenate(x), labels, np.concatenate(owner), np.concatenate(split), classes, notes=notes)


def clients(folder: Path) -> list[int]:
    """The numbers of the clients; UserError unless train and test have the same files 0.npz, 1.npz, …."""
    numbers_in: dict[str, set[int]] = {}
    for name in SPLITS:
        files = sorted((folder / name).glob("*.npz")) if (folder / name).is_dir() else []
        for file in files:
            if not (file.stem.isascii() and file.stem.isdigit() and file.stem == str(int(file.stem))):
                raise UserError(f"files of PFLlib's are called 0.npz, 1.npz, …, but {file} is not; remove it")
        numbers_in[name] = {int(file.stem) for file in files}
    for name, other_split in (SPLITS, SPLITS[::-1]):
        if missing := sorted(numbers_in[name] - numbers_in[other_split]):
            raise UserError(
                f"every client of {folder} needs training and test rows, but client {missing[0]} has no "
                f"{folder / other_split / f'{missing[0]}.npz'}; make the data again"
            )
    numbers = sorted(numbers_in[TRAIN])
    if not numbers:
        raise UserError(f"{folder} needs files train/0.npz and test/0.npz, …, but has none")
    if numbers[-1] != len(numbers) - 1:
        gap = next(k for k in range(len(numbers)) if k not in numbers_in[TRAIN])
        raise UserError(
            f"clients of {folder} are numbered from 0 without gaps, but {gap} is not there; make them again"
        )
    declared = config(folder).get("num_clients", len(numbers))
    if declared != len(numbers):
        raise UserError(
            f"{folder / CONFIG} says {declared} clients, but there are files of {len(numbers)}; make the data again"
        )
    return numbers


def config(folder: Path) -> dict[str, Any]:
    """The content of config.json; {} if there is none."""
    file = folder / CONFIG
    if not file.exists():
        return {}
    try:
        content = json.loads(bounded.read(file))
        valid = all(isinstance(content.get(n, 1), int) for n in ("num_clients", "num_classes"))
        if not valid:
            raise ValueError("num_clients and num_classes must be whole numbers")
    except (ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"{file} cannot be read as PFLlib's: {' '.join(str(error).split())}; make it again") from error
    return dict(content)


def content(file: Path) -> dict[str, Any]:
    """The dictionary of a file, with x and y as they were saved; UserError in one line if anything is wrong."""
    try:
        zipped.require_arrays(file)
        with zipfile.ZipFile(file) as archive, archive.open(f"{MEMBER}.npy") as member:
            read_header = {1: npy.read_array_header_1_0, 2: npy.read_array_header_2_0}[npy.read_magic(member)[0]]
            shape, _, dtype = read_header(member)
            if shape or not dtype.hasobject:
                raise UserError(f"{file} needs a dictionary of x and y as {MEMBER}, but has {dtype} of shape {shape}")
            value = plain_pickle.load(member.read())
            value = value.item() if isinstance(value, np.ndarray) and not value.shape else value
    except UserError:
        raise
    except plain_pickle.Refused as error:
        raise UserError(
            f"{file} may hold arrays, lists, numbers and text, which are read without running them, but {error}; save "
            "x and y as NumPy arrays"
        ) from error
    except KeyError as error:
        raise UserError(
            f"{file} needs an array {MEMBER} that holds x and y, as PFLlib saves it, but has none"
        ) from error
    except OSError:
        raise
    except Exception as error:  # from the zip format, its compression, or NumPy's headers
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{file} cannot be read as PFLlib's: {reason}; make it again") from error
    _require_rows(file, value)
    return dict(value)


def _require_rows(file: Path, rows: Any) -> None:
    """UserError unless it is a dictionary of as many labels as rows."""
    if not isinstance(rows, dict) or not {"x", "y"} <= set(rows):
        actual = ", ".join(map(str, rows)) if isinstance(rows, dict) else f"a {type(rows).__name__}"
        raise UserError(f"{file} needs a dictionary of x and y, but has {actual or 'an empty one'}")
    for name in ("x", "y"):
        if not isinstance(rows[name], np.ndarray | list | tuple):
            raise UserError(f"{name} of {file} must be an array or a list, but is a {type(rows[name]).__name__}")
    if len(rows["x"]) != len(rows["y"]):
        raise UserError(f"{file} needs as many labels as rows, but x has {len(rows['x'])} and y {len(rows['y'])}")
    if not len(rows["y"]):
        raise UserError(f"every client needs rows, but {file} has none; leave the client out, or make the data again")


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


def _form(x: np.ndarray) -> str:
    return f"{x.dtype} of shape {x.shape[1:]}"
