"""A folder as a user may have one: runs, their records, files that are fit and files that are not."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
FILES = {
    "plain-file": "",
    "code.py": "from ray import tune\nSPACE = {'lam': tune.uniform(0.1, 1.0)}\n",
    "exits.py": "import sys\nsys.exit()\n",
    "folder/x.py": "SPACE = 3\n",
}
REPRODUCTION = {
    "format": 2,
    "command": ["fedtune", "reproduce", "gfpl-fig6"],
    "device": "cpu",
    "state": "interrupted",
    "runs": 3,
    "grid": {"table": "gfpl-fig6", "dataset": "digits", "quick": True},
}
OPTIONS = {  # of the example run
    "algo": "gfpl",
    "fields": {"rounds": 3, "clients": 4},
    "trials": 3,
    "name": "run",
    "storage_path": "runs",
    "set": {},
}
STATES = ("finished", "interrupted", "running", "nothing found", "failed")


def make(folder: Path, run: Path | None = None) -> Path:
    """Fill a folder.  run: of a search to copy in place of the example, for instance with Ray's state in it."""
    folder.mkdir(exist_ok=True)
    (folder / "folder").mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    os.symlink("loop", folder / "loop")
    rows = np.arange(600)
    np.savez(folder / "numbers.npz", row=rows, client=rows % 4, split=rows // 4 % 3)
    example = ROOT / "analysis" / "example"
    kept = ROOT / "tests" / "runs" / "kept"
    shutil.copytree(run or kept, folder / "run")
    record = json.loads((kept / "run.json").read_text())
    if run is None:
        (folder / "run" / "run.json").write_text(json.dumps(record | {"options": OPTIONS}))
    shutil.copytree(example / "compare", folder / "comparison")
    shutil.copytree(example / "search", folder / "comparison" / "gfpl")  # of the others it has none
    shutil.copytree(kept, folder / "old")
    (folder / "old" / "run.json").write_text(json.dumps(record | {"format": 1}))
    shutil.copyfile(folder / "run" / "best.yaml", folder / "best.yaml")
    (folder / "reproduction").mkdir()
    (folder / "reproduction" / "reproduce.json").write_text(json.dumps(REPRODUCTION))
    return folder
