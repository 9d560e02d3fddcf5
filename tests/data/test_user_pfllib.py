"""PFLlib's folders: the clients are the files, and nothing in them is run that is not trusted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.foreign_data import TRUSTED, pfllib, pfllib_file
from support.user_data import made, refused, taken

from fedtune.runs import user_copies
from fedtune.user_code import layouts, user_files


def test_a_client_is_a_file_and_its_test_rows_are_the_test_rows(tmp_path: Path) -> None:
    scenario = taken(f"{pfllib(tmp_path / 'MNIST', clients=12)}{TRUSTED}", normalise="none")
    assert (scenario.dataset, scenario.partition, scenario.clients) == ("MNIST/(trust=True)", "natural", 12)
    f = made(scenario)
    assert f.shape == (1, 4, 4) and f.classes == 3 and [f.owner(k) for k in range(12)] == [str(k) for k in range(12)]
    for k in range(12):
        train, val, test = (
            {int(r) for r in f.x[table.rows[k, : table.counts[k]], 0, 0, 0]} for table in (f.train, f.val, f.test)
        )
        assert test == set(range(20 * k + 15, 20 * k + 20)) and len(val) == 2
        assert train | val == set(range(20 * k, 20 * k + 15))


def test_config_counts_classes_that_no_row_has(tmp_path: Path) -> None:
    folder = pfllib(tmp_path / "MNIST")
    (folder / "config.json").write_text(json.dumps({"num_clients": 4, "num_classes": 7}))
    assert made(taken(f"{folder}{TRUSTED}")).classes == 7
    (folder / "config.json").unlink()
    assert made(taken(f"{folder}{TRUSTED}")).classes == 3


def test_options_reshape_rows_and_pool_them(tmp_path: Path) -> None:
    folder = pfllib(tmp_path / "MNIST")
    scenario = taken(f"{folder}(shape=16, split=None, trust=True)")
    assert scenario.dataset == "MNIST/(shape=16,split=None,trust=True)" and scenario.model == "mlp"
    assert made(scenario).shape == (16,) and made(scenario).train.counts.tolist() == [12] * 4
    assert made(taken(f"{folder}/(shape=(4, 4), trust=True)", x_as="series")).shape == (4, 4)


def test_tokens_windows_and_lists_are_read(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for k in range(2):
            rows = np.array([[[i, i + 1, k], 3] for i in range(10)], dtype=object)
            pfllib_file(tmp_path / "News" / split / f"{k}.npz", rows, [i % 2 for i in range(10)])
            windows = np.random.default_rng(k).normal(size=(10, 9, 1, 16))
            pfllib_file(tmp_path / "HAR" / split / f"{k}.npz", windows, np.arange(10) % 2)
    news = taken(f"{tmp_path}/News{TRUSTED}", x_as="tokens")
    assert news.model == "tokens" and made(news).shape == (3,) and made(news).x.dtype == np.int64
    assert made(taken(f"{tmp_path}/HAR{TRUSTED}")).shape == (9, 1, 16)
    assert made(taken(f"{tmp_path}/HAR/(shape=(9, 16), trust=True)", x_as="series")).shape == (9, 16)


def test_raw_data_beside_the_files_is_neither_hashed_nor_copied(tmp_path: Path) -> None:
    folder = pfllib(tmp_path / "MNIST")
    before = layouts.digest(folder)
    (folder / "rawdata").mkdir()
    (folder / "rawdata" / "t10k.gz").write_bytes(b"raw")
    assert layouts.digest(folder) == before
    _, files = user_files.take(str(folder))
    (tmp_path / "run").mkdir()
    user_copies.keep(files, tmp_path / "run")
    copy = tmp_path / "run" / "own" / "MNIST"
    assert not (copy / "rawdata").exists() and layouts.digest(copy) == before


class Harm:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("harm",)


def entry(k: int = 1, split: str = "train", **changes: Any) -> Callable[[Path], None]:
    """A client's file with other values."""

    def write(folder: Path) -> None:
        values = {"x": np.zeros((6, 1, 4, 4), np.float32), "y": np.arange(6) % 3} | changes
        with (folder / split / f"{k}.npz").open("wb") as file:
            np.savez(file, data={n: v for n, v in values.items() if v is not None})  # type: ignore[arg-type]

    return write


def raw(content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / "train" / "1.npz").write_bytes(content) and None


def arrays(**given: Any) -> Callable[[Path], None]:
    return lambda folder: np.savez(folder / "train" / "1.npz", **given)


def cut(folder: Path) -> None:
    file = folder / "train" / "1.npz"
    file.write_bytes(file.read_bytes()[:-200])


def config(content: Any) -> Callable[[Path], None]:
    text = content if isinstance(content, str) else json.dumps(content)
    return lambda folder: (folder / "config.json").write_text(text) and None


