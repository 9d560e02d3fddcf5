"""PFLlib's folders: train/i.npz and test/i.npz hold the rows of client i, config.json the number of classes.

Each file holds one pickled dictionary {"x": …, "y": …}.  A pickle may run any code, so they are read only if the user
says that they are trusted.  The clients are the files; config.json is optional.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedtune.core.errors import UserError
from fedtune.core.terminal import several
from fedtune.data import user_rows
from fedtune.data.plain import plain
from fedtune.data.reading import reading
from fedtune.data.user_options import Options, Part, Rows, joined

TRAIN, TEST = SPLITS = ("train", "test")
CONFIG = "config.json"
MEMBER = "data"  # the name of the array in an .npz


def read(folder: Path, options: Options) -> Rows:
    """The rows of all clients, client by client, training rows first; owners are the files' numbers."""
    files = [(s, k, folder / name / f"{k}.npz") for s, name in ((0, TRAIN), (2, TEST)) for k in clients(folder)]
    rows = joined(folder, [_part(file, k, split, options.trust) for split, k, file in files])
    return rows._replace(classes=_classes(folder, rows.y))


def clients(folder: Path) -> list[int]:
    """The numbers of the clients; UserError unless train and test have the same files 0.npz, 1.npz, …."""
    names = {split: {file.name for file in (folder / split).glob("*.npz")} for split in SPLITS}
    wanted = {f"{k}.npz" for k in range(max(map(len, names.values())))}
    declared = config(folder).get("num_clients", len(wanted))
    if declared != len(wanted) or any(found != wanted for found in names.values()):
        missing = [str(folder / split / name) for split in SPLITS for name in sorted(wanted - names[split])]
        raise UserError(
            f"every client of {folder} needs training and test rows, in files 0.npz, 1.npz, … without gaps, as many as "
            f"{CONFIG} says ({declared}), but {f'{missing[0]} is missing' if missing else f'there are {len(wanted)}'}; "
            "make the data again"
        )
    return list(range(len(wanted)))


def config(folder: Path) -> dict[str, Any]:
    """The content of config.json; {} if there is none."""
    file = folder / CONFIG
    if not file.exists():
        return {}
    with reading(file, "PFLlib's"):
        content = json.loads(file.read_bytes())
        if not all(type(content.get(n, 1)) is int for n in ("num_clients", "num_classes")):
            raise ValueError("num_clients and num_classes must be whole numbers")
        return dict(content)


def content(file: Path, trust: bool, how: str = "(trust=True) after the folder's name") -> dict[str, Any]:
    """The dictionary of a file, with x and y as they were saved; UserError in one line if anything is wrong.

    trust: whether the user says that it may be read, though a pickle may run any code.  how: in which way it is said.
    """
    if not trust:
        raise UserError(f"{file} is a pickle, which may run any code: if you trust who made it, give {how}")
    with reading(file, "PFLlib's", "it needs a dictionary of arrays or lists x and y, equally long; make it again"):
        with np.load(file, allow_pickle=True) as archive:
            value = archive[MEMBER].item()
        x, y = value["x"], value["y"]
        if not all(isinstance(array, np.ndarray | list | tuple) for array in (x, y)) or len(x) != len(y) or not len(y):
            raise ValueError(f"x is a {type(x).__name__} of {len(x)}, y a {type(y).__name__} of {len(y)}")
        return dict(value)


def _part(file: Path, client: int, split: int, trust: bool) -> Part:
    """The rows of a file."""
    arrays = content(file, trust)
    rows, note = arrays["x"], ""
    if isinstance(rows, np.ndarray) and rows.dtype.hasobject and rows.ndim == 2 and rows.shape[1] == 2:
        rows, note = list(rows[:, 0]), "rows are pairs of tokens and their number; only the tokens are used"
    x, y = plain(str(file), "x", rows), plain(str(file), "y", arrays["y"])
    user_rows.require_rows(str(file), x)
    if y.size != len(x):
        raise UserError(f"y of {file} must be one class per row, but has shape {y.shape}; make the data again")
    form = f"{x.dtype.kind} of shape {x.shape[1:]}"
    return Part(str(file), client, split, form, x=x, y=y.ravel(), note=note)


def _classes(folder: Path, y: np.ndarray) -> list[str] | None:
    """The names of the classes that config.json counts, if it does and labels number them."""
    count = config(folder).get("num_classes")
    if count is None or y.dtype.kind not in "iuf":
        return None
    if (y >= count).any() or not 2 <= count <= 100_000:
        raise UserError(
            f"{folder / CONFIG} says {several(count, 'class')}, of 2 to 100000, so labels are 0 to {count - 1}, but "
            f"one is {y.max():g}; make it again"
        )
    return [str(c) for c in range(count)]
