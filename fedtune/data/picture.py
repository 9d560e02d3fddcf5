"""A picture of a user's, read without loss: its form, which stands before the pixels, and the pixels.

Whatever Pillow reads as colours of 8 bits is red, green and blue in 0..1: black and white, grey, a palette, CMYK,
YCbCr.  Where a picture of a folder is not opaque everywhere, opacity is a fourth channel of all.  Grey of 16 bits is in
0..1 too; whole and real numbers of 32 bits are as they are.  A picture stands upright, as its EXIF entry says.  What
Pillow would cut, or what holds several frames, is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtune.core import bounded
from fedtune.core.errors import UserError
from fedtune.user_code import content_hashes

COLOURS = ("1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr", "HSV", "LA", "PA", "RGBA", "La", "RGBa")
DEPTHS = {"I;16": 16, "I;16L": 16, "I;16B": 16, "I;16N": 16, "I": 32, "F": 32}  # bits of the other modes
SCALE = {"8 bits": 255.0, "16 bits": 65535.0, "whole numbers": 1.0, "real numbers": 1.0}
PIXELS = 2**26  # of a picture: a telephone's has 48 million
EXACT = 2**24  # up to here float32 holds every whole number
ORIENTATION, BITS_PER_SAMPLE, WHITE_IS, SAMPLES, SAMPLE_FORMAT = 0x0112, 258, 262, 277, 339  # entries of EXIF and TIFF


class Form(NamedTuple):
    """What a picture is.  depth: a key of SCALE."""

    height: int
    width: int
    depth: str
    alpha: bool  # it may be transparent somewhere: by its header, not by its pixels


def form(file: Path) -> Form:
    """The form of a picture, upright, by what stands before its pixels; UserError for one that would lose something."""
    with _opened(file) as image:
        _require_whole(file, image)
        mode = "I;16" if image.format == "PPM" and image.mode == "I" else image.mode  # a PGM, brought to 0..65535
        depth = {"I": "whole numbers", "F": "real numbers"}.get(mode, "16 bits" if mode in DEPTHS else "")
        width, height = _upright(image)
        return Form(height, width, depth or "8 bits", bool(image.has_transparency_data))


def transparent(file: Path) -> bool:
    """Whether a picture is not opaque somewhere."""
    with _opened(file) as image:
        return bool(image.convert("RGBA").getextrema()[3][0] < 255)


def pixels(file: Path, channels: int, depth: str, size: tuple[int, int]) -> np.ndarray:
    """A picture [channels, height, width] as float32, brought to its scale.

    channels: 3, or 4 with opacity.  size: (width, height), to which another one is brought, bilinear.
    """
    from PIL import Image, ImageOps

    with _opened(file) as image:
        said = _upright(image)
        upright = ImageOps.exif_transpose(image)
    if upright.size != said:  # Pillow garbles a TIFF that is turned and not compressed
        raise UserError(f"{file} is turned by an entry that Pillow does not follow; save it upright")
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


def unreadable(file: Path, error: BaseException) -> UserError:
    """The complaint about a picture."""
    if type(error).__name__ == "UnidentifiedImageError":
        return UserError(
            f"{file} is no picture that Pillow knows, whatever its name says; save it as PNG, JPEG, PPM, BMP, TIFF or "
            "WebP, or remove it"
        )
    return UserError(f"every picture must be readable, but {file} is not ({type(error).__name__}); repair or remove it")


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """A picture of Pillow's while it is looked at; UserError for what it cannot read."""
    from PIL import Image  # here, as few need it

    try:
        bounded.require(file, content_hashes.LARGEST)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's, on transparency and size
            with Image.open(file) as image:
                if image.width * image.height > PIXELS:
                    raise Image.DecompressionBombError
                yield image
    except UserError:
        raise
    except Image.DecompressionBombError as error:
        raise UserError(f"a picture has at most {PIXELS:,} pixels, but {file} has more; make it smaller") from error
    except bounded.Unfit as error:
        raise UserError(f"{file} cannot be read: {error.strerror}; remove it") from error
    except Exception as error:  # Pillow's own are of many kinds
        raise unreadable(file, error) from error


def _upright(image: Any) -> tuple[int, int]:
    """The (width, height) of a picture as it stands upright, by what comes before its pixels."""
    width, height = image.size
    told = image.format != "PNG" or {"exif", "Raw profile type exif", "xmp"} & set(image.info)
    turned = told and image.format != "TIFF" and image.getexif().get(ORIENTATION, 1) >= 5  # a TIFF's has turned already
    return (height, width) if turned else (width, height)


def _require_whole(file: Path, image: Any) -> None:
    """UserError for a picture of which Pillow would give a part: a frame, or the upper bits."""
    frames = getattr(image, "n_frames", 1) if image.format != "MPO" else 1  # a telephone's: previews come after it
    if frames > 1:
        raise UserError(f"a picture has one frame, but {file} has {frames}; save each as a picture of its own")
    if image.mode not in COLOURS and image.mode not in DEPTHS:
        raise UserError(f"pictures are grey or coloured, but {file} is of Pillow's mode {image.mode}; save it as RGB")
    held, bits = DEPTHS.get(image.mode, 8), _bits(image)
    if bits > held:
        raise UserError(
            f"{file} has {bits} bits a channel, of which Pillow reads {held}; save it with {held}, or give the pixels "
            "as an array (.npz)"
        )
    tags = getattr(image, "tag_v2", {})
    if (samples := tags.get(SAMPLES, 1)) > (channels := len(image.getbands()) - (image.mode == "RGBX")):
        raise UserError(
            f"{file} has {samples} channels, of which Pillow reads {channels}; give the pixels as an array (.npz)"
        )
    if held == 8 and 2 in tags.get(SAMPLE_FORMAT, ()):
        raise UserError(f"{file} has signed numbers of 8 bits, which Pillow reads as others; save it with 16")
    if held == 16 and tags.get(WHITE_IS) == 0:
        raise UserError(f"{file} has 0 for white, which Pillow does not turn in 16 bits; save it with 0 for black")
    if image.mode in DEPTHS and image.has_transparency_data:
        raise UserError(f"{file} is grey of {held} bits with a transparent value, which is not read; save it without")


def _bits(image: Any) -> int:
    """The bits of a channel in the file, where Pillow tells."""
    tags = getattr(image, "tag_v2", {}).get(BITS_PER_SAMPLE, ())
    code = image.tile[0][3] if image.tile else ""
    raw, *more = code if isinstance(code, tuple) else (code,)
    largest = more[0] if image.format == "PPM" and more else 0
    if image.mode in ("I", "F"):
        largest = 0  # PGM of 16 bits, which comes as 32
    return max(16 * (";16" in str(raw)), int(largest).bit_length(), *(tags if isinstance(tags, tuple) else (tags,)), 0)


def _require_exact(file: Path, image: Any, numbers: np.ndarray) -> None:
    """UserError for numbers that are none, or that float32 does not hold."""
    unsigned = getattr(image, "tag_v2", {}).get(SAMPLE_FORMAT, (2,))
    if not np.isfinite(numbers).all():
        raise UserError(f"pixels must be finite, but {file} has NaN or infinite ones; fill them in")
    wrapped = image.mode == "I" and unsigned in (1, (1,)) and numbers.min() < 0  # Pillow reads 32 bits as signed
    if image.mode == "I" and (wrapped or np.abs(numbers.astype(np.int64)).max() > EXACT):
        raise UserError(
            f"{file} has whole numbers beyond {EXACT:,}, which pictures do not keep; give the pixels as an array (.npz)"
        )
