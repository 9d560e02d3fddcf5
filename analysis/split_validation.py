"""python -m fedtune.analysis.split_validation: a copy of PFLlib's folder, so that PFLlib selects on validation rows.

    python -m fedtune.analysis.split_validation PFLlib/dataset/MNIST --trust       # writes PFLlib/dataset/MNISTval

The copy's test rows are training rows that were set aside.
"""

from __future__ import annotations

import argparse
import os
import pickle
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from fedtune.core import randomness
from fedtune.core.errors import UserError
from fedtune.core.terminal import say, several
from fedtune.data import user_pfllib
from fedtune.data.plain import plain
from fedtune.data.user_pfllib import CONFIG, MEMBER, SPLITS, TRAIN
from fedtune.user_code.command import Parser, guarded

ENDING = "val"  # of the copy's name
SHARE = 5  # one row of so many is set aside


def make(folder: Path, seed: int = 0, trust: bool = False) -> tuple[Path, int, int, int]:
    """Write FOLDERval beside FOLDER: a fifth of each client's training rows become its test rows.

    The test rows of FOLDER are not in it.  UserError for a folder that is not PFLlib's, a client with one row, or a
    copy that exists.  trust: whether its pickles, which may run any code, may be read.

    Returns the copy, and the numbers of its clients, of rows to train on and of rows to validate.
    """
    folder = Path(os.path.abspath(folder))
    copy = folder.with_name(folder.name + ENDING)
    if os.path.lexists(copy):
        raise UserError(f"{copy} exists already, and nothing is overwritten; remove it, or use it")
    if not (folder / TRAIN).is_dir():
        raise UserError(
            f"split-validation needs a folder of PFLlib's, with train/0.npz and test/0.npz, but got {folder}"
        )
    numbers = user_pfllib.clients(folder)
    temporary = Path(tempfile.mkdtemp(prefix=f".{copy.name}-", dir=folder.parent))
    try:
        counts = [_client(folder, temporary, k, seed, trust) for k in numbers]
        if (folder / CONFIG).exists():
            shutil.copyfile(folder / CONFIG, temporary / CONFIG)
        temporary.chmod(folder.stat().st_mode & 0o777)
        temporary.rename(copy)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    train, val = (sum(count) for count in zip(*counts, strict=True))
    return copy, len(numbers), train, val


def _client(folder: Path, target: Path, number: int, seed: int, trust: bool) -> tuple[int, int]:
    """Write a client's two files; the numbers of rows to train on and to validate."""
    file = folder / TRAIN / f"{number}.npz"
    arrays = user_pfllib.content(file, trust, "--trust")
    y = plain(str(file), "y", arrays["y"]).reshape(len(arrays["y"]), -1)[:, 0]
    if len(y) < 2:
        raise UserError(
            f"{file} has {several(len(y), 'row')}, and a client needs 2, to train and to validate; leave it out"
        )
    aside = validation_rows(y, randomness.numpy_stream(seed, "validation", number))
    parts = (np.setdiff1d(np.arange(len(y)), aside), aside)
    for name, rows in zip(SPLITS, parts, strict=True):
        (target / name).mkdir(exist_ok=True)
        per_row = {n for n, v in arrays.items() if isinstance(v, np.ndarray | list | tuple) and len(v) == len(y)}
        if others := [n for n in arrays if n not in per_row]:
            raise UserError(f"{file} has {others[0]} beside x and y, which is not one value per row; leave it out")
        _write(target / name / file.name, {n: _rows_of(values, rows) for n, values in arrays.items()})
    return len(parts[0]), len(parts[1])


def validation_rows(y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The rows to set aside, ascending: a fifth of each class to within one row, at least one in all.

    Rows of a class that has only one stay for training, unless every class has only one.
    """
    order = rng.permutation(len(y))
    _, number, size = np.unique(y[order], return_inverse=True, return_counts=True)
    several_rows = size[number] > 1
    order, number = (a[several_rows] if several_rows.any() else a for a in (order, number))
    order = order[np.argsort(number, kind="stable")]
    count = max(1, (len(order) + SHARE // 2) // SHARE)
    places = ((np.arange(count) + rng.random()) * len(order) / count).astype(np.int64)
    rows: np.ndarray = np.sort(order[places])
    return rows


def _rows_of(values: Any, rows: np.ndarray) -> Any:
    return values[rows] if isinstance(values, np.ndarray) else type(values)(values[i] for i in rows.tolist())


def _write(file: Path, content: dict[str, Any]) -> None:
    """Write a file as `np.savez_compressed` does, in a form that NumPy 1 reads too."""
    value = np.empty((), object)
    value[()] = content
    with zipfile.ZipFile(file, "x", zipfile.ZIP_DEFLATED) as packed:
        with packed.open(f"{MEMBER}.npy", "w", force_zip64=True) as member:
            npy.write_array_header_1_0(member, {"descr": "|O", "fortran_order": False, "shape": ()})
            _Writer(member, protocol=4).dump(value)


class _Writer(pickle._Pickler):  # the class written in Python: it lets names be changed
    def save_global(self, obj: Any, name: str | None = None) -> None:
        """Write the name of a function of NumPy as NumPy 1 knows it."""
        module = str(getattr(obj, "__module__", ""))
        if not module.startswith("numpy._core"):
            super().save_global(obj, name)  # type: ignore[misc]
            return
        self.save(module.replace("numpy._core", "numpy.core"))  # type: ignore[attr-defined]
        self.save(name or obj.__qualname__)  # type: ignore[attr-defined]
        self.write(pickle.STACK_GLOBAL)  # type: ignore[attr-defined]
        self.memoize(obj)  # type: ignore[attr-defined]


def parser() -> argparse.ArgumentParser:
    """The command line of `python -m fedtune.analysis.split_validation`."""
    p = Parser(
        prog="python -m fedtune.analysis.split_validation",
        description="Write NAMEval beside PFLlib's folder NAME: a fifth of each client's training rows become its test "
        "rows, so that PFLlib, unedited, scores on validation rows. NAME's own test rows are left for the final check.",
    )
    p.add_argument("folder", type=Path, metavar="DATASET/NAME", help="a folder with train, test and config.json")
    p.add_argument("--seed", type=int, default=0, metavar="N", help="which rows are set aside (default 0)")
    p.add_argument("--trust", action="store_true", help="read the folder's pickles, which can run any code")
    p.add_argument("--debug", action="store_true", help="show the full traceback of an error")
    return p


@guarded
def main(argv: list[str] | None = None) -> int:
    """Run `python -m fedtune.analysis.split_validation` and return its exit status."""
    args = parser().parse_args(argv)
    folder, clients, train, val = make(args.folder, args.seed, args.trust)
    rows = f"{several(train, 'row')} to train on, {val} to validate"
    say(f"{several(clients, 'client')}: {rows}; in PFLlib give -data {folder.name}")
    say(f"written: {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
