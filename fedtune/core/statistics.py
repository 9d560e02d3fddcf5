"""Statistics of a comparison: means with intervals, paired differences, corrected p values, and their format."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from fedtune.core.metrics import METRICS, is_share, limits

UNBOUNDED = (-math.inf, math.inf)
LEAST_EXCESS = 1e-9  # smallest excess variance of logarithms: less is rounding
LEAST = 1e-4  # smallest figure that four decimals show
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


def paired(a: Any, b: Any) -> Difference:
    """The mean of a − b over pairs (here: the same seed, hence the same partition), with its interval and p."""
    return paired_by(np.asarray(a, float) - np.asarray(b, float), None)


def p_of_mean(d: np.ndarray) -> float:
    """Student's two-sided p that the mean of differences is 0; NaN if any is, or if they do not differ."""
    return float(2 * special.stdtr(d.size - 1, -abs(_t(d, np.zeros(1))[0])))


class Spread(NamedTuple):
    """The variance of one difference, and the degrees of freedom that it is known with."""

    variance: float
    freedom: float


def moderated(differences: Sequence[np.ndarray]) -> list[Spread | None]:
    """The variance of each of many sets of differences, shrunk to what all have in common; None where it is not known.

    differences: of every two of A algorithms, each [K], paired; K is the same for all.  The sets' variances are taken
    as drawn from a scaled inverse χ² distribution, which is fitted to all, and each is replaced by its posterior
    mean: Smyth, Stat. Appl. Genet. Mol. Biol. 3, 2004, section 6.2.  Those that differ by chance only are pooled.  One
    set alone keeps its own: the test is Student's.
    Differs: the sets have algorithms in common, so the freedom is at most that of all values together, (A − 1)(K − 1).

    >>> import numpy as np
    >>> from fedtune.core.statistics import moderated
    >>> moderated([np.array([0.0, 2.0, 4.0])])
    [Spread(variance=4.0, freedom=2.0)]
    """
    testable = [not math.isnan(_t(d, np.zeros(1))[0]) for d in differences]
    own = np.array([d.var(ddof=1) for d, is_known in zip(differences, testable, strict=True) if is_known])
    if not own.size:
        return [None] * len(differences)
    freedom = float(differences[testable.index(True)].size - 1)
    prior, common = _common_variance(own, freedom)
    most = freedom * (math.isqrt(1 + 8 * own.size) - 1) / 2  # of A (A − 1) / 2 pairs
    shrunk = np.full(own.size, common) if math.isinf(prior) else (prior * common + freedom * own) / (prior + freedom)
    spreads = iter(Spread(float(v), min(prior + freedom, most)) for v in shrunk)
    return [next(spreads) if is_known else None for is_known in testable]


def _common_variance(variances: np.ndarray, freedom: float) -> tuple[float, float]:
    """Degrees of freedom and scale of the distribution that variances of so many degrees each are drawn from.

    By their logarithms (Smyth, section 6.2): none for one variance, infinite where they differ by chance only.
    """
    if variances.size < 2:
        return 0.0, 1.0
    logs = np.log(variances) - special.digamma(freedom / 2) + math.log(freedom / 2)
    excess = float(logs.var(ddof=1) - special.polygamma(1, freedom / 2))
    if excess < LEAST_EXCESS:
        return math.inf, float(variances.mean())  # the most likely, if they are all one
    from scipy.optimize import brentq  # imported here: it takes a third of a second

    log_half = brentq(lambda x: special.polygamma(1, math.exp(x)) - excess, -30, 30)  # trigamma falls throughout
    prior = 2 * math.exp(log_half)
    return prior, math.exp(logs.mean() + special.digamma(prior / 2) - math.log(prior / 2))


def paired_by(d: np.ndarray, spread: Spread | None, level: float = 0.95) -> Difference:
    """The mean of differences, with its interval and two-sided p, by a variance that is given; else by their own."""
    if spread is None:
        found = mean(d, level)
        if d.size > 1 and not np.isnan(d).any() and np.ptp(d) < EQUAL:
            found = Mean(found.mean, math.nan if abs(found.mean) > EQUAL else 0.0)
        return Difference(*found, p_of_mean(d))
    half = special.stdtrit(spread.freedom, (1 + level) / 2) * math.sqrt(spread.variance / d.size)
    p = 2 * special.stdtr(spread.freedom, -abs(_t(d, np.zeros(1), spread)[0]))
    return Difference(float(d.mean()), float(half), float(p))


def beyond(d: np.ndarray, margin: float, spread: Spread | None = None) -> float:
    """p of the claim that the mean of differences is larger than the margin, either way; NaN as in `p_of_mean`.

    Below 5 % where the 95 % interval lies beyond the margin.  spread: from `moderated`; else their own.
    """
    t, freedom = _t(d, np.array([margin, -margin]), spread), spread.freedom if spread else d.size - 1
    return float(np.minimum(2 * special.stdtr(freedom, np.array([-t[0], t[1]])).min(), 1.0))  # NaN stays NaN


