"""What a comparison says of means: intervals, paired differences, corrections for many, and how they are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

UNBOUNDED = (-math.inf, math.inf)
EQUAL = 1e-12  # accuracies are shares of rows, so that differences may be equal but for the last bits


class Mean(NamedTuple):
    """A mean and half the width of its interval: mean ± half holds the true one in 95 of 100 samples."""

    mean: float
    half: float  # not a number for fewer than two values


class Difference(NamedTuple):
    """A paired difference: its mean, half its interval's width, and Student's two-sided p.

    Where all are equal there is no spread to estimate: p is not a number, nor is half unless all are zero.
    """

    mean: float
    half: float
    p: float


def mean(values: Any, level: float = 0.95) -> Mean:
    """Of independent values, by Student's t; not a number if one is not: a run that diverged has no accuracy."""
    x = np.asarray(values, float)
    if x.size == 0 or np.isnan(x).any():
        return Mean(math.nan, math.nan)
    if x.size == 1:
        return Mean(float(x[0]), math.nan)
    half = special.stdtrit(x.size - 1, (1 + level) / 2) * x.std(ddof=1) / math.sqrt(x.size)
    return Mean(float(x.mean()), float(half))


def mean_difference(a: Any, b: Any) -> Mean:
    """The mean of a − b of values that belong together (here: of the same seed, hence partition), with its interval."""
    d = np.asarray(a, float) - np.asarray(b, float)
    found = mean(d)
    if d.size < 2 or np.isnan(d).any() or np.ptp(d) >= EQUAL:
        return found
    return Mean(found.mean, math.nan if abs(found.mean) > EQUAL else 0.0)


def paired(a: Any, b: Any) -> Difference:
    """The mean of a − b of values that belong together, with its interval and Student's two-sided p."""
    from scipy import stats  # here, as its import takes 0.7 s, which no search is to begin with

    d = np.asarray(a, float) - np.asarray(b, float)
    tested = d.size >= 2 and not np.isnan(d).any() and np.ptp(d) >= EQUAL
    return Difference(*mean_difference(a, b), float(stats.ttest_1samp(d, 0.0).pvalue) if tested else math.nan)


def holm(p: Sequence[float]) -> list[float]:
    """p values corrected for their number (Holm, Scand. J. Statist. 6, 1979): any error has at most the level's chance.

    What is not a number was not tested: it stays, and does not count.
    """
    order = [i for i in np.argsort(p, kind="stable") if not math.isnan(p[i])]
    out, worst = [math.nan] * len(p), 0.0
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, (len(order) - rank) * p[i]))
        out[i] = worst
    return out


def number(value: float, form: str) -> str:
    """A figure in Python's format, with a true minus sign; a dash for what is none."""
    return "–" if math.isnan(value) else format(value, form).replace("-", "−")


def interval(mean: float, half: float, form: str, half_form: str = "", within: tuple[float, float] = UNBOUNDED) -> str:
    """`0.9478 ± 0.0254`, or `0.9900 ± 0.0254 (≤ 1)` where it reaches beyond what there is; the mean alone without half.

    half_form: default that of the mean, unsigned.  within: the least and the largest value there is.
    """
    if math.isnan(half):
        return number(mean, form)
    cut = {f"≥ {within[0]:g}": mean - half < within[0], f"≤ {within[1]:g}": mean + half > within[1]}
    end = f" ({', '.join(name for name, beyond in cut.items() if beyond)})" if any(cut.values()) else ""
    return f"{number(mean, form)} ± {number(half, half_form or form.removeprefix('+'))}{end}"


def arms(means: Any, halves: Any, within: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """How far intervals reach above and below their means, cut at what there is; 0 for what is not a number."""
    mean, half = np.asarray(means, float), np.nan_to_num(np.asarray(halves, float))
    return np.minimum(half, (within[1] - mean).clip(0)), np.minimum(half, (mean - within[0]).clip(0))
