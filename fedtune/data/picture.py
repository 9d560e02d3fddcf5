"""Read a user's picture without loss: first its format from the header, then its pixels.

Everything that Pillow reads as 8-bit colours (black and white, grey, a palette, CMYK, YCbCr) becomes red, green and
blue in 0..1.  If any picture of a folder is not opaque everywhere, opacity is a fourth channel of all.  16-bit grey is
scaled to 0..1 too; 32-bit integers and floats keep their values.  A picture is rotated upright as its EXIF entry says.
Pictures that Pillow would truncate, and those with several frames, are refused.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtune.core.errors import UserError
from fedtune.data.reading import reading

COLOURS = ("1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr", "HSV", "LA", "PA", "RGBA", "La", "RGBa")
DEEP = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")  # grey of 16 and of 32 bits
SCALE = {"8 bits": 255.0, "16 bits": 65535.0, "whole numbers": 1.0, "real numbers": 1.0}
EXACT = 2**24  # float32 represents every whole number up to here
ORIENTATION, BITS_PER_SAMPLE, WHITE, SAMPLES, SAMPLE_FORMAT = 0x0112, 258, 262, 277, 339  # entries of EXIF and TIFF


class Encoded(NamedTuple):
    """A picture in its file's bytes, inside a table.  place: for messages."""

    place: str
    content: bytes

    def __str__(self) -> str:
        """Its place."""
        return self.place


class PictureFormat(NamedTuple):
    """The format of a picture.  depth: a key of SCALE."""

    height: int
    width: int
    depth: str
    alpha: bool  # it may have transparent parts, according to its header


def form(file: Path | Encoded) -> PictureFormat:
    """A picture's format from its header, upright; UserError for a picture that cannot be read without loss."""
    with _opened(file) as image:
        _require_whole(file, image)
        mode = "I;16" if image.format == "PPM" and image.mode == "I" else image.mode  # a PGM, scaled to 0..65535
        depth = {"I": "whole numbers", "F": "real numbers"}.get(mode, "16 bits" if mode in DEEP else "8 bits")
        width, height = _upright(image)
        return PictureFormat(height, width, depth, bool(image.has_transparency_data))


def transparent(file: Path | Encoded) -> bool:
    """Whether a picture is not fully opaque."""
    with _opened(file) as image:
        return bool(image.convert("RGBA").getextrema()[3][0] < 255)


def pixels(channels: int, depth: str, file: Path | Encoded, size: tuple[int, int]) -> np.ndarray:
    """A picture [channels, height, width] as scaled float32.

    channels: 3, or 4 with opacity.  size: (width, height); a picture of another size is resized, bilinear.
    """
    from PIL import Image, ImageOps

    with _opened(file) as image:
        size_declared = _upright(image)
        upright = ImageOps.exif_transpose(image)
    if upright.size != size_declared:  # Pillow garbles a TIFF that is rotated and not compressed
        raise UserError(f"{file} is rotated by an entry that Pillow does not follow; save it upright")
    if depth == "8 bits":
        picture = upright.convert("RGBA" if channels == 4 else "RGB")
    else:
        numbers = np.asarray(upright)
        _require_exact(file, image, numbers)
        picture = Image.fromarray(np.ascontiguousarray(numbers, np.float32))
    x = np.asarray(picture if picture.size == size else picture.resize(size, Image.Resampling.BILINEAR), np.float32)
    x = x.transpose(2, 0, 1) if x.ndim == 3 else np.repeat(x[None], channels, 0)
    return x / np.float32(SCALE[depth])


@contextmanager
def _opened(file: Path | Encoded) -> Iterator[Any]:
    """Open a picture with Pillow; UserError if it cannot be read."""
    from PIL import Image  # imported here, because few runs need it

    with reading(file, "a picture", "repair it, save it as PNG, JPEG, PPM, BMP, TIFF or WebP, or remove it"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's warnings about transparency and size
            with Image.open(io.BytesIO(file.content) if isinstance(file, Encoded) else file) as image:
                yield image


def _upright(image: Any) -> tuple[int, int]:
    """The upright (width, height) of a picture, from its header."""
    width, height = image.size
    tagged = image.format != "PNG" or {"exif", "Raw profile type exif", "xmp"} & set(image.info)
    turned = tagged and image.format != "TIFF" and image.getexif().get(ORIENTATION, 1) >= 5  # a TIFF is rotated already
    return (height, width) if turned else (width, height)


def _require_whole(file: Path | Encoded, image: Any) -> None:
    """UserError for a picture of which Pillow would read only a part, or other numbers than those it holds."""
    frames = getattr(image, "n_frames", 1) if image.format != "MPO" else 1  # a phone's picture, followed by previews
    mode, bits, tags = image.mode, _bits(image), getattr(image, "tag_v2", {})
    depth = 8 if mode in COLOURS else 32 if mode in ("I", "F") else 16
    samples, channels = tags.get(SAMPLES, 1), len(image.getbands()) - (mode == "RGBX")
    refused = (
        (frames > 1, f"{frames} frames, of which one would be used"),
        (mode not in COLOURS + DEEP, f"Pillow's mode {mode}, not grey or coloured"),
        (bits > depth, f"{bits} bits per channel, of which Pillow reads {depth}"),
        (samples > channels, f"{samples} channels, of which Pillow reads {channels}"),
        (depth == 8 and 2 in tags.get(SAMPLE_FORMAT, ()), "signed numbers of 8 bits, which Pillow misreads"),
        (depth == 16 and tags.get(WHITE) == 0, "0 for white, which Pillow does not invert in 16 bits"),
        (mode in DEEP and image.has_transparency_data, f"{depth}-bit grey with a transparent value"),
    )
    if found := [words for wrong, words in refused if wrong]:
        raise UserError(
            f"a picture must be read without loss, but {file} has {found[0]}; save it as a single picture in RGB or "
            f"grey, or give the pixels as an array (.npz)"
        )


def _bits(image: Any) -> int:
    """Bits per channel in the file, if Pillow knows them."""
    tags = getattr(image, "tag_v2", {}).get(BITS_PER_SAMPLE, ())
    code = image.tile[0][3] if image.tile else ""
    raw, *arguments = code if isinstance(code, tuple) else (code,)
    largest = arguments[0] if image.format == "PPM" and arguments else 0
    if image.mode in ("I", "F"):
        largest = 0  # a 16-bit PGM, which Pillow reads as 32 bits
    return max(16 * (";16" in str(raw)), int(largest).bit_length(), *(tags if isinstance(tags, tuple) else (tags,)), 0)


def _require_exact(file: Path | Encoded, image: Any, numbers: np.ndarray) -> None:
    """UserError for pixels that are not finite or that float32 cannot represent."""
    unsigned = getattr(image, "tag_v2", {}).get(SAMPLE_FORMAT, (2,)) in (1, (1,))
    wrapped = image.mode == "I" and unsigned and numbers.min() < 0  # Pillow reads 32 bits as signed
    large = image.mode == "I" and np.abs(numbers.astype(np.int64)).max() > EXACT
    if wrapped or large or not np.isfinite(numbers).all():
        raise UserError(
            f"pixels must be finite, and whole numbers at most {EXACT:,}, which float32 represents, but {file} has "
            "others; give the pixels as an array (.npz)"
        )
