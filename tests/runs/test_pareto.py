"""Fronts, hypervolumes and places, against their definitions, other methods and the two-dimensional case."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedtune.runs import pareto

NAMES = ["val_acc", "comm_mb", "val_loss", "val_f1"]  # more, less, less, more is better
SIGNS = np.array([1, -1, -1, 1])


def points(count: int, entries: int, seed: int, digits: int = 9) -> pd.DataFrame:
    drawn = np.random.default_rng(seed).random((count, entries)).round(digits)
    return pd.DataFrame(drawn, columns=NAMES[:entries])


def beats(a: np.ndarray, b: np.ndarray) -> bool:
    return bool((a >= b).all() and (a > b).any())


@pytest.mark.parametrize("entries", [2, 3, 4])
def test_a_front_is_what_no_other_beats_each_once_and_the_first_of_equals(entries: int) -> None:
    some = points(150, entries, 1, digits=2 if entries == 2 else 1)
    gains = some.to_numpy() * SIGNS[:entries]
    first = ~some.duplicated()
    want = [i for i in range(150) if first[i] and not any(beats(other, gains[i]) for other in gains)]
    found = pareto.front(some.assign(at=range(150)), NAMES[:entries])
    assert sorted(found["at"]) == want and len(want) >= 3 and found["val_acc"].is_monotonic_increasing


@pytest.mark.parametrize("entries", [3, 4])
def test_a_hypervolume_is_what_chance_counts(entries: int) -> None:
    some, reference = points(15, entries, 2), (0.1, 0.9, 0.8, 0.2)[:entries]
    worst = SIGNS[:entries] * reference
    drawn = np.random.default_rng(3).random((1_000_000, entries))
    at = worst + drawn * (np.where(SIGNS[:entries] > 0, 1, 0) - worst)  # between the reference and the best possible
    beaten = np.zeros(len(at), dtype=bool)
    for gain in some.to_numpy() * SIGNS[:entries]:
        beaten |= (at <= gain).all(1)
    box = float(np.prod(np.where(SIGNS[:entries] > 0, 1, 0) - worst))
    assert pareto.hypervolume(some, NAMES[:entries], reference) == pytest.approx(box * beaten.mean(), rel=0.01)


@pytest.mark.parametrize("entries", [3, 4])
def test_constant_objectives_only_scale_the_area_of_two(entries: int) -> None:
    two = points(40, 2, 4)
    some = two.assign(val_loss=0.25, val_f1=0.5)[NAMES[:entries]]
    area = pareto.hypervolume(two, NAMES[:2], (0.1, 0.9))
    found = pareto.hypervolume(some, NAMES[:entries], (0.1, 0.9, 0.75, 0.25)[:entries])
    assert found == pytest.approx(area * 0.5 * (1 if entries == 3 else 0.25), rel=1e-12)
    assert pareto.hypervolume(some, NAMES[:entries], (0.1, 0.9, 0.25, 0.25)[:entries]) == 0  # no better than it


def test_places_are_by_front_then_by_room_then_by_order() -> None:
    line = [(0.0, 9.0), (1.0, 6.0), (2.0, 5.0), (9.0, 0.0), (4.0, 4.0)]  # one front; its ends first, then most room
    assert pareto.places(line).tolist() == [1, 4, 5, 2, 3]
    assert pareto.places([(1, 1), (3, 3), (2, 2), (3, 3)]).tolist() == [4, 1, 3, 2]
    assert pareto.places([(5,), (7,), (5,), (1,)]).tolist() == [2, 1, 3, 4]
    endless = [(9.5, -np.inf), *line]  # without noise ε is infinite; it takes nobody's room
    assert pareto.places(endless).tolist() == [1, 2, 5, 6, 3, 4]


@pytest.mark.parametrize("seed", range(20))
def test_the_places_of_fronts_are_those_that_peeling_gives(seed: int) -> None:
    vectors = np.random.default_rng(seed).integers(0, 6, (30, 3)).astype(float)
    place, left, taken = pareto.places(vectors.tolist()), list(range(30)), 0
    while left:
        peel = [i for i in left if not any(beats(vectors[j], vectors[i]) for j in left)]
        assert sorted(place[peel]) == list(range(taken + 1, taken + len(peel) + 1))
        left, taken = [i for i in left if i not in peel], taken + len(peel)
