"""A comparison against its budget: what each algorithm's searches would have chosen after 1, 2, 3, … of their trials.

The score is the one that searches select by, by default validation accuracy; no test figure and no run on a fresh seed
takes part.  So it has the luck of the selection in it (the selection gap), and the verdicts on fresh seeds stand apart.

Dodge et al. (Show Your Work, EMNLP 2019) and Tang et al. (Showing Your Work Doesn't Always Work, ACL 2020) resample
trials, which takes them for independent draws.  TPE's late trials are good because of its early ones, and ASHA stops a
trial by what others had reached.  So trials count in the order in which they began, and what is averaged, and what an
interval is over, is the search: K independent ones for K searches.  With one search there is no interval.  Only where
the order is luck (a random searcher, nothing stopped early) the mean over all orders takes the place of the one that
was: Tang et al.'s estimate, with the default configuration first, as it always is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fedtune.core import statistics
from fedtune.runs import frames, tables
from fedtune.runs.trial_states import ENDED

if TYPE_CHECKING:  # a reader of these tables needs neither PyTorch nor Ray
    from fedtune.tuning.plan import SearchPlan

# column of budget.csv -> what it is
COLUMNS: dict[str, str] = {
    "algorithm": "its name",
    "trials": "how many trials each of its searches had begun",
    "score": "mean over its searches of the score of what they would have chosen then",
    "half": "half the 95 % interval of that mean, over searches; none with one search",
    "rank": "its place by that mean, 1 for the best",
    "rounds": "mean over its searches of the rounds that these trials trained",
    "searches": "how many searches each algorithm had",
    "metric": "the score's metric, which searches select by",
}


def averaged(p: SearchPlan) -> bool:
    """Whether the order of a search's trials is luck, so that the mean over all orders is taken."""
    ran_out = _begun(p)["status"].isin({*ENDED} - {"stopped"}).all()
    return bool(ran_out) and p.searcher == "random" and (p.scheduler == "none" or bool(p.unjudged)) and not p.extended


def _begun(p: SearchPlan) -> pd.DataFrame:
    trials = frames.trials_table(p.files)
    return trials[trials["status"] != "not started"]


def table(searches: Sequence[Mapping[str, SearchPlan]]) -> pd.DataFrame:
    """A row per algorithm and number of trials, up to the most that every search began; columns COLUMNS.

    searches: the plans of the algorithms' first searches by the algorithms' names, of their second ones, …
    """
    objective = next(iter(searches[0].values())).goal.first
    by_name = {name: [_of_search(of[name]) for of in searches] for name in searches[0]}
    largest = min(len(of) for every in by_name.values() for of in every)
    rows = []
    for name, every in by_name.items():
        for n in range(largest):
            scores = statistics.mean([of["score"].iloc[n] for of in every])
            rounds = float(np.mean([of["rounds"].iloc[n] for of in every]))
            rows.append((name, n + 1, scores.mean, scores.half, rounds))
    frame = pd.DataFrame(rows, columns=["algorithm", "trials", "score", "half", "rounds"])
    places = frame.groupby("trials")["score"].rank("min", ascending=objective.sign < 0, na_option="bottom")
    frame = frame.assign(rank=places.astype(int), searches=len(searches), metric=objective.name)
    return frame[list(COLUMNS)]


def _of_search(p: SearchPlan) -> pd.DataFrame:
    """What a search would have chosen after each number of trials: columns score (NaN where nothing), rounds."""
    trials = _begun(p)
    scores = [_best_score(trials[:n], p) for n in range(1, len(trials) + 1)]
    if averaged(p):
        first, sign = len(p.points), p.goal.first.sign  # these are tried first, in their order
        begun = sign * scores[first - 1] if 0 < first <= len(scores) else -math.inf
        each = [sign * _best_score(trials[i : i + 1], p) for i in range(first, len(trials))]
        scores[first:] = sign * statistics.expected_best(np.fmax(np.nan_to_num(each, nan=-math.inf), begun))
    return pd.DataFrame({"score": np.array(scores, float), "rounds": trials["rounds"].cumsum().to_numpy(float)})


def _best_score(trials: pd.DataFrame, p: SearchPlan) -> float:
    best = tables.best_trial(trials, p.budget.unit, p.goal)
    return math.nan if best is None else float(best[p.goal.first.column])
