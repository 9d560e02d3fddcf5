"""Every data set on a tiny folder in its own format, and the errors for files that are not usable."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest

from fedtune import datasets
from fedtune._torchvision import datasets as torchvision
from fedtune.datasets import SOURCES, describe, load, names
from fedtune.errors import UserError

MNIST_LIKE = ("mnist", "fashion-mnist", "emnist-letters", "emnist-byclass")
TRAIN, TEST = 6, 4


def idx(array: np.ndarray) -> bytes:
    header = np.array([0x0800 + array.ndim, *array.shape], dtype=">u4")
    return header.tobytes() + array.astype(np.uint8).tobytes()


def write(name: str, root: Path) -> tuple[np.ndarray, np.ndarray]:
    """Write a tiny data set the way its authors did; returns pixels as stored [rows, ...] and labels 0..C-1."""
    source, rng = SOURCES[name], np.random.default_rng(0)
    folder = root / source.folder
    folder.mkdir(parents=True)
    channels, height, width = source.shape
    x = rng.integers(0, 256, (TRAIN + TEST, channels, height, width))
    y = rng.integers(0, source.classes, TRAIN + TEST)
    y[0], y[-1] = 0, source.classes - 1
    parts = {"train": slice(TRAIN), "test": slice(TRAIN, None)}
    if name.startswith("cifar"):
        ten = name == "cifar10"
        for part, rows in parts.items():
            data = x[rows].reshape(-1, 3072).astype(np.uint8)
            batch = {"data": data, "labels" if ten else "fine_labels": y[rows].tolist()}
            file = {"train": "data_batch_1", "test": "test_batch"}[part] if ten else part
            (folder / file).write_bytes(pickle.dumps(batch))
        label_names: dict[str, list[str]] = {"fine_label_names": [], "label_names": []}
        (folder / ("batches.meta" if ten else "meta")).write_bytes(pickle.dumps(label_names))
        return x, y
    for part, rows in parts.items():
        split = name.partition("-")[2]
        prefix = f"emnist-{split}-{part}" if name.startswith("emnist") else {"test": "t10k"}.get(part, part)
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx(x[rows, 0]))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(y[rows] + source.first))
    return x, y


@pytest.fixture(autouse=True)
def _small_cifar(monkeypatch: pytest.MonkeyPatch) -> None:
    """One training batch, and no checksums: they are those of the real files."""
    for cls in (torchvision.CIFAR10, torchvision.CIFAR100):
        monkeypatch.setattr(cls, "train_list", [[file, None] for file, _ in cls.train_list[:1]])
        monkeypatch.setattr(cls, "test_list", [[file, None] for file, _ in cls.test_list])
        monkeypatch.setattr(cls, "meta", cls.meta | {"md5": None})


@pytest.mark.parametrize("name", [n for n in names() if n != "digits"])
def test_pixels_labels_and_order(name: str, tmp_path: Path) -> None:
    stored, y = write(name, tmp_path)
    got, source = load(name, tmp_path), SOURCES[name]
    assert got.name == name and got.classes == source.classes and got.train_rows == TRAIN
    assert got.x.dtype == np.float32 and got.x.flags.c_contiguous and got.x.shape == (TRAIN + TEST, *source.shape)
    assert got.y.dtype == np.int64
    np.testing.assert_array_equal(got.y, y)
    upright = stored.transpose(0, 1, 3, 2) if name.startswith("emnist") else stored
    for channel, (mean, std) in enumerate(zip(source.mean, source.std, strict=True)):
        np.testing.assert_allclose(got.x[:, channel], (upright[:, channel] / 255 - mean) / std, rtol=0, atol=1e-5)


def test_digits() -> None:
    got = load("digits")
    assert names()[0] == "digits"
    assert got.x.shape == (1797, 1, 8, 8) and got.y.shape == (1797,) and got.train_rows == 1797
    assert got.x.dtype == np.float32 and got.y.dtype == np.int64
    assert set(got.y) == set(range(10))
    pixels = got.x * 0.3760 + 0.3053
    assert pixels.min() == pytest.approx(0, abs=1e-6) and pixels.max() == pytest.approx(1, abs=1e-6)
    assert got.x.mean() == pytest.approx(0, abs=1e-3) and got.x.std() == pytest.approx(1, abs=1e-3)


def test_real_fashion_mnist_is_centred() -> None:
    root = Path(os.environ.get("FEDTUNE_DATA_DIR", ""))
    if not os.environ.get("FEDTUNE_DATA_DIR") or not (root / SOURCES["fashion-mnist"].folder).is_dir():
        pytest.skip("FEDTUNE_DATA_DIR does not name a folder with Fashion-MNIST")
    got = load("fashion-mnist")
    assert got.x.shape == (70_000, 1, 28, 28) and got.train_rows == 60_000
    np.testing.assert_array_equal(np.bincount(got.y[:60_000]), 6000)
    np.testing.assert_array_equal(np.bincount(got.y[60_000:]), 1000)
    assert got.x[:60_000].mean() == pytest.approx(0, abs=1e-3) and got.x[:60_000].std() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("name", names())
def test_describe_needs_no_files(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "_torchvision", None)
    assert describe(name) == (*SOURCES[name].shape, SOURCES[name].classes)


@pytest.mark.parametrize("name", [n for n in names() if n != "digits"])
def test_absent_files_name_the_folder_and_both_ways_out(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load(name, tmp_path)
    message = str(caught.value)
    for part in (name, str(tmp_path / SOURCES[name].folder), "--download", "--data-dir", "FEDTUNE_DATA_DIR"):
        assert part in message
    assert "\n" not in message and "download=True" not in message
    assert not list(tmp_path.iterdir())  # nothing is fetched or made unasked


@pytest.mark.parametrize("keep", [0, 3, 100])
@pytest.mark.parametrize("name", [n for n in names() if n != "digits"])
def test_cut_off_file_is_a_user_error(name: str, keep: int, tmp_path: Path) -> None:
    write(name, tmp_path)
    files = [f for f in (tmp_path / SOURCES[name].folder).iterdir() if "images" in f.name or "test" in f.name]
    files[0].write_bytes(files[0].read_bytes()[:keep])
    with pytest.raises(UserError, match=r"absent or damaged in .* \([^()]+.*\): .*delete damaged files"):
        load(name, tmp_path)


def test_labels_that_do_not_fit_are_a_user_error(tmp_path: Path) -> None:
    write("mnist", tmp_path)
    labels = tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte"
    labels.write_bytes(idx(np.array([0, 1, 2, 3, 4, 10])))
    with pytest.raises(UserError, match=r"labels are outside 0\.\.9"):
        load("mnist", tmp_path)
    labels.write_bytes(idx(np.array([0, 1])))
    with pytest.raises(UserError, match="do not fit"):
        load("mnist", tmp_path)


def test_failing_download_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise URLError("no\nnetwork")

    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", fail)
    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", fail)
    for name in (*MNIST_LIKE, "cifar10", "cifar100"):
        with pytest.raises(UserError, match="could not be fetched .*no network.*--data-dir") as caught:
            load(name, tmp_path, download=True)
        assert "\n" not in str(caught.value)


def test_data_folder_from_argument_then_environment_then_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDTUNE_DATA_DIR", "from_environment")
    with pytest.raises(UserError, match="from_argument"):
        load("mnist", "from_argument")
    with pytest.raises(UserError, match="from_environment"):
        load("mnist")
    monkeypatch.delenv("FEDTUNE_DATA_DIR")
    write("mnist", tmp_path / "data")
    assert load("mnist").train_rows == TRAIN


@pytest.mark.parametrize("call", [load, describe])
def test_unknown_name(call: object) -> None:
    with pytest.raises(UserError, match="unknown data set 'mnits': did you mean 'mnist'"):
        call("mnits")  # type: ignore[operator]
