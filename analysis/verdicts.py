"""Verdicts on a paper's claims: what figures of several seeds, paired, say of what was claimed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedtune.core import statistics
from fedtune.core.statistics import interval

HOLDS, FAILS, UNTOLD = "holds", "does not hold", "undecided here"
SMALLER, PARTLY = "smaller than claimed", "holds in part"
LEAST = 0.5  # points: no paper would report a smaller effect
NOTHING = f"no effect above {LEAST:g} points"
FORMS = {"points": ".2f", "MB": ".2g"}  # by unit: how a difference is written
LINEAR = 0.05  # share of the largest value by which points may lie off the line through both ends
ROUNDS = 10  # how far a number of rounds may lie from the printed one

Values = dict[str, np.ndarray]  # a variant's label -> a figure per seed


class ClaimVerdict(NamedTuple):
    """The verdict on a claim, and why."""

    verdict: str
    why: str


def better(
    values: Values,
    one: str,
    other: str,
    sign: int = 1,
    unit: str = "points",
    where: str = "",
    claimed: float = math.nan,
) -> ClaimVerdict:
    """Whether one variant has more than another (sign -1: less), by as much as was claimed.

    It holds if the 95 % interval of the paired difference lies on that side of 0, and does not if on the other.
    Otherwise, if the claimed figure lies beyond the interval, the effect is smaller than claimed.  If no figure is
    claimed, and the interval of two one-sided tests at 5 % lies within ± LEAST points, there is no effect to speak of.
    where: what else distinguishes it from other differences.
    """
    if one not in values or other not in values:
        return ClaimVerdict(UNTOLD, f"{where}{one if one not in values else other} was not run")
    d, form = statistics.paired(values[one], values[other]), FORMS[unit]
    text = f"{where}{one} − {other}: {interval(d.mean, d.half, f'+z{form}')} {unit}"
    if not math.isnan(claimed):
        text += f" ({claimed:+.2f} claimed)".replace("-", "−")
    if math.isnan(d.mean) or math.isnan(d.half):
        return ClaimVerdict(UNTOLD, text)
    if abs(d.mean) > d.half:
        return ClaimVerdict(HOLDS if sign * d.mean > 0 else FAILS, text)
    if abs(claimed - d.mean) > d.half:
        return ClaimVerdict(SMALLER, text)
    narrow = statistics.mean(values[one] - values[other], 0.9)
    if math.isnan(claimed) and unit == "points" and abs(narrow.mean) + narrow.half < LEAST:
        return ClaimVerdict(NOTHING, text)
    return ClaimVerdict(UNTOLD, text)


def all_of(*verdicts: ClaimVerdict) -> ClaimVerdict:
    """A claim of several parts: it fails with any of them, is as small as the smallest, and holds with all."""
    reasons = "; ".join(v.why for v in verdicts) or "not run"
    kinds = {v.verdict for v in verdicts}
    for verdict in (FAILS, SMALLER, NOTHING, UNTOLD):
        if verdict in kinds:
            return ClaimVerdict(verdict, reasons)
    return ClaimVerdict(HOLDS if verdicts else UNTOLD, reasons)


def peak(values: Values, among: Sequence[str]) -> ClaimVerdict:
    """Whether the best variant is one of these: better than all others, by paired differences."""
    here = [s for s in among if s in values]
    if not here or len(values) == len(here):
        return ClaimVerdict(UNTOLD, f"{' or '.join(among)} was not run, or nothing else")
    means = {s: v.mean() for s, v in values.items()}
    best = max(here, key=lambda s: means[s])
    return all_of(*(better(values, best, other) for other in values if other not in among))


def linear(values: Values) -> ClaimVerdict:
    """Whether figures lie on a straight line over the numbers in their labels, whatever the seeds' chance.

    Each point between the ends is held against the line through these, by seed: it holds if every 95 % interval of how
    far it is off lies within ± LINEAR, and does not if one lies outside.
    """
    if len(values) < 3:
        return ClaimVerdict(UNTOLD, "fewer than three settings were run")
    x = {label: float(label.rpartition("= ")[2]) for label in values}
    first, *between, last = sorted(values, key=lambda label: x[label])
    largest = max(v.mean() for v in values.values())
    verdicts, texts = [], [f"{first} {values[first].mean():.4g}"]
    for label in between:
        share = (x[label] - x[first]) / (x[last] - x[first])
        off = statistics.mean((values[label] - (1 - share) * values[first] - share * values[last]) / largest)
        texts.append(f"{label} {values[label].mean():.4g} ({interval(*off, '+z.1%')} off the line)")
        inside, outside = abs(off.mean) + off.half <= LINEAR, abs(off.mean) - off.half > LINEAR
        verdicts.append(HOLDS if inside else FAILS if outside else UNTOLD)
    texts.append(f"{last} {values[last].mean():.4g}")
    return all_of(*(ClaimVerdict(v, "") for v in verdicts))._replace(why=", ".join(texts))


def within(values: Values, low: float, high: float) -> ClaimVerdict:
    """Whether every figure's mean lies between two bounds."""
    means = {label: v.mean() for label, v in values.items()}
    if not means or any(math.isnan(m) for m in means.values()):
        return ClaimVerdict(UNTOLD, "not run")
    text = ", ".join(f"{label} {m:.2f}" for label, m in means.items())
    return ClaimVerdict(HOLDS if all(low <= m <= high for m in means.values()) else FAILS, text)


def as_printed(ratios: Values, printed: dict[str, tuple[int, int]]) -> ClaimVerdict:
    """Whether a ratio of ours lies where whole numbers that were printed leave it, by data set: a / b, each ± 0.5."""
    means = [value.mean() for value in ratios.values()]
    if not means or any(math.isnan(m) for m in means):
        return ClaimVerdict(UNTOLD, "not run")
    low, high, matches, texts = min(means), max(means), [], []
    for name, (a, b) in printed.items():
        low_ratio, high_ratio = (a - 0.5) / (b + 0.5), (a + 0.5) / (b - 0.5)
        matches.append(low_ratio <= low and high <= high_ratio)
        texts.append(
            f"{'as printed' if matches[-1] else 'not as printed'} for {name} ({low_ratio:.2f} to {high_ratio:.2f})"
        )
    why = f"{low:.2f}" + (f" to {high:.2f}" if high - low > 5e-3 else "") + " here; " + ", ".join(texts)
    return ClaimVerdict(HOLDS if all(matches) else PARTLY if any(matches) else FAILS, why)


def near(values: Values, printed: float, tolerance: float = ROUNDS) -> ClaimVerdict:
    """Whether every figure's 95 % interval lies within a tolerance of the printed one; fails if one lies outside."""
    verdicts = []
    for label, value in values.items():
        m = statistics.mean(value)
        distance, text = abs(m.mean - printed), f"{label}: {interval(*m, '.0f')} ({printed:g} printed)"
        if math.isnan(m.mean) or math.isnan(m.half):
            verdicts.append(ClaimVerdict(UNTOLD, text))
        elif distance + m.half <= tolerance:
            verdicts.append(ClaimVerdict(HOLDS, text))
        else:
            verdicts.append(ClaimVerdict(FAILS if distance - m.half > tolerance else UNTOLD, text))
    return all_of(*verdicts)
