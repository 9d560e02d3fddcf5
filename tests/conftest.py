"""One thread: the suite's tensors are tiny, and sums come out in the same order everywhere.  One width of tables."""

import os
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from support.searches import begin_search

torch.set_num_threads(1)
os.environ["COLUMNS"] = "160"  # as where there is no terminal; pytest-xdist says otherwise to its workers

# files of minutes, longest first: of two workers none is to begin one when the other has nothing left
LONG = ("survival", "failures", "promotion", "jobs", "watching", "conformance", "extend", "search", "compare", "report")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {f"test_{name}": rank for rank, name in enumerate(LONG)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(LONG)))


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a search that nothing disturbed, to be read only: one for all of pytest's workers."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "undisturbed"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            process = begin_search(folder)
            out, _ = process.communicate(timeout=300)
            assert process.returncode == 0, out
    return folder / "run"
