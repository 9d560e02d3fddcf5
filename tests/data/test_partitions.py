"""The properties of the partitions, and the errors for what no partition can meet."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from fedtune.core.errors import UserError
from fedtune.data import skews
from fedtune.data.assignment import Partition, split
from fedtune.data.partitions import dirichlet, fedgen, iid, natural, ways_shots

TRAIN_ROWS = 6000
Y = np.random.default_rng(7).permutation(np.repeat(np.arange(10), 700))  # about 600 + 100 rows of each of 10 classes


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def ws(y: np.ndarray = Y, train_rows: int = TRAIN_ROWS, seed: int = 0, **changes: int) -> Partition:
    numbers = dict(clients=20, ways=4, ways_spread=2, shots=20, shots_spread=5, val_shots=5, test_shots=3) | changes
    return ways_shots(y, train_rows, rng=rng(seed), **numbers)


def dir_(y: np.ndarray = Y, seed: int = 0, **changes: Any) -> Partition:
    numbers: dict[str, Any] = dict(clients=20, alpha=0.5, floor=10) | changes
    return split(dirichlet(y, rng=rng(seed), **numbers), numbers["clients"], 0.1, 0.2)


FEDGEN: dict[str, Any] = dict(clients=20, alpha=0.5, share=1.0, floor=5, val_share=0.15)
OWNER = np.random.default_rng(8).integers(100, 400, TRAIN_ROWS)  # 300 people with about 20 rows each


def fg(y: np.ndarray = Y, train_rows: int = TRAIN_ROWS, whole: int = 0, seed: int = 0, **changes: Any) -> Partition:
    return fedgen(y, train_rows, whole or train_rows, rng=rng(seed), **(FEDGEN | changes))


def nat(owner: np.ndarray = OWNER, seed: int = 0, **changes: Any) -> Partition:
    numbers: dict[str, Any] = dict(clients=20, owners=10, share=1.0) | changes
    return split(natural(owner, rng=rng(seed), **numbers), numbers["clients"], 0.1, 0.2)


HOSPITAL = np.random.default_rng(8).permutation(np.repeat([3, 7, 9], [3150, 2450, 1400]))
SKEWS: dict[str, Any] = {  # laws of sizes and domains, each with its arguments
    "shards": (skews.shards, {"y": Y, "shards": 2}),
    "quantity": (skews.quantity, {"rows": len(Y), "alpha": 0.5, "floor": 5}),
    "power-law": (skews.power_law, {"rows": len(Y), "power": 1.0, "floor": 5}),
    "domains": (skews.domains, {"owner": HOSPITAL}),
}


def skewed(name: str, seed: int = 0, clients: int = 20, **changes: Any) -> Partition:
    law, arguments = SKEWS[name]
    return split(law(**(arguments | changes), clients=clients, rng=rng(seed)), clients, 0.1, 0.2)


def of_clients(p: Partition) -> list[np.ndarray]:
    return [np.concatenate(parts) for parts in zip(*p, strict=True)]


def all_rows(p: Partition) -> np.ndarray:
    return np.concatenate(p.train + p.val + p.test)


def sizes(p: Partition) -> np.ndarray:
    return np.array([len(rows) for rows in of_clients(p)])


def same(a: Partition, b: Partition) -> bool:
    return all(np.array_equal(s, t) for xs, ys in zip(a, b, strict=True) for s, t in zip(xs, ys, strict=True))


def assert_whole(p: Partition, rows: int) -> None:
    np.testing.assert_array_equal(np.sort(all_rows(p)), np.arange(rows))
    assert min(len(part) for parts in p for part in parts) >= 1


def dealt_iid(seed: int) -> Partition:
    return split(iid(Y, 20, rng(seed)), 20, 0.1, 0.2)


@pytest.mark.parametrize("deal", [ws, dir_, dealt_iid, fg, nat, *(partial(skewed, name) for name in SKEWS)])
def test_one_seed_one_partition_of_disjoint_int64_rows(deal: Any) -> None:
    p = deal(seed=3)
    assert same(p, deal(seed=3)) and not same(p, deal(seed=4))
    assert len(p.train) == len(p.val) == len(p.test) == 20
    assert all(part.dtype == np.int64 for parts in p for part in parts)
    rows = all_rows(p)
    assert len(np.unique(rows)) == len(rows)
    if deal not in (ws, fg, nat):
        assert_whole(p, len(Y))
        np.testing.assert_array_equal([len(rows) for rows in p.val], np.clip(np.rint(0.1 * sizes(p)), 1, None))
        np.testing.assert_array_equal([len(rows) for rows in p.test], np.clip(np.rint(0.2 * sizes(p)), 1, None))


def test_ways_shots_gives_every_class_of_a_client_the_same_number_of_rows() -> None:
    p = ws()
    for train, val, test in zip(*p, strict=True):
        held, shots = np.unique(Y[train], return_counts=True)
        assert 2 <= len(held) <= 6
        assert 15 <= shots[0] <= 25 and (shots == shots[0]).all()
        for part, number in ((val, 5), (test, 3)):
            classes, counts = np.unique(Y[part], return_counts=True)
            np.testing.assert_array_equal(classes, held)
            assert (counts == number).all()
        assert max(train.max(), val.max()) < TRAIN_ROWS <= test.min()


def test_ways_and_shots_are_uniform_on_their_ranges() -> None:
    y = np.tile(np.arange(10), 40_000)
    p = ws(y, 300_000, clients=3000, ways=4, ways_spread=2, shots=10, shots_spread=3, val_shots=1, test_shots=1)
    ways = np.array([len(v) for v in p.val])
    shots = np.array([len(t) for t in p.train]) / ways
    for draws, values in ((ways, range(2, 7)), (shots, range(7, 14))):
        got, counts = np.unique(draws, return_counts=True)
        np.testing.assert_array_equal(got, values)
        expected = 3000 / len(values)
        assert (np.abs(counts - expected) < 5 * expected**0.5).all()
    assert abs(np.corrcoef(ways, shots)[0, 1]) < 5 / 3000**0.5
    holders = np.bincount(y[np.concatenate(p.val)])  # no class is favoured
    assert (np.abs(holders - 1200) < 5 * (3000 * 0.4 * 0.6) ** 0.5).all()


def test_ranges_stop_at_two_and_at_the_number_of_classes() -> None:
    p = ws(clients=60, ways=9, ways_spread=7, shots=3, shots_spread=9, val_shots=1, test_shots=1)
    ways = np.array([len(v) for v in p.val])
    shots = np.array([len(t) for t in p.train]) / ways
    assert set(ways) == set(range(2, 11)) and set(shots) == set(range(2, 13))


def test_without_official_test_rows_all_three_share_one_pool() -> None:
    p = ws(train_rows=len(Y))
    for train, val, test in zip(*p, strict=True):
        held = np.unique(Y[train])
        assert len(val) == 5 * len(held) and len(test) == 3 * len(held)
        np.testing.assert_array_equal(np.unique(Y[test]), held)
    assert len(np.unique(all_rows(p))) == len(all_rows(p))


def test_classes_are_redrawn_until_the_rows_suffice() -> None:
    y = np.repeat(np.arange(4), 10)  # 4 clients, 2 of 4 classes, 5 rows each: only a perfectly even deal fits
    for seed in range(20):
        p = ws(y, 40, seed, clients=4, ways=2, ways_spread=0, shots=3, shots_spread=0, val_shots=1, test_shots=1)
        np.testing.assert_array_equal(np.sort(all_rows(p)), np.arange(40))


def test_the_number_of_clients_an_error_offers_does() -> None:
    with pytest.raises(UserError, match=r"class \d would need \d+ training rows and has \d+: take fewer") as caught:
        ws(clients=200)
    offered = int(str(caught.value).split("about ")[1].split(")")[0])
    assert 0 < offered < 200
    ws(clients=int(0.95 * offered))


@pytest.mark.parametrize("alpha", [1e-9, 0.01, 0.5, 1e6])
def test_dirichlet_uses_every_row_and_meets_the_floor(alpha: float) -> None:
    p = dir_(alpha=alpha)
    assert_whole(p, len(Y))
    assert sizes(p).min() >= 10


def test_small_alpha_concentrates_and_large_alpha_is_nearly_iid() -> None:
    def held(alpha: float) -> np.ndarray:
        p = dir_(alpha=alpha)
        return np.array([np.bincount(Y[np.concatenate(c)], minlength=10) for c in zip(*p, strict=True)])

    assert (np.abs(held(1e6) - 35) <= 1).all()  # 700 rows a class, 20 clients
    assert ((held(0.05) > 0).sum(1)).mean() < 4
    spread = [held(alpha).std() for alpha in (0.05, 0.5, 5.0, 50.0)]
    assert spread == sorted(spread, reverse=True)


def test_dirichlet_shares_have_the_moments_of_the_law() -> None:
    y = np.zeros(2000, np.int64)  # one class: no balance step; and a floor that is practically always met
    shares = np.array([sizes(dir_(y, seed, clients=4, alpha=2.0, floor=3)) for seed in range(600)]) / len(y)
    std = (0.25 * 0.75 / (4 * 2.0 + 1)) ** 0.5
    np.testing.assert_allclose(shares.mean(0), 0.25, atol=5 * std / 600**0.5)
    np.testing.assert_allclose(shares.std(0), std, rtol=0.1)


def test_a_client_with_its_fair_share_gets_nothing_of_later_classes() -> None:
    y = np.repeat([0, 1], 500)
    for seed in range(50):
        p = dir_(y, seed, clients=2, alpha=0.5, floor=3)
        counts = np.array([np.bincount(y[np.concatenate(c)], minlength=2) for c in zip(*p, strict=True)])
        assert (counts[counts[:, 0] >= 500, 1] == 0).all()
        assert counts.sum(1).max() <= 1000 - 3


def test_missing_rows_are_handed_over_from_the_largest() -> None:
    p = dir_(alpha=1e-9, clients=600, floor=11)  # ten clients would hold everything
    assert_whole(p, len(Y))
    size = np.sort(sizes(p))
    assert (size[:590] == 11).all()  # 6490 rows handed over; the givers sink to one level
    assert size[590:].sum() == 510 and size[-1] - size[590] <= 1


def test_a_floor_that_takes_every_row_is_met() -> None:
    p = dir_(clients=700, floor=10, alpha=0.1)
    assert_whole(p, len(Y))
    assert (sizes(p) == 10).all()


@pytest.mark.parametrize("shares", [(0.1, 0.2), (0.45, 0.45), (0.01, 0.01), (0.01, 0.98)])
def test_shares_are_kept_and_none_is_empty(shares: tuple[float, float]) -> None:
    for clients in (1, 7, 2333):
        p = split(iid(Y, clients, rng()), clients, *shares)
        assert_whole(p, len(Y))
        assert np.ptp(sizes(p)) <= 1
    p = split(iid(Y, 7, rng()), 7, *shares)
    assert {len(part) for part in p.val} == {round(1000 * shares[0])}
    assert {len(part) for part in p.test} == {round(1000 * shares[1])}


# -------------------------------------------------------------------------------------------------------- fedgen


def dealt(p: Partition, y: np.ndarray = Y) -> np.ndarray:
    """Training and validation rows of each client and class, [clients, classes]."""
    own = [np.concatenate(parts) for parts in zip(p.train, p.val, strict=True)]
    return np.array([np.bincount(y[rows], minlength=y.max() + 1) for rows in own])


def scored(p: Partition, y: np.ndarray = Y) -> np.ndarray:
    return np.array([np.bincount(y[rows], minlength=y.max() + 1) for rows in p.test])


@pytest.mark.parametrize("train_rows", [TRAIN_ROWS, len(Y)])
@pytest.mark.parametrize("alpha", [0.1, 1.0, 100.0])
def test_fedgen_tests_a_client_on_its_own_classes_equally(alpha: float, train_rows: int) -> None:
    p = fg(train_rows=train_rows, alpha=alpha)
    if train_rows < len(Y):
        each = np.bincount(Y[train_rows:]) // 20
        assert max(rows.max() for rows in p.train + p.val) < train_rows <= min(rows.min() for rows in p.test)
        assert dealt(p).sum() == train_rows
    else:
        each = np.bincount(Y) // 6 // 20  # a sixth of each class stands in for the test set
        np.testing.assert_array_equal(dealt(p).sum(0), np.bincount(Y) - np.bincount(Y) // 6)
    np.testing.assert_array_equal(scored(p), (dealt(p) > 0) * each)
    assert len(np.unique(all_rows(p))) == len(all_rows(p))


@pytest.mark.parametrize("share", [0.05, 0.3, 0.57, 1.0])
def test_fedgen_keeps_no_more_of_a_class_than_a_clients_cap(share: float) -> None:
    stock, cap = np.bincount(Y[:TRAIN_ROWS]), share * TRAIN_ROWS / 20
    kept = stock if share == 1 else np.minimum(np.floor(cap + 1e-9), np.floor(share * stock + 1e-9))
    np.testing.assert_array_equal(dealt(fg(share=share, floor=3, alpha=10.0)).sum(0), kept)


def test_fedgen_counts_classes_left_out_in_the_cap() -> None:
    y = Y[Y > 0] - 1
    train_rows = int((Y[:TRAIN_ROWS] > 0).sum())
    assert (dealt(fg(y, train_rows, TRAIN_ROWS, share=0.5, alpha=10.0), y).sum(0) == 150).all()  # 0.5 * 6000 / 20
    assert (dealt(fg(y, train_rows, 4000, share=0.5, alpha=10.0), y).sum(0) == 100).all()


def test_fedgen_closes_a_client_at_its_cap() -> None:
    """The class that brings a client to the cap is its last: without it the client is below."""
    y = np.tile(np.arange(10), 700)
    for seed in range(20):
        counts = dealt(fg(y, 6000, alpha=0.05, floor=3, seed=seed), y)
        size = counts.sum(1)
        assert size.max() > 300
        over = counts[size > 300]
        assert (size[size > 300][:, None] - over < 300).any(1).all()


def test_a_closed_client_gets_nothing_and_the_last_open_one_takes_the_rest() -> None:
    y = np.concatenate([np.repeat([0, 1], 500), np.repeat([0, 1], 200)])
    for seed in range(50):  # two clients, cap 500: whoever holds all of the first class gets nothing of the second
        counts = dealt(fg(y, 1000, clients=2, alpha=1e-9, floor=3, seed=seed), y)
        np.testing.assert_array_equal(np.sort(counts, axis=0), [[0, 0], [500, 500]])
        np.testing.assert_array_equal(counts.sum(1), 500)


def test_fedgen_shares_have_the_moments_of_the_law() -> None:
    y = np.zeros(3000, np.int64)  # one class; the law is per class over the clients
    for alpha in (0.2, 2.0):
        shares = np.concatenate([dealt(fg(y, 2000, 2000, s, clients=4, alpha=alpha, floor=3), y).T for s in range(600)])
        shares = shares / 2000
        full = [np.random.default_rng(s).dirichlet([alpha] * 4, 200) for s in range(30)]
        law = np.concatenate([p[(p * 2000).min(1) >= 4] for p in full])  # the floor conditions it
        np.testing.assert_allclose(shares.mean(0), 0.25, atol=5 * law.std() / 600**0.5)
        np.testing.assert_allclose(shares.std(), law.std(), rtol=0.05)


def test_fedgen_cuts_validation_from_each_client_and_leaves_training() -> None:
    for val_share in (0.001, 0.15, 0.999):
        p = fg(val_share=val_share)
        n = dealt(p).sum(1)
        want = np.clip(np.rint(n * val_share), 1, n - 1)
        np.testing.assert_array_equal([len(rows) for rows in p.val], want)
        np.testing.assert_array_equal([len(rows) for rows in p.train], n - want)


def test_fedgen_reaches_its_floor_and_survives_any_alpha() -> None:
    assert dealt(fg(alpha=0.3, floor=60)).sum(1).min() >= 60
    for alpha in (1e-310, 1e-9, 1e9):
        assert dealt(fg(alpha=alpha, clients=10, floor=3)).sum() == TRAIN_ROWS


def test_ten_thousand_clients_share_rows_out() -> None:
    y = np.concatenate([np.tile(np.arange(10), 20_000), np.tile(np.arange(10), 10_000)])
    assert dealt(fg(y, 200_000, clients=10_000, alpha=1.0, floor=3), y).sum() == 200_000
    owner = rng().integers(0, 200_000, 1_000_000)
    rows = all_rows(nat(owner, clients=10_000))
    assert len(rows) == len(set(rows)) == np.isin(owner, owner[rows]).sum()  # all rows of all owners that were drawn


# ------------------------------------------------------------------------------------------------------- natural


def test_natural_clients_hold_all_rows_of_ten_people_and_share_none() -> None:
    p = nat()
    groups = [np.unique(OWNER[np.concatenate(parts)]) for parts in zip(*p, strict=True)]
    assert all(len(group) == 10 for group in groups) and len(np.unique(np.concatenate(groups))) == 200
    for group, n in zip(groups, sizes(p), strict=True):
        assert np.isin(OWNER, group).sum() == n
    np.testing.assert_array_equal([len(rows) for rows in p.val], np.rint(0.1 * sizes(p)))
    np.testing.assert_array_equal([len(rows) for rows in p.test], np.rint(0.2 * sizes(p)))


def test_natural_draws_every_person_equally_often() -> None:
    owner = np.repeat(np.arange(10), 4)
    seen = np.concatenate([np.unique(owner[all_rows(nat(owner, seed, clients=1, owners=3))]) for seed in range(500)])
    assert (np.abs(np.bincount(seen, minlength=10) - 150) < 5 * (500 * 0.3 * 0.7) ** 0.5).all()


# --------------------------------------------------------------------------------------------------------- skews


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_a_client_of_s_shards_holds_s_runs_of_the_rows_sorted_by_class(shards: int) -> None:
    p = skewed("shards", clients=10, shards=shards)
    assert (sizes(p) == 700).all()
    for rows in of_clients(p):  # a shard of 700 / s rows lies within a class of 700
        held, counts = np.unique(Y[rows], return_counts=True)
        assert len(held) <= shards and (counts % (700 // shards) == 0).all()
    with_all = [len(np.unique(Y[rows])) for rows in of_clients(skewed("shards", clients=10, shards=700))]
    assert min(with_all) == 10  # a row a shard: the limit is iid


def test_shards_are_dealt_without_favour() -> None:
    """McMahan's 200 shards of ten classes: two of a client are of one class with probability 19 / 199."""
    same = [len(np.unique(Y[rows])) == 1 for s in range(60) for rows in of_clients(skewed("shards", s, clients=100))]
    assert abs(np.mean(same) - 19 / 199) < 5 * (0.1 * 0.9 / len(same)) ** 0.5


