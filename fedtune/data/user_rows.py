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
QUESTION = {  # by the number of a row's axes
    1: "numbers if they measure or count, as pixels do, or --x-as tokens if they stand for words",
    2: "images if that is height×width, or --x-as series if it is channels×time",
    3: "images if that is channels×height×width, or x.transpose(0, 3, 1, 2) if it is height×width×channels",
}


def require_rows(source: str, x: np.ndarray, missing: bool = False) -> None:
    """UserError for a value that is not an array of rows, or has NaN or infinite numbers.  missing: NaN is allowed."""
    if x.dtype.kind == "U" or x.ndim not in (2, 3, 4) or 0 in x.shape:
        raise UserError(
            f"x of {source} must be numbers of 2 to 4 axes, rows first, none of length 0, but is {x.dtype} of shape "
            f"{x.shape}; for text give x.astype(float), or encode it"
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
    form, fitting = "×".join(map(str, shape)), OF_AXES[len(shape)]
    if x_as == AUTO and kind:
        return kind
    if x_as == AUTO:
        raise UserError(
            f"x of {source} has rows of shape {form}, which may mean several things: give --x-as "
            + QUESTION[len(shape)]
        )
    if x_as not in fitting:
        raise UserError(f"x_as must be {' or '.join(fitting)} for rows of shape {form}, as {source} has, not {x_as}")
    return x_as


def row_shape(kind: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a row as the model sees it: images have a channel axis."""
    return (1, *shape) if kind == IMAGES and len(shape) == 2 else shape


def require_tokens(source: str, x: np.ndarray) -> None:
    """UserError unless every number is a non-negative integer of at most 63 bits."""
    if x.dtype.kind in "biu":
        bad = x[(x < 0) | (x > np.iinfo(np.int64).max)]
    else:
        bad = x[(x < 0) | (x >= 2.0**63) | (x != np.floor(x))]
    if bad.size:
        raise UserError(f"tokens are whole numbers from 0 on, but x of {source} has {bad.flat[0]}; give --x-as numbers")
