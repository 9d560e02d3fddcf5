"""Ranges as they are written: whether a value lies at an end, and wider ones by rule.  Nothing here needs Ray Tune."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fedtune.core.errors import UserError
from fedtune.core.hyper import Hyperparameter, Range
from fedtune.core.terminal import short
from fedtune.core.workload import Workload

if TYPE_CHECKING:
    from fedtune.tuning.space_types import Config, Space

EDGE = 0.05  # share of a range, on its scale: a value this near to an end counts as at the end
DECADE = 10.0
SMALL = 4  # a range of whole numbers on a log scale grows by this factor
NAMED = 4  # algorithms that a reason names


def of_text(text: str, hp: Hyperparameter) -> Range | None:
    """The range that a record has, of its hyperparameter's type; None for choices and for steps."""
    written = Range.parse(text)
    if not written or hp.choices:
        return None
    try:
        return written._replace(low=hp.check(written.low), high=hp.check(written.high), integer=hp.integer)
    except UserError:  # declarations may be others now
        return None


def edge(value: Any, text: str) -> str:
    """Whether a value lies at the `lower` or `upper` end of a range, written as in run.json; "" if at none.

    Natural limits do not count: a weight or share begins at 0, a count at 1.
    """
    written = Range.parse(str(text).partition(" where ")[0])
    if not written or isinstance(value, bool) or not isinstance(value, int | float) or not written.low < written.high:
        return ""
    scale = math.log if written.log and written.low > 0 else float
    low, high, at = map(scale, (written.low, written.high, max(value, written.low)))
    share = (at - low) / (high - low)
    if share <= EDGE:
        return "" if written.low == 0 or (written.low == 1 and written.integer) else "lower"
    return "upper" if share >= 1 - EDGE else ""


def wider(old: Range | None, hp: Hyperparameter, sides: frozenset[str]) -> Range | None:
    """The range extended once on these sides, as far as is declared; None if it already goes so far.

    On a log scale by a decade (whole numbers: by a factor of 4), else by its own length.
    """
    if old is None or hp.low is None or hp.high is None:
        return None
    low, high, factor = old.low, old.high, SMALL if old.integer else DECADE
    below, above = (low / factor, high * factor) if old.log else (low - (high - low), high + (high - low))
    if old.integer:
        below, above = math.ceil(below), math.floor(above)
    else:
        below, above = float(f"{below:.12g}"), float(f"{above:.12g}")  # 0.1, not 0.09999999999999998
    new = (max(below, hp.low) if "lower" in sides else low, min(above, hp.high) if "upper" in sides else high)
    new = (min(new[0], low), max(new[1], high))  # what was searched stays, wherever it began
    return None if new == (low, high) else old._replace(low=hp.check(new[0]), high=hp.check(new[1]))


class Widened(NamedTuple):
    """The wider ranges of the next searches, and the reasons."""

    ranges: dict[str, dict[str, Range]]  # by algorithm
    reasons: list[str]  # a sentence for each end; also where a range cannot go on


def rule(
    spaces: Mapping[str, Space], workloads: Mapping[str, Workload], best: Mapping[str, Sequence[Config]]
) -> Widened:
    """An end that the best configuration of some search touches is extended for all algorithms that share it.

    Two algorithms share a hyperparameter of one name, declaration and range.  best: of each algorithm's searches.
    """
    written = {a: {n: text.partition(" where ")[0] for n, text in space.text().items()} for a, space in spaces.items()}
    declared = {a: workload.hyperparameters() for a, workload in workloads.items()}
    touching: dict[tuple[str, tuple[str, ...]], list[tuple[str, str]]] = {}  # (name, algorithms) -> ends, choices
    for a, config in ((a, config) for a, of in best.items() for config in of):
        for n, text in written[a].items():
            if end := edge(config.get(n), text):
                alike = (b for b in spaces if written[b].get(n) == text and declared[b][n] == declared[a][n])
                touching.setdefault((n, tuple(alike)), []).append((end, f"{a} chose {short(config[n])}"))
    found = Widened({a: {} for a in spaces}, [])
    for (n, sharing), ends in touching.items():
        old, chose = written[sharing[0]][n], ", ".join(who for _, who in ends)
        new = wider(Range.parse(old), declared[sharing[0]][n], frozenset(end for end, _ in ends))
        if new is None:
            found.reasons.append(f"{n} stays at {old}, all that is declared, though {chose}")
            continue
        algorithms = ", ".join(sharing) if len(sharing) <= NAMED else f"all {len(sharing)} that share it"
        found.reasons.append(f"{n}: {old} becomes {new.text()} for {algorithms}, because {chose}")
        for a in sharing:
            found.ranges[a][n] = new
    return found
