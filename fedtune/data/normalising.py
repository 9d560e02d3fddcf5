"""Convert a user's rows for the model: to tokens, or to features standardised by the clients' training rows.

The conversion to float32 loses no information without an error: features are standardised in float64 first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtune.core.errors import UserError
from fedtune.data import user_rows
from fedtune.data.federation import Federation

BLOCK = 2**22  # numbers that are standardised at once
SAMPLE = 2_000  # values of a feature that are compared before and after
LOST = 0.1  # the largest share of a feature's distinct values that may be lost


def prepared(f: Federation, source: str, kind: str, normalise: bool) -> Federation:
    """The federation with rows as a model takes them: int64 tokens, or float32.

    source: the data's name in messages.  kind: what the rows are.  normalise: to mean 0 and standard deviation 1;
    otherwise values stay, except that bytes of images are divided by 255.  UserError for values that float32 cannot
    represent.
    """
    if kind == user_rows.TOKENS:
        user_rows.require_tokens(source, f.x)
        return f._replace(x=f.x.astype(np.int64))
    f = _filled(f, source) if f.x.dtype.kind == "f" and np.isnan(f.x).any() else f
    f = f._replace(x=f.x.reshape(len(f.x), *user_rows.row_shape(kind, f.shape)))
    return _standardised(f, source) if normalise else _as_given(f, source, kind)


def _filled(f: Federation, source: str) -> Federation:
    """The mean of all clients' training rows in place of each missing value; only a table's may have any."""
    training = f.x[_trained(f)]
    has_value = ~np.isnan(training)
    if (empty := np.flatnonzero(~has_value.any(axis=0))).size:
        raise UserError(
            f"missing='mean' needs a value of each feature in training rows, but feature {empty[0]} of x of {source} "
            "has none; leave it out"
        )
    mean = np.where(has_value, training, 0).sum(axis=0, dtype=np.float64) / has_value.sum(axis=0)
    return f._replace(x=np.where(np.isnan(f.x), mean, f.x))


def _standardised(f: Federation, source: str) -> Federation:
    """Features with mean 0 and standard deviation 1 over all clients' training rows.

    Per feature of a vector; per channel of images [channels, height, width] and series [channels, time].  Validation
    and test rows are scaled in the same way, but do not affect the scale.  A feature that never varies becomes 0.  The
    clients are assumed to agree on a scale, which would cost them one exchange.
    """
    train = f.x[_trained(f)]
    axes = (0, *range(2, train.ndim))
    first = train[(slice(1), slice(None), *[slice(1)] * (train.ndim - 2))]
    away = _difference(train, first, f.x)
    largest = np.abs(away).max(axis=axes, keepdims=True)  # so that squares neither underflow nor overflow
    largest[largest == 0] = 1
    away /= largest
    mean, spread = away.mean(axis=axes, keepdims=True), away.std(axis=axes, keepdims=True)
    spread[spread == 0] = 1
    x = np.empty(f.x.shape, np.float32)
    rows = max(1, BLOCK // max(1, x[0].size))
    with np.errstate(over="ignore"):
        for start in range(0, len(x), rows):
            x[start : start + rows] = (_difference(f.x[start : start + rows], first, f.x) / largest - mean) / spread
    _require_kept(f, x, source, "once they have mean 0 and standard deviation 1")
    return f._replace(x=x)


def _difference(x: np.ndarray, first_values: np.ndarray, all_values: np.ndarray) -> np.ndarray:
    """Differences from the first values in float64: exact before rounding, also for 64-bit integers."""
    if x.dtype.kind in "iu" and int(all_values.max()) - int(all_values.min()) < 2**63:
        exact: Any = (x.astype(np.uint64) - first_values.astype(np.uint64)).view(np.int64)
        return exact.astype(np.float64)
    with np.errstate(over="ignore"):
        return np.subtract(x, first_values, dtype=np.float64)


def _as_given(f: Federation, source: str, kind: str) -> Federation:
    """The values unchanged, in float32."""
    with np.errstate(over="ignore"):
        x = f.x.astype(np.float32)
    if f.x.dtype.kind in "iu":
        above = 2.0 ** (8 * f.x.dtype.itemsize - (f.x.dtype.kind == "i"))  # past the type's range, to which one rounds
        if x.max() >= above or (x.astype(f.x.dtype) != f.x).any():  # as integers, because float64 has only 53 bits
            raise UserError(
                f"x of {source} has whole numbers that float32 cannot represent, from {f.x.min()} to {f.x.max()}; "
                "leave out --normalise none, or scale them"
            )
    if kind == user_rows.IMAGES and f.x.dtype == np.uint8:
        x /= 255
    _require_kept(f, x, source, "in float32")
    return f._replace(x=x)


def _require_kept(f: Federation, x: np.ndarray, source: str, form: str) -> None:
    """UserError for values that float32 cannot represent, and for a feature whose distinct values merge."""
    finite = np.isfinite(x).all(axis=tuple(range(1, x.ndim)))
    if not finite.all():
        raise UserError(
            f"x of {source} must be finite in float32, but {int((~finite).sum())} rows are not {form}; leave outliers "
            "out or clip them"
        )
    rows = _sample(_trained(f))
    had, has = (_distinct_values(np.moveaxis(values[rows], 1, -1)) for values in (f.x, x))
    merged = np.flatnonzero(had - has > LOST * had)
    if len(merged):
        i = int(merged[0])
        low, high = f.x[:, i].min(), f.x[:, i].max()
        raise UserError(
            f"{'channel' if x.ndim > 2 else 'feature'} {i} of x of {source} keeps {has[i]} of {had[i]} distinct values "
            f"{form}, because it ranges from {low:.4g} to {high:.4g}; clip it, or take its logarithm"
        )


def _distinct_values(values: np.ndarray) -> np.ndarray:
    """The number of distinct values of each feature (the last axis) in a sample."""
    ordered = np.sort(_sample(values.reshape(-1, values.shape[-1])), axis=0)
    count: np.ndarray = (ordered[1:] != ordered[:-1]).sum(axis=0) + 1
    return count


def _sample(rows: np.ndarray) -> np.ndarray:
    """At most SAMPLE rows, the same ones for arrays of the same length."""
    return rows if len(rows) <= SAMPLE else rows[np.random.default_rng(0).choice(len(rows), SAMPLE, replace=False)]


def _trained(f: Federation) -> np.ndarray:
    """The rows that some client trains on, each once."""
    table = f.train
    return np.unique(table.rows[np.arange(table.rows.shape[1]) < table.counts[:, None]])
