"""How often a comparison calls an algorithm different from itself, and how often it finds a copy that is better.

The procedure of `fedtune compare` is played on a table: either side makes K searches with draws of their own, the k-th
of both on the same seed; the choice of every search is trained on S fresh seeds, the same for both sides; and the
differences are tested.  Both sides search the same table, so a significant difference is a false alarm, or a find once
one side is shifted.

Bouthillier et al., MLSys 2021, arXiv:2103.03098: in each repetition of an experiment all is varied that varies, the
search too.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from fedtune.core import statistics
from fedtune.core.errors import UserError
from fedtune.core.terminal import several
from fedtune.studies.simulation.tabulated import Place

LEVEL = 0.05  # of the test, two-sided
PLAYED = 4000  # comparisons of each procedure


class Procedure(NamedTuple):
    """A way to compare two algorithms."""

    searches: int  # of either algorithm, K
    seeds: int  # fresh ones of every search, S

    def cost(self, budget: float) -> float:
        """Training of one algorithm, in trials of full length.  budget: of a search."""
        return self.searches * (budget + self.seeds)


@dataclass(frozen=True)
class Pool:
    """What simulated searches of a table choose.

    places   of their choices, a list for each seed that they select on; None where all of a search's trials diverged
    worth    what a place reaches on each of the F fresh seeds, [F]; not a number where its run diverged
    """

    places: Sequence[Sequence[Place | None]]
    worth: Mapping[Place, np.ndarray]

    @property
    def fresh(self) -> int:
        """The number F."""
        return len(next(iter(self.worth.values())))

    def require(self, plans: Sequence[Procedure]) -> None:
        """UserError unless every choice has fresh seeds, and as many as are needed."""
        found = {place for of in self.places for place in of if place is not None}
        if missing := found - self.worth.keys():
            raise UserError(
                f"every choice needs fresh seeds, but {len(missing)} of {several(len(found), 'configuration')} that "
                "searches choose have none; --chosen FILE.py lists them for fedtune tabulate --more-of"
            )
        if (most := max(how.searches * how.seeds for how in plans)) > self.fresh:
            raise UserError(
                f"every search has fresh seeds of its own, so {most} are needed, but there are {self.fresh}; "
                "give fewer --compare-searches or --fresh-seeds, or make more with fedtune tabulate --more-of"
            )

    def on_fresh(self) -> tuple[float, float]:
        """What choices reach on fresh seeds, the mean of the runs that do not diverge; and the share that does.

        A search that chooses nothing, as all of its trials diverged, counts as diverged on every seed.
        """
        none = np.full(self.fresh, np.nan)
        runs = np.array([none if place is None else self.worth[place] for of in self.places for place in of])
        diverged = np.isnan(runs)
        return float(runs[~diverged].mean()) if not diverged.all() else np.nan, float(diverged.mean())

    def differences(self, how: Procedure, stream: np.random.Generator) -> np.ndarray:
        """One comparison of the algorithm with itself: differences [K, S] in what choices reach."""
        fresh = stream.permutation(self.fresh)[: how.searches * how.seeds].reshape(how.searches, how.seeds)
        turn, none = int(stream.integers(len(self.places))), np.full(self.fresh, np.nan)
        found = []
        for k, seeds in enumerate(fresh):
            of = self.places[(turn + k) % len(self.places)]
            a, b = (of[i] for i in stream.choice(len(of), 2, replace=False))
            found.append(self.worth.get(a, none)[seeds] - self.worth.get(b, none)[seeds])
        return np.array(found)


def p_value(d: np.ndarray) -> float:
    """Student's two-sided p of differences d [K, S]; NaN where one diverged, and where all are equal.

    A search is one number, the mean over its seeds; with one search a seed is.
    """
    return statistics.p_of_mean(d.mean(1) if len(d) > 1 else d[0])


def judge(
    pool: Pool, plans: Sequence[Procedure], shifts: Sequence[float], budget: float, played: int = PLAYED
) -> pd.DataFrame:
    """For each procedure how often it calls a difference significant: a row each, shares of the comparisons.

    shifts: what one side is better by, in accuracy; 0 is the algorithm against itself.
    Columns: searches, seeds, cost, spread (standard deviation of the difference of the algorithm with itself), none
    (no verdict: a run diverged, or all differences are equal), `found SHIFT` for each shift, and what all choices do
    on fresh seeds, whatever the procedure: reached, diverged (`Pool.on_fresh`).
    """
    pool.require(plans)
    rows = []
    for how in plans:
        stream = np.random.default_rng((how.searches, how.seeds))
        every = [pool.differences(how, stream) for _ in range(played)]
        means = [mean for d in every if not np.isnan(mean := d.mean())]
        row = {**how._asdict(), "cost": how.cost(budget), "spread": float(np.std(means)) if means else np.nan}
        for shift in (0.0, *shifts):
            p = np.array([p_value(d + shift) for d in every])
            if shift == 0:
                row["none"] = float(np.isnan(p).mean())
            row[f"found {shift:g}"] = float((p < LEVEL).mean())
        rows.append(row)
    reached, diverged = pool.on_fresh()
    return pd.DataFrame(rows).assign(reached=reached, diverged=diverged)


def procedures(searches: Sequence[int], seeds: Sequence[int]) -> list[Procedure]:
    """All combinations; one search with one seed is none, as nothing could be tested."""
    found = [Procedure(k, s) for k, s in itertools.product(searches, seeds) if k > 1 or s > 1]
    if not found:
        raise UserError("a test needs at least two numbers, but got one search and one fresh seed; give more of either")
    return found
