"""Statistics of a comparison: means with intervals, paired differences, corrected p values, and their format."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

UNBOUNDED = (-math.inf, math.inf)
EQUAL = 1e-12  # accuracies are shares of rows, so equal differences may differ in the last bits


class Mean(NamedTuple):
    """A mean and half the width of its interval: mean ± half contains the true mean in 95 of 100 samples."""

    mean: float
    half: float  # NaN for fewer than two values


class Difference(NamedTuple):
    """A paired difference: its mean, half the width of its interval, and Student's two-sided p.

    If all differences are equal, there is no spread to estimate: p is NaN, and so is half unless all are zero.
    """

    mean: float
    half: float
    p: float


def mean(values: Any, level: float = 0.95) -> Mean:
    """Mean of independent values with Student's t interval; NaN if any value is (a diverged run has no accuracy)."""
    x = np.asarray(values, float)
    if x.size == 0 or np.isnan(x).any():
        return Mean(math.nan, math.nan)
    if x.size == 1:
        return Mean(float(x[0]), math.nan)
    half = special.stdtrit(x.size - 1, (1 + level) / 2) * x.std(ddof=1) / math.sqrt(x.size)
    return Mean(float(x.mean()), float(half))


def mean_difference(a: Any, b: Any) -> Mean:
    """The mean of a − b over pairs (here: the same seed, hence the same partition), with its interval."""
    d = np.asarray(a, float) - np.asarray(b, float)
    found = mean(d)
    if d.size < 2 or np.isnan(d).any() or np.ptp(d) >= EQUAL:
        return found
    return Mean(found.mean, math.nan if abs(found.mean) > EQUAL else 0.0)


def paired(a: Any, b: Any) -> Difference:
    """The mean of a − b over pairs, with its interval and Student's two-sided p."""
    return Difference(*mean_difference(a, b), p_of_mean(np.asarray(a, float) - np.asarray(b, float)))


def p_of_mean(d: np.ndarray) -> float:
    """Student's two-sided p that the mean of differences is 0; NaN if any is, or if they do not differ."""
    return float(2 * special.stdtr(d.size - 1, -abs(_t(d, np.zeros(1))[0])))


def beyond(d: np.ndarray, margin: float) -> float:
    """p of the claim that the mean of differences is larger than the margin, either way; NaN as in `p_of_mean`.

    It is below 5 % where the 95 % interval lies beyond the margin, and that of `p_of_mean` at margin 0.
    """
    t = _t(d, np.array([margin, -margin]))
    return float(np.minimum(2 * special.stdtr(d.size - 1, np.array([-t[0], t[1]])).min(), 1.0))  # NaN stays NaN


def inside(d: np.ndarray, margin: float) -> float:
    """p of the claim that the mean of differences lies within the margin; NaN as above.

    It is below 5 % where the 95 % interval lies within.  That is twice the p of two one-sided tests (Schuirmann, J.
    Pharmacokinet. Biopharm. 15, 1987): so this claim and `beyond` are together wrong in at most 5 %, wherever the mean.
    """
    t = _t(d, np.array([margin, -margin]))
    return float(np.minimum(2 * special.stdtr(d.size - 1, np.array([t[0], -t[1]])).max(), 1.0))


def _t(d: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Student's t of differences against hypothetical means; NaN where nothing can be tested."""
    if d.size < 2 or np.isnan(d).any() or np.ptp(d) < EQUAL:
        return np.full(means.shape, math.nan)
    return np.asarray((d.mean() - means) / (d.std(ddof=1) / math.sqrt(d.size)))


def holm(p: Sequence[float]) -> list[float]:
    """p values corrected for multiple tests (Holm, Scand. J. Statist. 6, 1979), which bounds the chance of any false
    positive.

    NaN means not tested: it stays NaN and does not count.
    """
    order = [i for i in np.argsort(p, kind="stable") if not math.isnan(p[i])]
    out, worst = [math.nan] * len(p), 0.0
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, (len(order) - rank) * p[i]))
        out[i] = worst
    return out


def expected_best(values: Any) -> np.ndarray:
    """The expected largest of n of these values, for n = 1, 2, … all of them: the mean over all subsets of n.

    Σ_i v_(i) C(i − 1, n − 1) / C(B, n), where v_(i) is the i-th smallest of B values.  If they are independent draws,
    it is an unbiased estimate of the largest of n draws (Tang et al., ACL 2020).  Dodge et al. (EMNLP 2019) draw with
    replacement, which is too low for n > 1.  −∞ stands for no value; where a subset has none, so has the mean (NaN).
    """
    ordered = np.sort(np.asarray(values, float))
    size, lacking = ordered.size, int(np.isneginf(ordered).sum())
    below, weights, found = np.arange(size), np.full(size, 1 / max(size, 1)), np.full(size, math.nan)
    for n in range(1, size + 1):
        if n > lacking:
            found[n - 1] = weights[lacking:] @ ordered[lacking:]
        weights = weights * np.maximum(below - n + 1, 0) * (n + 1) / (n * max(size - n, 1))
    return found


def number(value: float, form: str) -> str:
    """A number in Python's format, with a true minus sign; a dash for NaN."""
    return "–" if math.isnan(value) else format(value, form).replace("-", "−")


def interval(mean: float, half: float, form: str, half_form: str = "", within: tuple[float, float] = UNBOUNDED) -> str:
    """`0.9478 ± 0.0254`, with ` (≤ 1)` if the interval exceeds the possible values; the mean alone if half is NaN.

    half_form: by default the mean's, unsigned.  within: the smallest and largest possible value.
    """
    if math.isnan(half):
        return number(mean, form)
    cut = {f"≥ {within[0]:g}": mean - half < within[0], f"≤ {within[1]:g}": mean + half > within[1]}
    end = f" ({', '.join(name for name, beyond in cut.items() if beyond)})" if any(cut.values()) else ""
    return f"{number(mean, form)} ± {number(half, half_form or form.removeprefix('+'))}{end}"


def arms(means: Any, halves: Any, within: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """How far intervals extend above and below their means, cut at the possible values; 0 for NaN."""
    mean, half = np.asarray(means, float), np.nan_to_num(np.asarray(halves, float))
    return np.minimum(half, (within[1] - mean).clip(0)), np.minimum(half, (mean - within[0]).clip(0))
