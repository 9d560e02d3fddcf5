"""Validation rows of PFLlib's folders: a fifth of each client's training rows, and never a test row."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.foreign_data import pfllib, pfllib_file

from fedtune.analysis import split_validation
from fedtune.core.errors import UserError


def content(file: Path) -> dict[str, Any]:
    with np.load(file, allow_pickle=True) as found:  # as PFLlib reads it
        return dict(found["data"].tolist())


def test_training_rows_are_parted_and_test_rows_are_left_out(tmp_path: Path, capsys: Any) -> None:
    folder = pfllib(tmp_path / "MNIST", clients=3, rows=40)
    assert (
        split_validation.main([str(folder)]) == 2
        and "if you trust who made it, give --trust" in capsys.readouterr().err
    )
    assert split_validation.main([str(folder), "--trust"]) == 0
    assert "3 clients: 72 rows to train on, 18 to validate; in PFLlib give -data MNISTval" in capsys.readouterr().out
    copy = tmp_path / "MNISTval"
    assert (copy / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    for k in range(3):
        before, train, val = (content(f / f"{k}.npz") for f in (folder / "train", copy / "train", copy / "test"))
        assert {len(part["y"]) for part in (val,)} == {6} and train["x"].dtype == before["x"].dtype
        row = [part["x"][:, 0, 0, 0].tolist() for part in (before, train, val)]
        assert sorted(row[1] + row[2]) == row[0]
        label = dict(zip(row[0], before["y"].tolist(), strict=True))
        assert [label[r] for r in row[1] + row[2]] == train["y"].tolist() + val["y"].tolist()
        assert np.bincount(val["y"]).tolist() == [2, 2, 2]
    assert not [f for f in tmp_path.iterdir() if f.name.startswith(".")]


def test_the_seed_says_which_rows(tmp_path: Path) -> None:
    made = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        split_validation.make(pfllib(tmp_path / name, clients=2, rows=40), seed, trust=True)
        made.append(content(tmp_path / f"{name}val" / "test" / "1.npz")["x"].tolist())
    assert made[0] == made[1] != made[2]


@pytest.mark.parametrize(
    ("y", "many", "spared"),
    [
        ([0] * 10 + [1] * 5, 3, []),
        ([0] * 10 + [1], 2, [10]),  # the only row of its class stays
        ([0, 1], 1, []),
        ([5, 5], 1, []),
        (list(range(8)), 2, []),
        ([0] * 2 + [1], 1, [2]),
    ],
)
def test_a_fifth_is_chosen_class_by_class(y: list[int], many: int, spared: list[int]) -> None:
    for seed in range(20):
        found = split_validation.validation_rows(np.array(y), np.random.default_rng(seed))
        assert len(set(found.tolist())) == len(found) == many and not set(found.tolist()) & {*spared}
        for c in {*y}:
            share = sum(y[i] == c for i in found) - y.count(c) / 5
            assert abs(share) <= 1


def test_lists_of_tokens_stay_lists(tmp_path: Path) -> None:
    rows = [([i, i + 1], 2) for i in range(10)]
    for split in ("train", "test"):
        pfllib_file(tmp_path / "News" / split / "0.npz", rows, [i % 2 for i in range(10)])
    split_validation.make(tmp_path / "News", trust=True)
    parts = [content(tmp_path / "Newsval" / split / "0.npz") for split in ("train", "test")]
    assert sorted(parts[0]["x"] + parts[1]["x"]) == rows and [len(p["y"]) for p in parts] == [8, 2]


def first_rows(folder: Path, **arrays: Any) -> None:
    with (folder / "train" / "1.npz").open("wb") as file:
        np.savez(file, data=arrays)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: first_rows(f, x=np.zeros((1, 2)), y=[0]), r"train/1.npz has 1 row, and a client needs 2"),
        (lambda f: f.with_name("MNISTval").mkdir(), "MNISTval exists already, and nothing is overwritten"),
        (shutil.rmtree, "split-validation needs a folder of PFLlib's, .* but got"),
        (lambda f: first_rows(f, x=np.zeros((4, 2)), y=[0, 1] * 2, mean=3.0), "has mean beside x and y"),
        (lambda f: (f / "test" / "1.npz").unlink(), "training and test rows, .* but .*test/1.npz is missing"),
        (lambda f: (f / "train" / "1.npz").write_bytes(b"PK"), "train/1.npz cannot be read"),
        (
            lambda f: (f / "config.json").write_text(json.dumps({"num_clients": 7})),
            "config.json says .7., but there are 3",
        ),
    ],
)
def test_what_cannot_be_split_is_refused_and_leaves_nothing(damage: Any, message: str, tmp_path: Path) -> None:
    folder = pfllib(tmp_path / "MNIST", clients=3)
    damage(folder)
    there = sorted(tmp_path.iterdir())
    with pytest.raises(UserError, match=message):
        split_validation.make(folder, trust=True)
    assert sorted(tmp_path.iterdir()) == there
