"""Infer what the rows of a user's array are: tokens, numbers, series or images.  If it is ambiguous, ask for --x-as.

[rows, features]                  floats: numbers       integers: numbers or tokens, ambiguous
[rows, …, …]                      bytes: images         else series [channels, time] or images, ambiguous
[rows, channels, height, width]   images; ambiguous if it looks like [rows, height, width, channels]
"""

from __future__ import annotations

import numpy as np

from fedtune.core.errors import UserError

TOKENS, NUMBERS, SERIES, IMAGES = KINDS = ("tokens", "numbers", "series", "images")
TEXT = "text"  # rows that are not tokens yet
AUTO = "auto"  # inferred from type and axes
OF_AXES = {1: (NUMBERS, TOKENS), 2: (SERIES, IMAGES), 3: (IMAGES,)}  # of a row


def require_rows(source: str, x: np.ndarray, missing: bool = False) -> None:
    """UserError for a value that is not an array of rows, or has NaN or infinite numbers.  missing: NaN is allowed."""
    if x.dtype.kind == "U":
        raise UserError(f"x of {source} must be numbers, but is text; give x.astype(float), or encode it as numbers")
    if x.ndim not in (2, 3, 4) or 0 in x.shape:
        raise UserError(
            f"x of {source} must be numbers of 2 to 4 axes, rows first, none of length 0, but is {x.dtype} of shape "
            f"{x.shape}"
        )
    finite = (~np.isinf(x) if missing else np.isfinite(x)).all(axis=tuple(range(1, x.ndim)))
    if not finite.all():
        raise UserError(
            f"x of {source} must be finite, but {int((~finite).sum())} rows are not, the first is row "
            f"{int(finite.argmin())}; leave them out or fill them in"
        )


def kind_of(x: np.ndarray) -> str:
    """The kind of the rows (numbers, tokens, series or images) by type and axes; "" if that is ambiguous."""
    if x.ndim == 2:
        return "" if x.dtype.kind in "iu" else NUMBERS
    if x.ndim == 3:
        return IMAGES if x.dtype == np.uint8 else ""
    _, a, b, c = x.shape
    channels_last = a > 1 and (c < min(a, b) or a == b != c or a > 4 >= c)  # channels seem to be last
    return "" if channels_last else IMAGES


def resolved(source: str, kind: str, shape: tuple[int, ...], x_as: str) -> str:
    """The kind of the rows; UserError if it is ambiguous and x_as is not given, or if x_as does not fit."""
    if x_as == AUTO:
        if not kind:
            raise UserError(_question(source, shape))
        return kind
    if x_as not in OF_AXES[len(shape)]:
        raise UserError(
            f"x_as must be {' or '.join(OF_AXES[len(shape)])} for rows of shape {'×'.join(map(str, shape))}, as "
            f"{source} has, but got {x_as}"
        )
    return x_as


def _question(source: str, shape: tuple[int, ...]) -> str:
    """The message that asks for --x-as."""
    rows = f"x of {source} has rows of shape {'×'.join(map(str, shape))}"
    if len(shape) == 1:
        return (
            f"x of {source} has rows of {shape[0]} whole numbers: give --x-as numbers if they measure or count, as "
            "pixels do, or --x-as tokens if they stand for words"
        )
    if len(shape) == 2:
        return f"{rows}: give --x-as images if that is height×width, or --x-as series if it is channels×time"
    return (
        f"{rows}, which looks like height×width×channels: give x.transpose(0, 3, 1, 2), or --x-as images if it is "
        "channels×height×width"
    )


def row_shape(kind: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a row as the model sees it: images have a channel axis."""
    return (1, *shape) if kind == IMAGES and len(shape) == 2 else shape


def require_tokens(source: str, x: np.ndarray) -> None:
    """UserError unless every number is a non-negative integer of at most 63 bits."""
    low, high = x.min(), x.max()
    is_integer = x.dtype.kind in "biu" or bool((x == np.floor(x)).all())
    if not is_integer or low < 0 or high >= 2**63:
        bad_value = low if low < 0 else high if is_integer else x[x != np.floor(x)].flat[0]
        raise UserError(f"tokens are whole numbers from 0 on, but x of {source} has {bad_value}; give --x-as numbers")
