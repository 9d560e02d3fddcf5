"""How often a comparison calls an algorithm different from itself, and how often it finds a copy that is better.

The procedure of `fedtune compare` is played on a table: either side makes K searches with draws of their own, the k-th
of both on the same seed; the choice of every search is trained on S fresh seeds, the same for both sides; and the
differences are tested.  Both sides search the same table, so a significant difference is a false alarm, or a find once
one side is shifted.  Different algorithms can be played against each other, too, once they are made equal on average.

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

from fedtune.analysis.simulation.tabulated import SEED, Fresh, Place, Tabulated
from fedtune.core import statistics
from fedtune.core.errors import UserError
from fedtune.core.terminal import several

LEVEL = 0.05  # of the test, two-sided
PLAYED = 4000  # comparisons of each procedure


class Procedure(NamedTuple):
    """A way to compare two algorithms."""

    searches: int  # K, of each algorithm
    seeds: int  # S, fresh seeds of every search

    def cost(self, budget: float) -> float:
        """Training of one algorithm, in trials of full length.  budget: of a search."""
        return self.searches * (budget + self.seeds)


@dataclass(frozen=True)
class ChosenPlaces:
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
        places = {place for of in self.places for place in of if place is not None}
        if missing := places - self.worth.keys():
            raise UserError(
                f"every choice needs fresh seeds, but {len(missing)} of {several(len(places), 'configuration')} that "
                "searches choose have none; --chosen FILE.py lists them for fedtune.analysis.tabulate --more-of"
            )
        if (needed := max(how.searches * how.seeds for how in plans)) > self.fresh:
            raise UserError(
                f"every search has fresh seeds of its own, so {needed} are needed, but there are {self.fresh}; "
                "give fewer --compare-searches or --fresh-seeds, or make more with fedtune.analysis.tabulate --more-of"
            )

    def on_fresh(self) -> tuple[float, float]:
        """What choices reach on fresh seeds, the mean of the runs that do not diverge; and the share that does.

        A search that chooses nothing, as all of its trials diverged, counts as diverged on every seed.
        """
        none = np.full(self.fresh, np.nan)
        runs = np.array([none if place is None else self.worth[place] for of in self.places for place in of])
        diverged = np.isnan(runs)
        return float(runs[~diverged].mean()) if not diverged.all() else np.nan, float(diverged.mean())

    def drawn(self, turn: int, fresh: np.ndarray, count: int, stream: np.random.Generator) -> np.ndarray:
        """What searches reach, [count, K, S]: so many different ones on each of K seeds, the first of which is a turn.

        fresh: the numbers of the fresh seeds that each of the K is trained on, [K, S].
        """
        none, results = np.full(self.fresh, np.nan), []
        for k, seeds in enumerate(fresh):
            of = self.places[(turn + k) % len(self.places)]
            picked = stream.choice(len(of), count, replace=False)
            results.append([self.worth.get(of[i], none)[seeds] for i in picked])
        return np.array(results).swapaxes(0, 1)

    def differences(self, how: Procedure, stream: np.random.Generator) -> np.ndarray:
        """One comparison of the algorithm with itself: differences [K, S] in what choices reach."""
        fresh = stream.permutation(self.fresh)[: how.searches * how.seeds].reshape(how.searches, how.seeds)
        one, other = self.drawn(int(stream.integers(len(self.places))), fresh, 2, stream)
        return np.asarray(one - other)


def p_value(d: np.ndarray) -> float:
    """Student's two-sided p of differences d [K, S]; NaN where one diverged, and where all are equal.

    A search is one number, the mean over its seeds; with one search a seed is.
    """
    return statistics.p_of_mean(d.mean(1) if len(d) > 1 else d[0])


def judge(
    pool: ChosenPlaces, plans: Sequence[Procedure], shifts: Sequence[float], budget: float, played: int = PLAYED
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


def judge_equals(
    pools: Sequence[ChosenPlaces],
    plans: Sequence[Procedure],
    shifts: Sequence[float],
    margin: float,
    played: int = PLAYED,
) -> pd.DataFrame:
    """For each procedure how often algorithms that are equal on average are called different in one comparison.

    It is judged as `fedtune compare` does: paired by search, by variances that are shrunk to those of all pairs.  The
    algorithms have the same seeds, and what each reaches on average is taken off.  Fresh seeds are drawn anew in each
    comparison, with replacement: were they the same in all, none could be lucky.
    shifts: what the first algorithm is better by, in accuracy.
    Columns: searches, seeds, none (share of pairs without a verdict), each (of pairs with p < 5 %), any (of comparisons
    with such a pair after Holm's correction), larger (of those with a difference that is called larger than the
    margin), and `found SHIFT`: of the first algorithm's pairs those with p < 5 % after the correction.
    """
    for pool in pools:
        pool.require([Procedure(1, 1)])
    rows, pairs = [], list(itertools.combinations(range(len(pools)), 2))
    of_first = [i for i, (a, _) in enumerate(pairs) if a == 0]
    means = np.array([pool.on_fresh()[0] for pool in pools])[:, None]
    for how in plans:
        stream = np.random.default_rng((how.searches, how.seeds))
        p, corrected, larger = (np.empty((played, len(pairs))) for _ in range(3))
        finds = {shift: np.empty((played, len(of_first))) for shift in shifts}
        for i in range(played):
            fresh = stream.integers(pools[0].fresh, size=how)
            turn = int(stream.integers(len(pools[0].places)))
            reached = np.array([pool.drawn(turn, fresh, 1, stream)[0].mean(1) for pool in pools]) - means
            differences = [reached[a] - reached[b] for a, b in pairs]
            spreads = statistics.moderated(differences)
            p[i] = [statistics.paired_by(d, s).p for d, s in zip(differences, spreads, strict=True)]
            corrected[i] = statistics.holm(p[i].tolist())
            beyond = [statistics.beyond(d, margin, s) for d, s in zip(differences, spreads, strict=True)]
            larger[i] = statistics.holm(beyond)
            for shift, found in finds.items():
                moved = [d + shift if j in of_first else d for j, d in enumerate(differences)]
                each = [statistics.paired_by(d, s).p for d, s in zip(moved, spreads, strict=True)]
                found[i] = np.array(statistics.holm(each))[of_first]
        rows.append(
            {
                **how._asdict(),
                "none": float(np.isnan(p).mean()),
                "each": float((p < LEVEL).mean()),
                "any": float((corrected < LEVEL).any(1).mean()),
                "larger": float((larger < LEVEL).any(1).mean()),
                **{f"found {shift:g}": float((found < LEVEL).mean()) for shift, found in finds.items()},
            }
        )
    return pd.DataFrame(rows)


def require_one_setting(tables: Sequence[Tabulated], fresh: Sequence[Fresh]) -> None:
    """UserError unless algorithms could be compared on these tables: one scenario, one set of seeds, fresh ones too."""
    for what, of in (
        ("setting", [t.about.get("scenario_name") for t in tables]),
        ("number of rounds", [t.rounds for t in tables]),
        ("set of seeds", [list(t.seeds) for t in tables]),
        ("set of fresh seeds", [sorted(set(f.frame[SEED])) for f in fresh]),
    ):
        if any(x != of[0] for x in of[1:]):
            raise UserError(f"algorithms are compared on one {what}, but the tables have {' and '.join(map(str, of))}")


def procedures(searches: Sequence[int], seeds: Sequence[int]) -> list[Procedure]:
    """All combinations; one search with one seed is none, as nothing could be tested."""
    pairs = [Procedure(k, s) for k, s in itertools.product(searches, seeds) if k > 1 or s > 1]
    if not pairs:
        raise UserError("a test needs at least two numbers, but got one search and one fresh seed; give more of either")
    return pairs
