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

COLOURS = ("1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr", "HSV", "LA", "PA", "RGBA", "La", "RGBa")
DEPTHS = {"I;16": 16, "I;16L": 16, "I;16B": 16, "I;16N": 16, "I": 32, "F": 32}  # bits of the other modes
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
        depth = {"I": "whole numbers", "F": "real numbers"}.get(mode, "16 bits" if mode in DEPTHS else "")
        width, height = _upright(image)
        return PictureFormat(height, width, depth or "8 bits", bool(image.has_transparency_data))


def transparent(file: Path | Encoded) -> bool:
    """Whether a picture is not fully opaque."""
    with _opened(file) as image:
        return bool(image.convert("RGBA").getextrema()[3][0] < 255)


def pixels(file: Path | Encoded, channels: int, depth: str, size: tuple[int, int]) -> np.ndarray:
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
        if picture.size != size:
            picture = picture.resize(size, Image.Resampling.BILINEAR)
        x = np.asarray(picture).transpose(2, 0, 1).astype(np.float32)
    else:
        numbers = np.asarray(upright)
        _require_exact(file, image, numbers)
        grey = Image.fromarray(np.ascontiguousarray(numbers, np.float32))
        x = np.asarray(grey if grey.size == size else grey.resize(size, Image.Resampling.BILINEAR))
        x = np.repeat(x[None], channels, 0)
    x /= np.float32(SCALE[depth])
    return x


@contextmanager
def _opened(file: Path | Encoded) -> Iterator[Any]:
    """Open a picture with Pillow; UserError if it cannot be read."""
    from PIL import Image, UnidentifiedImageError  # imported here, because few runs need it

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's warnings about transparency and size
            with Image.open(io.BytesIO(file.content) if isinstance(file, Encoded) else file) as image:
                yield image
    except UserError:
        raise
    except UnidentifiedImageError as error:
        raise UserError(
            f"{file} is not a picture that Pillow can read, despite its name; save it as PNG, JPEG, PPM, BMP, TIFF or "
            "WebP, or remove it"
        ) from error
    except Exception as error:  # Pillow raises many types
        reason = type(error).__name__
        raise UserError(f"every picture must be readable, but {file} is not ({reason}); repair or remove it") from error


def _upright(image: Any) -> tuple[int, int]:
    """The upright (width, height) of a picture, from its header."""
    width, height = image.size
    tagged = image.format != "PNG" or {"exif", "Raw profile type exif", "xmp"} & set(image.info)
    turned = tagged and image.format != "TIFF" and image.getexif().get(ORIENTATION, 1) >= 5  # a TIFF is rotated already
    return (height, width) if turned else (width, height)


def _require_whole(file: Path | Encoded, image: Any) -> None:
    """UserError for a picture of which Pillow would read only a part: one frame, or the upper bits."""
    frames = getattr(image, "n_frames", 1) if image.format != "MPO" else 1  # a phone's picture, followed by previews
    mode, depth, bits, tags = image.mode, DEPTHS.get(image.mode, 8), _bits(image), getattr(image, "tag_v2", {})
    samples, channels = tags.get(SAMPLES, 1), len(image.getbands()) - (mode == "RGBX")
    array = "give the pixels as an array (.npz)"
    refused = (
        (frames > 1, f"has {frames} frames, of which only one would be used; save each frame as its own picture"),
        (mode not in COLOURS and mode not in DEPTHS, f"has Pillow's mode {mode}, not grey or coloured; save it as RGB"),
        (bits > depth, f"has {bits} bits per channel, of which Pillow reads {depth}; save it with {depth}, or {array}"),
        (samples > channels, f"has {samples} channels, of which Pillow reads {channels}; {array}"),
        (depth == 8 and 2 in tags.get(SAMPLE_FORMAT, ()), "has signed numbers of 8 bits, misread by Pillow; use 16"),
        (depth == 16 and tags.get(WHITE) == 0, "has 0 for white, never inverted in 16 bits; save it with 0 for black"),
        (
            mode in DEPTHS and image.has_transparency_data,
            f"is {depth}-bit grey with a transparent value; save it without",
        ),
    )
    for wrong, words in refused:
        if wrong:
            raise UserError(f"{file} {words}")


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
    unsigned = getattr(image, "tag_v2", {}).get(SAMPLE_FORMAT, (2,))
    if not np.isfinite(numbers).all():
        raise UserError(f"pixels must be finite, but {file} has NaN or infinite ones; fill them in")
    wrapped = image.mode == "I" and unsigned in (1, (1,)) and numbers.min() < 0  # Pillow reads 32 bits as signed
    if image.mode == "I" and (wrapped or np.abs(numbers.astype(np.int64)).max() > EXACT):
        raise UserError(
            f"{file} has whole numbers beyond {EXACT:,}, which float32 would round; give the pixels as an array (.npz)"
        )