FILE, CLIENTS = r"train/1.npz cannot be read as PFLlib's: .*it needs a dictionary", "needs training and test rows"
CONFIG = "config.json cannot be read as PFLlib's"
IMAGES = np.zeros((6, 1, 4, 4), np.float32)
WRONG: list[tuple[Callable[[Path], Any], str]] = [  # damage, and a word of the rule
    *((entry(**changes), FILE) for changes in ({"y": None}, {"x": None, "y": None}, {"y": np.arange(5) % 3},
                                               {"x": 3.0}, {"x": [], "y": []})),
    (entry(x=IMAGES.astype(complex)), "x of .*1.npz must be numbers or text, but is of type complex"),
    (entry(x=IMAGES * np.nan), "x of .*train/1.npz must be finite, but 6 rows are not"),
    (entry(x=np.zeros((6, 1, 4, 5), np.float32)), r"must all be alike, .*\(1, 4, 5\) in .*1.npz"),
    (entry(x=IMAGES.astype(np.uint8)), "must all be alike, .* u of .*1.npz"),
    (entry(x=np.array(list("abcdef"))), "x of .*1.npz must be numbers"),
    (entry(x=[[1, 2], [1], [2], [3], [4], [5]]), "x of .*1.npz is not an array: its rows differ in length"),
    (entry(y=np.array([0, 1, 2, 3, 1, 1])), "config.json says 3 classes, .* so labels are 0 to 2, but one is 3"),
    (entry(y=np.array([0, -1, 2, 0, 1, 1])), "y of .* must be classes from 0 on, but has -1"),
    (entry(y=np.array([0.5, 1, 2, 0, 1, 1])), "holds real numbers"),
    (entry(y=np.eye(6)), r"y of .*1.npz must be one class per row, but has shape \(6, 6\)"),
    (entry(y=np.array([0, np.nan, 2, 0, 1, 1])), "y of .* must have a value for every row"),
    (entry(x=np.ma.masked_equal(np.arange(12).reshape(6, 2), 3)), "x of .* has missing values in 1 rows"),
    *((damage, "train/1.npz cannot be read") for damage in (raw(b""), raw(b"no zip at all"), cut)),
    *((arrays(data=value), FILE) for value in (np.zeros(3), np.array([1, "a"], object))),
    (arrays(x=np.zeros((3, 2)), y=np.zeros(3)), "cannot be read as PFLlib's: .*data is not a file in the archive"),
    *((lambda f, name=name: (f / name).unlink(), f"{CLIENTS}, .*{name} is missing")
      for name in ("test/1.npz", "train/3.npz")),
    (lambda f: (f / "train" / "0.npz").rename(f / "train" / "00.npz"), "without gaps, .*train/0.npz is missing"),
    (lambda f: [g.unlink() for g in (f / "test").iterdir()], f"{CLIENTS}, .*test/0.npz is missing"),
    (config({"num_clients": 9}), r"as many as config.json says \(9\), but there are 4"),
    *((config({"num_classes": count}), "of 2 to 100000") for count in (1, 10**9)),
    (config({"num_classes": "ten"}), "num_clients and num_classes must be whole numbers"),
    *((config(content), CONFIG) for content in ("{", [1, 2], "[" * 100_000)),
]  # fmt: skip


@pytest.mark.parametrize("i", range(len(WRONG)))
def test_a_wrong_folder_is_refused_in_a_line_that_names_the_file(i: int, tmp_path: Path) -> None:
    damage, message = WRONG[i]
    folder = pfllib(tmp_path / "MNIST")
    damage(folder)
    refused(message, f"{folder}{TRUSTED}")


def test_nothing_is_read_that_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    entry(x=Harm(), k=0)(folder := pfllib(tmp_path / "MNIST"))
    for name in (folder, f"{folder}/(trust=False)"):
        refused(r"train/0.npz is a pickle, .* give \(trust=True\) after the folder's name$", name)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("(shape=(4, 5), trust=True)", r"shape must have the 16 numbers of a row of .*, but is \(4, 5\)"),
        ("(shape='4x4')", "the option shape of MNIST/: .* but got '4x4'"),
        ("(shape=(0, 4))", "the option shape of MNIST/"),
        ("(shap=(4, 4))", "unknown option of MNIST/ 'shap': did you mean 'shape'"),
        ("(trust=1)", "the option trust of MNIST/: .* but got 1"),
        ("(split=3)", "the option split of MNIST/: .* but got 3"),
        ("(shape=os.sep)", "options after a name must be keyword literals"),
        ("(y='label')", "unknown option of MNIST/ 'y'"),
    ],
)
def test_a_wrong_option_is_refused(options: str, message: str, tmp_path: Path) -> None:
    refused(message, f"{pfllib(tmp_path / 'MNIST')}/{options}")
