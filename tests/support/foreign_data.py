"""Small data sets as other tools write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def pfllib(folder: Path, clients: int = 4, rows: int = 20, classes: int = 3, seed: int = 0) -> Path:
    """PFLlib's folder of images: three quarters of each client's rows train; the first pixel is the row's number."""
    rng = np.random.default_rng(seed)
    for k in range(clients):
        x = rng.normal(size=(rows, 1, 4, 4)).astype(np.float32)
        x[:, 0, 0, 0] = np.arange(k * rows, (k + 1) * rows)
        y = np.arange(rows) % classes
        cut = rows * 3 // 4
        pfllib_file(folder / "train" / f"{k}.npz", x[:cut], y[:cut])
        pfllib_file(folder / "test" / f"{k}.npz", x[cut:], y[cut:])
    (folder / "config.json").write_text(json.dumps({"num_clients": clients, "num_classes": classes, "alpha": 0.1}))
    return folder


def pfllib_file(file: Path, x: Any, y: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as opened:
        np.savez_compressed(opened, data={"x": x, "y": y})  # type: ignore[arg-type]


def leaf(file: Path, users: dict[str, tuple[list[Any], list[Any]]], /, **changes: Any) -> Path:
    """A file of LEAF's: rows and labels of each user."""
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in users.items()},
    } | changes
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))
    return file


def writers(folder: Path, split: bool = True) -> Path:
    """LEAF's folder of three writers of flat images, 16 pixels each."""
    rng = np.random.default_rng(0)

    def part(rows: int) -> dict[str, tuple[list[Any], list[Any]]]:
        return {
            name: (rng.random((rows, 16)).round(4).tolist(), (np.arange(rows) % 3).tolist())
            for name in ("f0001_41", "f0003_41", "f0012_08")
        }

    if split:
        leaf(folder / "train" / "all_data_0_keep_0_train_9.json", part(12))
        leaf(folder / "test" / "all_data_0_keep_0_test_9.json", part(6))
    else:
        leaf(folder / "all_data" / "all_data_0.json", part(12))
    return folder
