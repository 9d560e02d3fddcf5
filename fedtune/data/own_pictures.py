"""A folder of class folders of pictures, as torchvision's ImageFolder takes it: FOLDER/dog/1.png, FOLDER/cat/2.jpg.

FOLDER/train/dog/1.png, FOLDER/test/dog/2.png (and val) split them too.  Classes are the folders' names in order,
channels red, green and blue.  Pictures stay on disk until somebody holds them.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from fedtune.core.errors import UserError
from fedtune.data.dataset import Dataset
from fedtune.data.own_arrays import SPLITS

ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's


class OwnPictures:
    """Pictures read when they are asked for: float32 in 0..1, [rows, 3, height, width], of one size."""

    def __init__(self, files: list[Path], height: int, width: int) -> None:
        """height, width: that they are brought to, bilinear; 0: they differ, and one is yet to be chosen."""
        self.files, self.height, self.width = files, height, width

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.files)

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, channels, height, width), as of an array."""
        return len(self), 3, self.height, self.width

    def sized(self, side: int) -> OwnPictures:
        """The same, square, of so many pixels; 0: as they are."""
        return OwnPictures(self.files, side, side) if side else self

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """Read these rows; UserError for a file that cannot be read."""
        from PIL import Image  # here, as few need it

        x, size = np.empty((len(rows), *self.shape[1:]), np.float32), (self.width, self.height)
        for place, row in zip(x, rows.tolist(), strict=True):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # Pillow's, on transparency and size
                    with Image.open(self.files[row]) as image:
                        picture = image.convert("RGB")
                resized = picture if picture.size == size else picture.resize(size, Image.Resampling.BILINEAR)
            except Exception as error:  # Pillow's own are of many kinds
                raise unreadable(self.files[row], error) from error
            place[:] = np.asarray(resized).transpose(2, 0, 1)
        x /= 255
        return x


def unreadable(file: Path, error: BaseException) -> UserError:
    """The complaint about a picture."""
    return UserError(f"every picture must be readable, but {file} is not ({type(error).__name__}); repair or remove it")


def read(name: str, folder: Path) -> Dataset:
    """The data set of a folder; pictures that differ in size have height and width 0.

    UserError for a folder without pictures, with one class, or with a file that is no picture.
    """
    halves = sorted(f.name for f in folder.iterdir() if f.is_dir() and not f.name.startswith("."))
    splits = [s for s in SPLITS if s in halves] if "train" in halves and set(halves) <= set(SPLITS) else []
    if splits and "test" not in splits:
        raise UserError(f"{folder} needs a folder test beside train, but has {', '.join(halves)}")
    found = [(file, i) for i, part in enumerate(SPLITS) if part in splits for file in _files(folder / part)]
    found = found or [(file, 0) for file in _files(folder)]
    classes = sorted({file.parent.name for file, _ in found})
    if len(classes) < 2:
        wanted = f"two class folders or more, as {folder.name}/dog/1.png and {folder.name}/cat/2.png"
        raise UserError(f"a folder of pictures needs {wanted}, but {folder} has {len(classes)} with pictures")
    number = {c: i for i, c in enumerate(classes)}
    y = np.array([number[file.parent.name] for file, _ in found], np.int64)
    split = np.array([s for _, s in found], np.int64) if splits else None
    files = [file for file, _ in found]
    height, width = _size(files)
    x = OwnPictures(files, height, width)
    return Dataset(name, x, y, len(classes), len(y), None, split, True, tuple(classes))


def _files(folder: Path) -> list[Path]:
    """The pictures in the class folders of a folder, by class and name."""
    classes = sorted(f for f in folder.iterdir() if f.is_dir() and not f.name.startswith("."))
    return [file for c in classes for file in sorted(c.iterdir()) if file.suffix.lower() in ENDINGS]


def _size(files: list[Path]) -> tuple[int, int]:
    """The (height, width) of all pictures, or (0, 0); only what stands before the pixels is read."""
    from PIL import Image

    sizes = set()
    for file in files:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with Image.open(file) as image:
                    sizes.add(image.size[::-1])
        except Exception as error:
            raise unreadable(file, error) from error
    return sizes.pop() if len(sizes) == 1 else (0, 0)