def test_shards_of_odd_sizes_differ_by_a_row_at_most() -> None:
    assert np.ptp(sizes(skewed("shards", clients=7, shards=3))) <= 3
    assert sizes(skewed("shards", clients=2100, shards=3)).min() >= 3


def test_quantity_skews_sizes_by_the_moments_of_dirichlet_and_leaves_classes_alone() -> None:
    shares = np.array([sizes(skewed("quantity", s, clients=4, alpha=2.0, floor=3)) for s in range(400)]) / len(Y)
    std = (0.25 * 0.75 / (4 * 2.0 + 1)) ** 0.5
    np.testing.assert_allclose(shares.mean(0), 0.25, atol=5 * std / 400**0.5)
    np.testing.assert_allclose(shares.std(), std, rtol=0.1)
    largest = max(of_clients(skewed("quantity")), key=len)
    assert (np.abs(np.bincount(Y[largest]) / len(largest) - 0.1) < 5 * (0.09 / len(largest)) ** 0.5).all()
    assert np.ptp(sizes(skewed("quantity", alpha=1e9))) <= 1
    assert sizes(skewed("quantity", alpha=1e-3, floor=50)).min() == 50


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_sizes_fall_by_the_power_of_the_rank(power: float) -> None:
    n = np.sort(sizes(skewed("power-law", power=power, clients=5, floor=3)))[::-1]
    law = np.arange(1, 6.0) ** -power
    np.testing.assert_allclose(n, len(Y) * law / law.sum(), atol=1)


