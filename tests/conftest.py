"""One thread: the suite's tensors are tiny, and sums come out in the same order everywhere.  One width of tables."""

import os
import sys
from pathlib import Path

import pytest
import torch

sys.path[:0] = [str(Path(__file__).parent), *map(str, Path(__file__).parent.glob("*/"))]  # for support and each other
torch.set_num_threads(1)
os.environ["COLUMNS"] = "160"  # as where there is no terminal; pytest-xdist says otherwise to its workers

# files of minutes, longest first: of two workers none is to begin one when the other has nothing left
LONG = ("survival", "failures", "promotion", "jobs", "watching", "conformance", "extend", "search", "compare", "report")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {f"test_{name}": rank for rank, name in enumerate(LONG)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(LONG)))
