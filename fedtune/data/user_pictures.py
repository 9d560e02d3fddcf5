"""A folder with a folder of pictures per class, as for torchvision's ImageFolder: FOLDER/dog/1.png, FOLDER/cat/2.jpg.

A class folder may have subfolders; links are followed.  FOLDER/train/dog/1.png, FOLDER/test/dog/2.png (and val) define
a split too.  Classes are the sorted names of the folders.  Hidden files and files that are not pictures are skipped and
counted.  Only the pictures that some client holds are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtune.core.errors import UserError
from fedtune.core.terminal import several
from fedtune.data import picture
from fedtune.data.dataset import PICTURES, SPLITS, split_of
from fedtune.data.user_options import Options, Rows
from fedtune.user_code import content_hashes

ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's


class OwnPictures:
    """Pictures that are read on access: float32 [rows, channels, height, width], all of one size (`picture`)."""

    def __init__(
        self, *, files: Sequence[Any], channels: int, depth: str, size: tuple[int, int], side: int = 0
    ) -> None:
        """size: (height, width) of all, (0, 0) if they differ.  side: the side they are resized to; 0: not resized."""
        self.files, self.channels, self.depth, self.size, self.side = files, channels, depth, size, side

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.files)

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, channels, height, width), like an array's."""
        return len(self), self.channels, *((self.side, self.side) if self.side else self.size)

    def sized(self, side: int) -> OwnPictures:
        """The same pictures resized to squares of this side; 0: not resized."""
        return OwnPictures(files=self.files, channels=self.channels, depth=self.depth, size=self.size, side=side)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """Read these rows; UserError for a file that cannot be read."""
        x = np.empty((len(rows), *self.shape[1:]), np.float32)
        height, width = self.shape[2:]
        for place, row in zip(x, rows.tolist(), strict=True):
            place[:] = picture.pixels(self.files[row], self.channels, self.depth, (width, height))
        return x


class _Row(NamedTuple):
    """A picture of a class, in the order of rows."""

    split: int
    name: str  # of the class
    folder: str
    file: Path


def read(folder: Path, _: Options) -> Rows:
    """The pictures of a folder by class and file name; if they differ in size, their height and width are 0.

    UserError for a folder without pictures, with one class, with an empty class, or with a file that is not a valid
    picture.
    """
    files = content_hashes.files_in(folder)
    split_folders = _split_folders(folder)
    rows = sorted(_rows(folder, split_folders, files))
    for part in map(folder.joinpath, split_folders or [""]):
        if split_folders and any(f.suffix.lower() in ENDINGS for f in part.iterdir()) and not _folders(part):
            raise UserError(
                f"{part} has pictures outside any class folder; put each into the folder of its class, as "
                f"{part.name}/{min(row.name for row in rows) if rows else 'dog'}/1.png"
            )
        for empty in sorted({f.name for f in _folders(part)} - {r.name for r in rows if part in r.file.parents}):
            raise UserError(f"every class folder needs pictures, but {part / empty} has none; fill or remove it")
    names = sorted({row.name for row in rows})
    if len(names) < 2:
        inner = f"; or give {folder / names[0]}" if names and len(_folders(folder / names[0])) > 1 else ""
        expected = f"two or more class folders, as in {folder.name}/dog/1.png and {folder.name}/cat/2.png"
        raise UserError(f"a folder of pictures needs {expected}, but {folder} has {len(names)} with pictures{inner}")
    x = pictures_of(folder, [row.file for row in rows])
    notes = ["some pictures have transparent parts, so opacity is a fourth channel"] * (x.channels == len("RGBA"))
    if rest := sorted(set(files) - set(x.files)):
        skipped = f"{several(len(rest), 'file')} skipped: hidden, not a picture, or in no class folder"
        notes.append(f"{skipped}; the first is {rest[0]}")
    y, split = [names.index(row.name) for row in rows], [row.split for row in rows] if split_folders else None
    return Rows(x, y, split=split, classes=names, kind=PICTURES, notes=tuple(notes))


def _rows(folder: Path, split_folders: dict[str, int], files: list[Path]) -> Iterator[_Row]:
    """The pictures in class folders.  number: the split of each split folder, if there are any."""
    depth = 1 if split_folders else 0
    for file in files:
        parts = file.relative_to(folder).parts
        hidden = any(part.startswith(".") for part in parts)
        if hidden or file.suffix.lower() not in ENDINGS or len(parts) < depth + 2:
            continue
        if not split_folders or parts[0] in split_folders:
            yield _Row(split_folders.get(parts[0], 0), parts[depth], str(file.parent), file)


def _split_folders(folder: Path) -> dict[str, int]:
    """The folders train, val (valid, validation, dev) and test, in any case, with the split of each.

    {} if these are classes, because there is no other split beside train.  UserError if it is neither.
    """
    inside = {f.name: {g.name for g in _folders(f)} for f in _folders(folder)}
    splits = {name: s for name in inside if (s := split_of(name)) is not None}
    others = [name for name in inside if name not in splits]
    if (0 not in splits.values() or len(splits) == 1) and others or not splits:
        for name, other in ((n, o) for n in splits for o in others):
            if common := sorted(inside[name] & inside[other]):  # as splits would have
                raise UserError(
                    f"{folder} has {common[0]} in {name} and in {other}, so these look like splits; call them train, "
                    f"val and test, or rename {name} if it is a class"
                )
        return {}
    for s in (0, 2, 1):
        names = [name for name in splits if splits[name] == s]
        if not names and s != 1:
            raise UserError(f"{folder} needs a folder {SPLITS[s]} for its split, but has {', '.join(inside)}")
        if len(names) > 1:
            raise UserError(f"{folder} has {' and '.join(names)}, which both mean {SPLITS[s]}; merge them")
    for name in others:
        if any(f.suffix.lower() in ENDINGS for f in content_hashes.files_in(folder / name)):
            raise UserError(f"{folder} has pictures in {name}, which is not train, val or test; move it elsewhere")
    return splits


def _folders(folder: Path) -> list[Path]:
    """The subfolders that are not hidden."""
    return sorted(f for f in folder.iterdir() if f.is_dir() and not f.name.startswith("."))


def pictures_of(source: Path | str, files: Sequence[Any]) -> OwnPictures:
    """The pictures, with a fourth channel if any is not opaque; UserError if their depths differ.

    files: paths, or encoded pictures (`picture.Encoded`).
    """
    forms = [picture.form(file) for file in files]
    for file, form in zip(files, forms, strict=True):
        if form.depth != forms[0].depth:
            raise UserError(
                f"pictures of {source} must have the same depth, but {files[0]} has {forms[0].depth} and {file} has "
                f"{form.depth}; convert them"
            )
    alpha = any(picture.transparent(file) for file, form in zip(files, forms, strict=True) if form.alpha)
    sizes = {(form.height, form.width) for form in forms}
    return OwnPictures(
        files=files, channels=4 if alpha else 3, depth=forms[0].depth, size=sizes.pop() if len(sizes) == 1 else (0, 0)
    )
