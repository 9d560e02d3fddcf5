"""A folder with a folder of pictures per class, as for torchvision's ImageFolder: FOLDER/dog/1.png, FOLDER/cat/2.jpg.

A class folder may have subfolders; links are followed.  FOLDER/train/dog/1.png, FOLDER/test/dog/2.png (and val) define
a split too.  Classes are the sorted names of the folders.  Hidden files and files that are not pictures are skipped and
counted.  Only the pictures that some client holds are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedtune.core.errors import UserError
from fedtune.core.terminal import several
from fedtune.data import picture
from fedtune.data.dataset import PICTURES, Pictures, split_of
from fedtune.data.user_options import Options, Rows
from fedtune.user_code import layouts

ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's


def read(folder: Path, _: Options) -> Rows:
    """The pictures of a folder by class and file name; if they differ in size, their height and width are 0.

    UserError for a folder without pictures, with one class, with an empty class, or with a file that is not a valid
    picture.
    """
    files, splits = layouts.files_in(folder), _split_folders(folder)
    rows = sorted(_rows(folder, splits, files))
    expected = f"{folder.name}/dog/1.png, {folder.name}/cat/2.png, or in folders train, val and test of such folders"
    for part in map(folder.joinpath, splits or [""]):
        held = {name for _, name, _, file in rows if part in file.parents}
        if empty := sorted({f.name for f in _folders(part)} - held):
            raise UserError(f"every class folder needs pictures, but {part / empty[0]} has none; fill or remove it")
        if splits and not _folders(part):
            raise UserError(f"{part} needs class folders with pictures: {expected}")
    names = sorted({name for _, name, *_ in rows})
    if len(names) < 2:
        raise UserError(f"a folder of pictures needs two or more class folders, {expected}, but {folder} has {names}")
    x = pictures_of(folder, [file for *_, file in rows])
    notes = ["some pictures have transparent parts, so opacity is a fourth channel"] * (x.form[0] == len("RGBA"))
    if rest := sorted(set(files) - set(x.files)):
        skipped = f"{several(len(rest), 'file')} skipped: hidden, not a picture, or in no class folder"
        notes.append(f"{skipped}; the first is {rest[0]}")
    y, split = [names.index(name) for _, name, *_ in rows], [split for split, *_ in rows] if splits else None
    return Rows(x, y, split=split, classes=names, kind=PICTURES, notes=tuple(notes))


def _rows(folder: Path, splits: dict[str, int], files: list[Path]) -> Iterator[tuple[int, str, str, Path]]:
    """Split, class, folder and file of each picture in a class folder.  splits: of the split folders, if any."""
    depth = 1 if splits else 0
    for file in files:
        parts = file.relative_to(folder).parts
        hidden = any(part.startswith(".") for part in parts)
        if hidden or file.suffix.lower() not in ENDINGS or len(parts) < depth + 2:
            continue
        if not splits or parts[0] in splits:
            yield splits.get(parts[0], 0), parts[depth], str(file.parent), file


def _split_folders(folder: Path) -> dict[str, int]:
    """The folders train, val (valid, validation, dev) and test, in any case, with the split of each.

    {} if these are classes, because there is no other split beside train.  UserError if it is neither.
    """
    inside = {f.name: {g.name for g in _folders(f)} for f in _folders(folder)}
    splits = {name: s for name in inside if (s := split_of(name)) is not None}
    others = [name for name in inside if name not in splits]
    rule = "the pictures of a split must all lie in folders train and test, and perhaps val, each once"
    if not splits or (others and (0 not in splits.values() or len(splits) == 1)):
        for name, other in ((n, o) for n in splits for o in others):
            if common := sorted(inside[name] & inside[other]):  # as splits would have
                raise UserError(
                    f"{folder} has {common[0]} in {name} and in {other}: {rule}; if these are classes, rename {name}"
                )
        return {}
    strange = [n for n in others if any(f.suffix.lower() in ENDINGS for f in layouts.files_in(folder / n))]
    if strange or sorted(splits.values()) not in ([0, 2], [0, 1, 2]):
        raise UserError(f"{rule}, but {folder} has {', '.join([*splits, *strange])}")
    return splits


def _folders(folder: Path) -> list[Path]:
    """The subfolders that are not hidden."""
    return sorted(f for f in folder.iterdir() if f.is_dir() and not f.name.startswith("."))


def pictures_of(source: Path | str, files: Sequence[Any]) -> Pictures:
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
    size = sizes.pop() if len(sizes) == 1 else (0, 0)
    channels = 4 if alpha else 3
    return Pictures(files=files, form=(channels, *size), read=partial(picture.pixels, channels, forms[0].depth))