def inside(d: np.ndarray, margin: float, spread: Spread | None = None) -> float:
    """p of the claim that the mean of differences lies within the margin; NaN as above.

    Below 5 % where the 95 % interval lies within: twice the p of two one-sided tests (Schuirmann, J. Pharmacokinet.
    Biopharm. 15, 1987), so this claim and `beyond` are together wrong in at most 5 %.
    """
    t, freedom = _t(d, np.array([margin, -margin]), spread), spread.freedom if spread else d.size - 1
    return float(np.minimum(2 * special.stdtr(freedom, np.array([t[0], -t[1]])).max(), 1.0))


def _t(d: np.ndarray, means: np.ndarray, spread: Spread | None = None) -> np.ndarray:
    """Student's t of differences against hypothetical means; NaN where nothing can be tested, infinite if all are 0."""
    if d.size < 2 or np.isnan(d).any() or np.ptp(d) < EQUAL:
        is_zero = d.size > 1 and bool((abs(d) <= EQUAL).all())
        return np.where(is_zero & (means != 0), np.copysign(math.inf, -means), math.nan)
    variance = spread.variance if spread else d.var(ddof=1)
    return np.asarray((d.mean() - means) / math.sqrt(variance / d.size))


def holm(p: Sequence[float]) -> list[float]:
    """p values corrected for multiple tests (Holm, Scand. J. Statist. 6, 1979); NaN, not tested, does not count."""
    order = [i for i in np.argsort(p, kind="stable") if not math.isnan(p[i])]
    out, largest = [math.nan] * len(p), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p[i]))
        out[i] = largest
    return out


def expected_best(values: Any) -> np.ndarray:
    """The expected largest of n of these values, for n = 1, 2, … all of them: the mean over all subsets of n.

    Σ_i v_(i) C(i − 1, n − 1) / C(B, n), where v_(i) is the i-th smallest of B values: unbiased for independent draws
    (Tang et al., ACL 2020).  −∞ stands for no value; where a subset has none, so has the mean (NaN).
    """
    ordered = np.sort(np.asarray(values, float))
    size, lacking = ordered.size, int(np.isneginf(ordered).sum())
    below, weights, means = np.arange(size), np.full(size, 1 / max(size, 1)), np.full(size, math.nan)
    for n in range(1, size + 1):
        if n > lacking:
            means[n - 1] = weights[lacking:] @ ordered[lacking:]
        weights = weights * np.maximum(below - n + 1, 0) * (n + 1) / (n * max(size - n, 1))
    return means


def number(value: float, form: str) -> str:
    """A number in Python's format, with a true minus sign; a dash for NaN; 3.2e−05 where four decimals show 0."""
    if form.endswith(".4f") and EQUAL < abs(value) < LEAST:
        form = form.replace(".4f", ".2g")
    return "–" if math.isnan(value) else format(value, form).replace("-", "−")


def unit_of(metric: str) -> tuple[int, str, str]:
    """What a metric's values are multiplied by for people to read, their format and their unit."""
    return (100, ".2f", " %") if is_share(metric) else (1, ".4f", "")


def figure(metric: str, mean: float, half: float = math.nan) -> str:
    """A metric's mean with its interval: `94.78 ± 2.54 %`, of a cost `13.0028 s`, of others `0.9478 ± 0.0254`."""
    scale, form, unit = unit_of(metric)
    low, high = limits(metric)
    unit = unit or (f" {METRICS[metric].unit}".rstrip() if metric in METRICS else "")
    return interval(scale * mean, scale * half, form, within=(scale * low, scale * high), unit=unit)


def gained(metric: str, mean: float, half: float = math.nan, sign: str = "+z") -> str:
    """A difference of two values of a metric, with its interval: `+4.00 ± 4.97 points`, or `+0.0400 ± 0.0497`."""
    scale, form, unit = unit_of(metric)
    return interval(scale * mean, scale * half, f"{sign}{form}", unit=unit and " points")


def interval(
    mean: float, half: float, form: str, half_form: str = "", within: tuple[float, float] = UNBOUNDED, unit: str = ""
) -> str:
    """`0.9478 ± 0.0254`, with ` (≤ 1)` if the interval exceeds the possible values; the mean alone if half is NaN.

    half_form: by default the mean's, unsigned.  within: the smallest and largest possible value.
    """
    if math.isnan(half):
        return number(mean, form) + unit * (not math.isnan(mean))
    cut = {f"≥ {within[0]:g}": mean - half < within[0], f"≤ {within[1]:g}": mean + half > within[1]}
    end = f" ({', '.join(name for name, exceeds in cut.items() if exceeds)})" if any(cut.values()) else ""
    return f"{number(mean, form)} ± {number(half, half_form or form.removeprefix('+'))}{unit}{end}"


def arms(means: Any, halves: Any, within: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """How far intervals extend above and below their means, cut at the possible values; 0 for NaN."""
    mean, half = np.asarray(means, float), np.nan_to_num(np.asarray(halves, float))
    return np.minimum(half, (within[1] - mean).clip(0)), np.minimum(half, (mean - within[0]).clip(0))
