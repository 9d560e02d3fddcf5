"""The properties of shards, of skewed sizes and of domains, and what each of them refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedtune.core.errors import UserError
from fedtune.data import skews
from fedtune.data.assignment import Partition, split

Y = np.random.default_rng(7).permutation(np.repeat(np.arange(10), 200))
HOSPITAL = np.random.default_rng(8).permutation(np.repeat([3, 7, 9], [900, 700, 400]))
LAWS: dict[str, Any] = {  # each with its arguments
    "shards": (skews.shards, {"y": Y, "clients": 20, "shards": 2}),
    "quantity": (skews.quantity, {"rows": len(Y), "clients": 20, "alpha": 0.5, "floor": 5}),
    "power-law": (skews.power_law, {"rows": len(Y), "clients": 20, "power": 1.0, "floor": 5}),
    "domains": (skews.domains, {"owner": HOSPITAL, "clients": 20}),
}


def dealt(name: str, seed: int = 0, **changes: Any) -> Partition:
    law, arguments = LAWS[name]
    arguments = arguments | changes
    return split(law(**arguments, rng=np.random.default_rng(seed)), arguments["clients"], 0.1, 0.2)


def of_clients(p: Partition) -> list[np.ndarray]:
    return [np.concatenate(parts) for parts in zip(*p, strict=True)]


def sizes(p: Partition) -> np.ndarray:
    return np.array([len(rows) for rows in of_clients(p)])


@pytest.mark.parametrize("name", LAWS)
def test_every_row_goes_to_one_client_and_one_split_and_the_seed_decides(name: str) -> None:
    p, again, other = dealt(name, 3), dealt(name, 3), dealt(name, 4)
    np.testing.assert_array_equal(np.sort(np.concatenate(of_clients(p))), np.arange(len(Y)))
    flat = [rows for split in p for rows in split]
    assert len(flat) == 60 and min(map(len, flat)) >= 1 and all(rows.dtype == np.int64 for rows in flat)
    assert all(np.array_equal(a, b) for a, b in zip(flat, [r for s in again for r in s], strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(flat, [r for s in other for r in s], strict=True))
    n = sizes(p)
    np.testing.assert_array_equal([len(rows) for rows in p.val], np.clip(np.rint(0.1 * n), 1, None))
    np.testing.assert_array_equal([len(rows) for rows in p.test], np.clip(np.rint(0.2 * n), 1, None))


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_a_client_of_s_shards_holds_s_runs_of_the_rows_sorted_by_class(shards: int) -> None:
    p = dealt("shards", clients=10, shards=shards)
    assert (sizes(p) == 200).all()
    for rows in of_clients(p):  # a shard of 200 / s rows lies within a class of 200
        held, counts = np.unique(Y[rows], return_counts=True)
        assert len(held) <= shards and (counts % (200 // shards) == 0).all()
    with_all = [len(np.unique(Y[rows])) for rows in of_clients(dealt("shards", clients=10, shards=200))]
    assert min(with_all) == 10  # a row a shard: the limit is iid


def test_shards_are_dealt_without_favour() -> None:
    """McMahan's 200 shards of ten classes: two of a client are of one class with probability 19 / 199."""
    same = [len(np.unique(Y[rows])) == 1 for s in range(60) for rows in of_clients(dealt("shards", s, clients=100))]
    assert abs(np.mean(same) - 19 / 199) < 5 * (0.1 * 0.9 / len(same)) ** 0.5


def test_shards_of_odd_sizes_differ_by_a_row_at_most() -> None:
    assert np.ptp(sizes(dealt("shards", clients=7, shards=3))) <= 3
    assert sizes(dealt("shards", clients=600, shards=3)).min() >= 3


def test_quantity_skews_sizes_by_the_moments_of_dirichlet_and_leaves_classes_alone() -> None:
    shares = np.array([sizes(dealt("quantity", s, clients=4, alpha=2.0, floor=3)) for s in range(400)]) / len(Y)
    std = (0.25 * 0.75 / (4 * 2.0 + 1)) ** 0.5
    np.testing.assert_allclose(shares.mean(0), 0.25, atol=5 * std / 400**0.5)
    np.testing.assert_allclose(shares.std(), std, rtol=0.1)
    largest = max(of_clients(dealt("quantity")), key=len)
    assert (np.abs(np.bincount(Y[largest]) / len(largest) - 0.1) < 5 * (0.09 / len(largest)) ** 0.5).all()
    assert np.ptp(sizes(dealt("quantity", alpha=1e9))) <= 1
    assert sizes(dealt("quantity", alpha=1e-3, floor=50)).min() == 50


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_sizes_fall_by_the_power_of_the_rank(power: float) -> None:
    n = np.sort(sizes(dealt("power-law", power=power, clients=5, floor=3)))[::-1]
    law = np.arange(1, 6.0) ** -power
    np.testing.assert_allclose(n, len(Y) * law / law.sum(), atol=1)


def test_the_largest_give_what_others_lack_to_the_floor() -> None:
    assert sizes(dealt("power-law", power=30.0, floor=20)).min() == 20
    firsts = [int(sizes(dealt("power-law", s, clients=4)).argmax()) for s in range(200)]
    assert (np.abs(np.bincount(firsts, minlength=4) - 50) < 5 * (200 * 0.25 * 0.75) ** 0.5).all()


def test_a_client_holds_one_domain_and_those_of_a_domain_share_it_evenly() -> None:
    p = dealt("domains", clients=7)
    for k, rows in enumerate(of_clients(p)):
        assert set(HOSPITAL[rows]) == {[3, 7, 9][k % 3]}
    assert sizes(p).tolist() == [300, 350, 200, 300, 350, 200, 300]
    assert sizes(dealt("domains", clients=3)).tolist() == [900, 700, 400]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("shards", {"shards": 101}, "20 clients of 101 shards each need 2020 rows, but there are 2000"),
        ("shards", {"clients": 700}, "take 666 clients or fewer"),
        ("quantity", {"floor": 101}, "need 2020 rows"),
        ("domains", {"clients": 2}, "needs a client for each of the 3 domains, but clients is 2: give --clients 3"),
        ("domains", {"clients": 900}, r"needs 3 rows, .* with \d+ rows for 300 clients, .*; take fewer clients"),
    ],
)
def test_what_cannot_be_dealt_is_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        dealt(name, **changes)


def test_thinning_keeps_of_each_client_a_power_of_its_rank() -> None:
    p = dealt("power-law", power=0.0, clients=10)
    n = np.array([len(rows) for rows in p.train])
    kept = skews.thinned(p, 1.0, seed=5)
    np.testing.assert_array_equal(
        np.sort([len(rows) for rows in kept.train]), np.sort(np.rint(n / np.arange(1.0, 11)).astype(int))
    )
    less = skews.thinned(p, 2.0, seed=5)
    for whole, some, few in zip(p.train, kept.train, less.train, strict=True):
        assert set(few) <= set(some) <= set(whole) and len(few) >= 1
    assert kept.val is p.val and kept.test is p.test
    assert skews.thinned(p, 0.0, seed=5) is p
    assert min(len(rows) for rows in skews.thinned(p, 50.0, seed=5).train) == 1
