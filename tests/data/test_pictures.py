"""Pictures of one's own: every mode that Pillow knows is read without loss or refused, folders as ImageFolder walks."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.user_data import loaded, made, pictures, refused, saved, taken

from fedtune.data import datasets
from fedtune.experiment import user_scenario

GREY = np.random.default_rng(0).integers(0, 256, (6, 9)).astype(np.uint8)
COLOUR = np.random.default_rng(1).integers(0, 256, (6, 9, 3)).astype(np.uint8)
DEEP = np.random.default_rng(2).integers(0, 4096, (6, 9)).astype(np.uint16)
REAL = np.random.default_rng(3).normal(size=(6, 9)).astype(np.float32)
SHAPE = (np.arange(54).reshape(6, 9) % 3 > 0) * np.uint8(255)  # where a picture is opaque


def folder_of(folder: Path, one: Callable[[Path], Any], ending: str = "png", each: int = 6) -> Path:
    """Two classes whose every picture is the same one."""
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(each):
            one(folder / name / f"{i}.{ending}")
    return folder


def image(array: np.ndarray, mode: str = "", **options: Any) -> Callable[[Path], Any]:
    """Writes a picture, converted to the mode."""
    made = Image.fromarray(array)
    return lambda path: (made.convert(mode) if mode else made).save(path, **options)


def first(folder: Path, **fields: Any) -> np.ndarray:
    """The first picture as it is read, [channels, height, width]."""
    scenario = taken(folder, "iid", clients=2, **fields)
    found: np.ndarray = datasets.load(scenario.dataset).x.sized(scenario.image_size)[np.array([0])][0]
    return found


def grey(array: np.ndarray, scale: float) -> np.ndarray:
    return np.repeat(np.asarray(array / scale, np.float32)[None], 3, 0)


def colours(array: np.ndarray) -> np.ndarray:
    return (array / 255).astype(np.float32).transpose(2, 0, 1)


def palette(path: Path) -> None:
    Image.fromarray(COLOUR).quantize(54).save(path)


def tiff(array: np.ndarray, order: str = "<", **others: tuple[int, ...]) -> Callable[[Path], Any]:
    """Writes a TIFF as Pillow would not.  others: entries by number, t262=(0,) for instance."""
    channels = array[0, 0].size
    entries = {256: (9,), 257: (6,), 258: (8 * array.itemsize,) * channels, 259: (1,), 262: (2 if channels > 2 else 1,)}
    entries |= {273: (8,), 277: (channels,), 278: (6,), 279: (array.nbytes,)}
    entries |= {int(name[1:]): values for name, values in others.items()}
    pixels, ifd, long = array.astype(array.dtype.newbyteorder(order)).tobytes(), b"", b""
    for tag, values in sorted(entries.items()):
        ifd += struct.pack(f"{order}HHI", tag, 3, len(values))
        packed = struct.pack(f"{order}{len(values)}H", *values)
        if len(packed) <= 4:
            ifd += packed.ljust(4, b"\0")
        else:
            ifd += struct.pack(f"{order}I", 8 + len(pixels) + 2 + 12 * len(entries) + 4 + len(long))
            long += packed
    head = (b"MM\0*" if order == ">" else b"II*\0") + struct.pack(f"{order}I", 8 + len(pixels))
    whole = head + pixels + struct.pack(f"{order}H", len(entries)) + ifd + b"\0\0\0\0" + long
    return lambda path: path.write_bytes(whole)


READ: dict[str, tuple[Callable[[Path], Any], str, np.ndarray]] = {
    "L": (image(GREY), "png", grey(GREY, 255)),
    "RGB": (image(COLOUR), "png", colours(COLOUR)),
    "1": (image(GREY > 99), "png", grey(GREY > 99, 1)),
    "P": (palette, "png", colours(np.asarray(Image.fromarray(COLOUR).quantize(54).convert("RGB")))),
    "I;16": (image(DEEP), "png", grey(DEEP, 65535)),
    "I;16 of 8 bits and less": (image(DEEP // 32), "png", grey(DEEP // 32, 65535)),
    "I;16 in a TIFF": (image(DEEP), "tif", grey(DEEP, 65535)),
    "I;16B": (tiff(DEEP, ">"), "tif", grey(DEEP, 65535)),
    "16 bits in a PGM": (image(DEEP), "pgm", grey(DEEP, 65535)),
    "10 bits in a PGM": (
        lambda p: p.write_bytes(b"P5 9 6 1023\n" + (DEEP // 4).astype(">u2").tobytes()), "pgm",
        grey(np.rint(DEEP // 4 / 1023 * 65535), 65535),
    ),
    "16 signed bits": (tiff(DEEP.astype(np.int16) - 999, t339=(2,)), "tif", grey(DEEP.astype(np.int16) - 999, 1)),
    "0 for white": (tiff(GREY, t262=(0,)), "tif", grey(255 - GREY, 255)),
    "I": (image(DEEP.astype(np.int32) * 999 - 7), "tif", grey(DEEP.astype(np.int32) * 999 - 7, 1)),
    "F": (image(REAL), "tif", grey(REAL, 1)),
    "F of tiny numbers": (image(REAL * np.float32(1e-30)), "tif", grey(REAL * np.float32(1e-30), 1)),
    "CMYK": (
        image(COLOUR, "CMYK"),
        "tif", colours(COLOUR),
    ),
    "opaque RGBA": (image(np.dstack([COLOUR, np.full_like(GREY, 255)])), "png", colours(COLOUR)),
    "RGBA": (image(np.dstack([COLOUR, SHAPE])), "png", colours(np.dstack([COLOUR, SHAPE]))),
    "RGBA whose shape is in alpha": (
        image(np.dstack([COLOUR * 0, SHAPE])), "png", colours(np.dstack([COLOUR * 0, SHAPE])),
    ),
    "LA": (image(np.dstack([GREY, SHAPE])), "png", colours(np.dstack([GREY, GREY, GREY, SHAPE]))),
    "L with a transparent value": (
        image(GREY, transparency=int(GREY[0, 0])), "png",
        colours(np.dstack([GREY, GREY, GREY, (GREY != GREY[0, 0]) * np.uint8(255)])),
    ),
    "P with a transparent colour": (
        lambda p: Image.fromarray(GREY // 64).convert("P").save(p, transparency=2), "png",
        colours(np.dstack([GREY // 64] * 3 + [(GREY // 64 != 2) * np.uint8(255)])),
    ),
    "webp": (image(np.dstack([COLOUR, SHAPE // 2 + 100]), lossless=True, exact=True), "webp",
             colours(np.dstack([COLOUR, SHAPE // 2 + 100]))),
}  # fmt: skip


@pytest.mark.parametrize("mode", READ)
def test_every_mode_is_read_without_loss(mode: str, tmp_path: Path) -> None:
    write, ending, wanted = READ[mode]
    got = first(folder_of(tmp_path / "pets", write, ending))
    assert got.dtype == np.float32 and got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=0)


def animated(path: Path) -> None:
    frames = [Image.fromarray(np.full((6, 9), v, np.uint8)) for v in (0, 99, 200)]
    frames[0].save(path, save_all=True, append_images=frames[1:])


def deep_colour(path: Path) -> None:
    """A PNG of three channels of 16 bits, which Pillow cannot write."""
    rows = b"".join(b"\0" + row.tobytes() for row in np.repeat(DEEP[..., None], 3, 2).astype(">u2"))
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 9, 6, 16, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + b"".join(struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks)
    )


def ppm(path: Path) -> None:
    path.write_bytes(b"P6 9 6 1023\n" + np.repeat(DEEP[..., None] // 4, 3, 2).astype(">u2").tobytes())


REFUSED: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "no picture": (lambda p: p.write_text("no"), "png", "0.png cannot be read as a picture.* save it as PNG, JPEG"),
    "an animated PNG": (animated, "png", "has 3 frames, .*; save it as a single picture"),
    "a TIFF of pages": (animated, "tif", "has 3 frames"),
    "an animated WebP": (animated, "webp", "has 3 frames"),
    "colours of 16 bits": (deep_colour, "png", "has 16 bits per channel, of which Pillow reads 8"),
    "colours of 10 bits": (ppm, "ppm", "has 10 bits per channel, of which Pillow reads 8"),
    "LAB": (lambda p: Image.new("LAB", (9, 6)).save(p), "tif", "has Pillow's mode LAB"),
    "NaN": (image(np.where(REAL > 0, REAL, np.nan)), "tif", "must be finite"),
    "whole numbers of 32 bits": (image(DEEP.astype(np.int32) * 99999), "tif", "at most 16,777,216, .* as an array"),
    "turned, which Pillow garbles": (lambda p: turned(6)(p), "tif", "is rotated by an entry .*; save it upright"),
    "a fourth channel beside colours": (tiff(np.dstack([COLOUR, GREY]), t338=(0,)), "tif", "4 channels, .* reads 3;"),
    "six channels": (tiff(np.dstack([COLOUR, COLOUR]), t338=(2, 0, 0)), "tif", "6 channels, of which Pillow reads 4"),
    "a second channel beside grey": (tiff(np.dstack([GREY, GREY]), t338=(0,)), "tif", "2 channels, .* reads 1;"),
    "8 signed bits": (tiff(GREY.astype(np.int8), t339=(2,)), "tif", "signed numbers of 8 bits"),
    "0 for white in 16 bits": (tiff(DEEP, t262=(0,)), "tif", "has 0 for white"),
    "16 bits with a transparent value": (image(DEEP, transparency=7), "png", "with a transparent value"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_lose_something_is_refused(what: str, tmp_path: Path) -> None:
    write, ending, message = REFUSED[what]
    refused(message, folder_of(tmp_path / "pets", write, ending))


SMOOTH = np.add.outer(np.arange(6) * 20, np.arange(9) * 10).astype(np.uint8)


def turned(orientation: int, **options: Any) -> Callable[[Path], Any]:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return image(SMOOTH, exif=exif, **options)


@pytest.mark.parametrize("ending", ["jpg", "png", "tif", "webp"])
@pytest.mark.parametrize(("orientation", "wanted"), [(3, SMOOTH[::-1, ::-1]), (6, np.rot90(SMOOTH, -1)), (5, SMOOTH.T)])
def test_pictures_stand_upright_as_their_exif_entry_says(
    ending: str, orientation: int, wanted: np.ndarray, tmp_path: Path
) -> None:
    packed = {"compression": "tiff_lzw"} if ending == "tif" else {}
    folder_of(tmp_path / "pets", turned(orientation, **packed), ending)
    got = first(tmp_path / "pets")
    assert got.shape == (3, *wanted.shape)
    np.testing.assert_allclose(got[0] * 255, wanted, atol=9)  # as JPEG and WebP round


@pytest.mark.parametrize("array", [DEEP, REAL * 1000])
def test_numbers_of_pictures_survive_a_change_of_size(array: np.ndarray, tmp_path: Path) -> None:
    folder_of(tmp_path / "pets", image(array), "tif")
    got, scale = first(tmp_path / "pets", image_size=12), 65535 if array.dtype == np.uint16 else 1
    assert got.shape == (3, 12, 12) and len(np.unique(got[0])) > 100
    np.testing.assert_allclose(got.mean() * scale, array.mean(), atol=0.05 * np.abs(array).max())


def test_the_pixels_of_a_folder_are_those_of_an_array(tmp_path: Path) -> None:
    rng, x = np.random.default_rng(0), []
    for c in ("left", "right"):
        (tmp_path / "scans" / c).mkdir(parents=True)
        for i in range(20):
            x.append(rng.integers(900, 1500, (6, 9)).astype(np.uint16))
            image(x[-1])(tmp_path / "scans" / c / f"{i:02}.png")
    array = saved(tmp_path / "same.npz", x=np.repeat(np.array(x)[:, None], 3, 1), y=np.arange(40) // 20)
    one, other = made(taken(tmp_path / "scans", "iid", clients=2)), made(taken(array, "iid", clients=2))
    np.testing.assert_allclose(one.x, other.x, atol=1e-5)
    assert len(np.unique(one.x)) > 400 and (one.y == other.y).all()


def test_folders_are_walked_as_torchvision_walks_them(tmp_path: Path) -> None:
    from fedtune.core.torchvision_import import datasets as torchvision

    pictures(tmp_path / "pets")
    for deeper in ("pets/dog/2020", "pets/dog/2020/may", "pets/cat/old ones"):
        (tmp_path / deeper).mkdir(parents=True)
        image(COLOUR)(tmp_path / deeper / "x.PNG")
    pictures(tmp_path / "elsewhere", ("bird",))
    (tmp_path / "pets" / "bird").symlink_to(tmp_path / "elsewhere" / "bird")
    (tmp_path / "pets" / "dog" / "link.png").symlink_to(tmp_path / "elsewhere" / "bird" / "00.png")
    theirs = torchvision.ImageFolder(str(tmp_path / "pets"))
    data = loaded(tmp_path / "pets", image_size=8)
    assert [(str(f), c) for f, c in zip(data.x.files, data.y, strict=True)] == theirs.samples
    assert data.class_names == tuple(theirs.classes) and not data.notes


def test_a_change_behind_a_link_is_a_change_of_the_data(tmp_path: Path) -> None:
    from fedtune.user_code import user_files

    pictures(tmp_path / "pets")
    pictures(tmp_path / "elsewhere", ("bird",))
    (tmp_path / "pets" / "bird").symlink_to(tmp_path / "elsewhere" / "bird")
    before = user_files.of_data(tmp_path / "pets").sha256
    image(COLOUR)(tmp_path / "elsewhere" / "bird" / "00.png")
    assert user_files.of_data(tmp_path / "pets").sha256 != before


@pytest.mark.parametrize(
    ("names", "counts"),
    [
        (("train", "valid", "test"), [24, 12, 12]),
        (("Train", "VALIDATION", "Test"), [24, 12, 12]),
        (("training", "dev", "testing"), [24, 12, 12]),
        (("TRAIN", "TEST"), [24, 0, 12]),
    ],
)
def test_folders_of_a_split_are_known_however_they_are_called(
    names: tuple[str, ...], counts: list[int], tmp_path: Path
) -> None:
    for name in names:
        pictures(tmp_path / "pets" / name, each=12 if name.lower().startswith("train") else 6)
    data = loaded(tmp_path / "pets")
    assert np.bincount(data.split, minlength=3).tolist() == counts and data.class_names == ("cat", "dog")


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    data = loaded(pictures(tmp_path / "cars", ("bus", "train")))
    assert data.split is None and data.class_names == ("bus", "train")


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    pictures(tmp_path / "pets")
    for name in ("README.txt", "dog/labels.csv", "dog/.hidden.png", ".cache/1.png"):
        (tmp_path / "pets" / name).parent.mkdir(exist_ok=True)
        image(COLOUR)(tmp_path / "x.png")
        (tmp_path / "x.png").rename(tmp_path / "pets" / name)
    scenario = taken(tmp_path / "pets", "iid", clients=3)
    (note,) = user_scenario.notes(scenario)
    assert (
        note
        == f"4 files skipped: hidden, not a picture, or in no class folder; the first is {tmp_path}/pets/.cache/1.png"
    )
    assert len(datasets.load(scenario.dataset).y) == 24


def splits(*names: str) -> Callable[[Path], Any]:
    return lambda folder: [pictures(folder / name) for name in names]


def pets(change: Callable[[Path], Any]) -> Callable[[Path], Any]:
    return lambda folder: change(pictures(folder))


def loose(folder: Path) -> None:
    """A part whose pictures lie in no class folder."""
    pictures(folder / "train")
    (folder / "test").mkdir()
    image(COLOUR)(folder / "test" / "1.png")


SPLITS = "must all lie in folders train and test, .* but .* has"
OPEN: list[tuple[Callable[[Path], Any], str]] = [
    (pets(lambda f: image(DEEP)(f / "dog" / "x.png")), "same depth, but .*0.png has 8 bits and .*x.png has 16 bits"),
    (pets(lambda f: (f / "bird").mkdir()), "every class folder needs pictures, but .*bird has none; fill or remove it"),
    (pets(lambda f: (f / "dog" / "up").symlink_to(f)), "it is a link to a folder that contains it"),
    (pets(lambda f: (f / "dog" / "x.png").symlink_to(f / "no")), "No such file"),
    (splits("train", "Train", "test"), f"{SPLITS} Train, test, train"),
    (splits("train", "valid"), f"{SPLITS} train, valid"),
    (splits("dev", "test"), f"{SPLITS} dev, test"),
    (splits("train", "test", "extra"), f"{SPLITS} test, train, extra"),
    (loose, "test needs class folders with pictures"),
    (splits("pets"), r"needs two or more class folders, .* has \['pets'\]"),
    *((splits("train", other), f"has cat in train and in {other}: .* rename train") for other in ("eval", "train2")),
]


@pytest.mark.parametrize("i", range(len(OPEN)))
def test_a_folder_that_leaves_open_what_is_meant_is_refused(i: int, tmp_path: Path) -> None:
    make, message = OPEN[i]
    make(tmp_path / "pets")
    refused(message, tmp_path / "pets")