def test_the_largest_give_what_others_lack_to_the_floor() -> None:
    assert sizes(skewed("power-law", power=30.0, floor=20)).min() == 20
    firsts = [int(sizes(skewed("power-law", s, clients=4)).argmax()) for s in range(200)]
    assert (np.abs(np.bincount(firsts, minlength=4) - 50) < 5 * (200 * 0.25 * 0.75) ** 0.5).all()


def test_a_client_holds_one_domain_and_those_of_a_domain_share_it_evenly() -> None:
    p = skewed("domains", clients=7)
    for k, rows in enumerate(of_clients(p)):
        assert set(HOSPITAL[rows]) == {[3, 7, 9][k % 3]}
    assert sizes(p).tolist() == [1050, 1225, 700, 1050, 1225, 700, 1050]
    assert sizes(skewed("domains", clients=3)).tolist() == [3150, 2450, 1400]


def test_thinning_keeps_of_each_client_a_power_of_its_rank() -> None:
    p = skewed("power-law", power=0.0, clients=10)
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


IMPOSSIBLE: list[tuple[Any, dict[str, Any], str]] = [  # what no partition can meet, and what is said
    (ws, {"ways": 11}, "ways is 11, but the data set has 10 classes"),
    (ws, {"clients": 1, "shots": 900}, "take fewer shots"),
    (ws, {"test_shots": 60}, r"test rows and has \d+: take fewer"),
    (dir_, {"clients": 701}, "need 7010 rows, but there are 7000: take 700 clients or fewer"),
    (lambda clients: iid(Y, clients, rng()), {"clients": 2334}, "take 2333 clients or fewer"),
    (fg, {"clients": 601, "floor": 10}, "but there are 6000: take fewer clients, a lower floor"),
    (fg, {"share": 0.01}, "need 100 rows, but there are 30: take fewer clients, .* larger share"),
    (fg, {"clients": 4, "floor": 1500}, r"the best of 5000 draws left one with \d+: take a lower floor"),
    (fg, {"clients": 300, "alpha": 100.0, "floor": 3}, r"300 clients share \d+ to \d+ rows a class: take fewer"),
    (nat, {"owners": 16}, "20 clients of 16 owners each need 320, but there are 300: take fewer clients"),
    (nat, {"share": 0.6}, "20 clients of 10 owners each need 200, but there are 180: .* or a larger share"),
    (partial(skewed, "shards"), {"shards": 351}, "20 clients of 351 shards each need 7020 rows, but there are 7000"),
    (partial(skewed, "shards"), {"clients": 2334}, "take 2333 clients or fewer"),
    (partial(skewed, "quantity"), {"floor": 351}, "need 7020 rows"),
    (partial(skewed, "domains"), {"clients": 2}, "for each of the 3 domains, but clients is 2: give --clients 3"),
    (partial(skewed, "domains"), {"clients": 3000}, r"needs 3 rows, .* with \d+ rows for 1000 clients, .*; take fewer"),
    (nat, {"owner": np.repeat(np.arange(40), 2), "owners": 1}, "owners have fewer: 0 with 2 rows for 1 client, .*, …"),
]


@pytest.mark.parametrize("i", range(len(IMPOSSIBLE)))
def test_what_no_partition_can_meet_is_refused(i: int) -> None:
    deal, changes, message = IMPOSSIBLE[i]
    with pytest.raises(UserError, match=message) as caught:
        deal(**changes)
    assert "\n" not in str(caught.value)
