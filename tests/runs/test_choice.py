"""The rule by which a search's best trials decide on more seeds which of them is named: real and simulated ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from fedtune.runs.choice import TOP, standing, usual_runs

NAN = math.nan


@pytest.mark.parametrize(
    ("means", "chosen", "asked"),
    [
        ([0.5], 0, 1),  # fewer than three finished
        ([0.4, 0.5], 1, 2),
        ([0.3, 0.5, 0.4, 0.9], 1, 3),  # the fourth is not asked
        ([0.5, 0.5, 0.5], 0, 3),  # a tie goes to the rank
        ([0.4, 0.5, 0.5], 1, 3),
        ([NAN, 0.1, NAN], 1, 3),  # what diverged is out, however few are left
        ([NAN, NAN, NAN, 0.1, 0.3, 0.2, 0.9], 4, 6),  # then the next three decide
        ([NAN, NAN, NAN, NAN, 0.1], 4, 5),
        ([-1e9, -2e9, NAN], 0, 3),  # costs have their sign turned
        ([NAN] * 7, None, 7),
        ([], None, 0),
    ],
)
def test_the_best_three_decide_by_their_means(means: list[float], chosen: int | None, asked: int) -> None:
    seen: list[int] = []

    def worth(some: Sequence[int]) -> list[float]:
        assert 1 <= len(some) <= TOP
        seen.extend(some)
        return [means[i] for i in some]

    assert standing(range(len(means)), worth) == chosen
    assert seen == list(range(asked))


def test_a_choice_costs_its_further_seeds_for_each_of_the_three() -> None:
    assert [usual_runs(k) for k in (1, 2, 3)] == [0, 3, 6]
