"""What clients see of their rows: the properties of every shift, their addresses, and where nothing changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.ndimage import rotate

from fedtune.data import datasets
from fedtune.data.federation import Federation
from fedtune.data.shifts import concept, turn
from fedtune.experiment import partitioning
from fedtune.experiment.scenario import Scenario

DIGITS = datasets.load("digits")
SPLITS = ("train", "val", "test")


def made(seed: int = 0, **fields: Any) -> Federation:
    base = {"partition": "iid", "clients": 8, "model": "mlp"}
    return partitioning.partition(DIGITS, Scenario(**(base | fields)), seed)


def rows(f: Federation, k: int, split: str) -> np.ndarray:
    table = getattr(f, split)
    return table.rows[k, : table.counts[k]]


def changed(f: Federation, base: Federation, k: int, split: str) -> float:
    """The share of a client's labels that differ."""
    own = rows(f, k, split)
    return float((f.y[own] != base.y[own]).mean())


@pytest.mark.parametrize(
    "nothing",
    [
        {"rotation": 90.0, "swaps": 3, "groups": 1},
        {"rotation": 0.0, "feature_noise": 0.0, "swaps": 0, "label_noise": 0.0, "thinning": 0.0, "groups": 3},
        {"label_noise": 0.5, "noisy_clients": 0.0},
        {"rotation": 360.0, "groups": 8},
    ],
)
@pytest.mark.parametrize("base", ["iid", "shards", "ways-shots"])
def test_in_the_limit_every_shift_is_the_base_bit_for_bit(base: str, nothing: dict[str, Any]) -> None:
    got, want = made(partition=base, **nothing), made(partition=base)
    np.testing.assert_array_equal(got.x, want.x)
    np.testing.assert_array_equal(got.y, want.y)
    for split in SPLITS:
        for a, b in zip(getattr(got, split), getattr(want, split), strict=True):
            np.testing.assert_array_equal(a, b)


EVERYTHING = dict(
    rotation=45.0,
    feature_noise=0.5,
    swaps=2,
    groups=4,
    label_noise=0.3,
    label_noise_spread=0.2,
    noisy_clients=0.7,
    thinning=0.5,
)


@pytest.mark.parametrize("base", ["dirichlet", "shards", "power-law"])
def test_all_shifts_together_on_any_partition_are_drawn_from_the_seed_alone(base: str) -> None:
    a, b, c = (made(seed, partition=base, **EVERYTHING) for seed in (1, 1, 2))
    np.testing.assert_array_equal(a.x, b.x)
    np.testing.assert_array_equal(a.y, b.y)
    assert a.x.shape != c.x.shape or not np.array_equal(a.x, c.x)
    assert a.x.dtype == np.float32 and a.y.dtype == np.int64 and np.isfinite(a.x).all()
    plain = made(1, partition=base)
    for k in range(8):  # who holds which rows for validation and test does not depend on what is seen of them
        for split in ("val", "test"):
            assert len(rows(a, k, split)) == len(rows(plain, k, split))


def test_a_groups_images_are_turned_by_quarters_and_labels_stay() -> None:
    base, f = made(clients=10), made(clients=10, rotation=90.0, groups=4)
    for k, group in enumerate([0, 0, 0, 1, 1, 2, 2, 2, 3, 3]):
        for split in SPLITS:
            own = rows(f, k, split)
            np.testing.assert_array_equal(f.x[own], np.rot90(base.x[own], group, axes=(2, 3)))
    np.testing.assert_array_equal(f.y, base.y)


def test_other_angles_turn_the_same_way_and_keep_what_is_even() -> None:
    x = DIGITS.x[:5]
    np.testing.assert_array_equal(turn(x, 0.0), x)
    np.testing.assert_array_equal(turn(x, 90.0)[0, 0], np.rot90(x[0, 0]))
    np.testing.assert_allclose(turn(x, 90.0 + 1e-9), turn(x, 90.0), atol=1e-5)
    np.testing.assert_allclose(turn(x, 30.0)[2, 0], rotate(x[2, 0], 30, reshape=False, order=1, mode="nearest"))
    np.testing.assert_allclose(turn(np.full((1, 2, 6, 6), 1.5, np.float32), 17.0), 1.5, rtol=1e-6)
    wide = np.arange(12.0, dtype=np.float32).reshape(1, 1, 2, 6)
    assert turn(wide, 90.0).shape == wide.shape
    np.testing.assert_array_equal(turn(wide, 180.0)[0, 0], wide[0, 0, ::-1, ::-1])


def test_noise_grows_evenly_over_the_clients_from_none() -> None:
    base, f = made(), made(feature_noise=2.0)
    spread = []
    for k in range(8):
        own = np.concatenate([rows(f, k, split) for split in SPLITS])
        spread.append((f.x[own] - base.x[own]).std())
    assert spread[0] == 0
    np.testing.assert_allclose(spread[1:], 2.0 * np.arange(1, 8) / 7, rtol=0.02)
    np.testing.assert_array_equal(f.y, base.y)


def test_a_client_draws_its_noise_from_its_own_address() -> None:
    """Twice the noise is the same draws times two: only client and seed are in the address."""
    base, one, two = made(), made(feature_noise=1.0), made(feature_noise=2.0)
    np.testing.assert_allclose(two.x - base.x, 2 * (one.x - base.x), atol=1e-4)


@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_training_labels_are_wrong_in_the_share_asked_for_and_no_others(spread: float) -> None:
    base, f = made(), made(label_noise=0.3, label_noise_spread=spread)
    shares = [changed(f, base, k, "train") for k in range(8)]
    half = 0.5 / min(len(rows(f, k, "train")) for k in range(8))
    assert all(0.3 - spread - half <= share <= 0.3 + spread + half for share in shares)
    assert (np.ptp(shares) > 0.02) == bool(spread)
    assert all(changed(f, base, k, split) == 0 for k in range(8) for split in ("val", "test"))
    np.testing.assert_array_equal(f.x, base.x)


def test_validation_labels_are_wrong_only_if_asked_for_and_test_labels_never() -> None:
    base, f = made(), made(label_noise=1.0, noisy_splits="train+val")
    for k in range(8):
        assert [changed(f, base, k, split) for split in SPLITS] == [1, 1, 0]
    wrong = np.concatenate([rows(f, k, "train") for k in range(8)])
    by = (f.y[wrong] - base.y[wrong]) % 10  # every other class is as likely
    counts = np.bincount(by, minlength=10)
    assert counts[0] == 0 and (np.abs(counts[1:] - len(by) / 9) < 5 * (len(by) / 9) ** 0.5).all()


def test_more_noise_flips_the_same_rows_and_more() -> None:
    base, some, more = made(), made(label_noise=0.2), made(label_noise=0.5)
    wrong = some.y != base.y
    np.testing.assert_array_equal(more.y[wrong], some.y[wrong])
    assert ((more.y != base.y) | ~wrong).all()


def test_a_share_of_the_clients_is_noisy() -> None:
    noisy = sum(
        changed(made(s, label_noise=0.5, noisy_clients=0.25), made(s), k, "train") > 0
        for s in range(15)
        for k in range(8)
    )
    assert abs(noisy - 30) < 5 * (120 * 0.25 * 0.75) ** 0.5


def test_a_group_swaps_pairs_of_labels_everywhere_and_the_first_none() -> None:
    base, f = made(), made(swaps=2, groups=4)
    np.testing.assert_array_equal(f.x, base.x)
    for k in range(8):
        names = concept(k // 2, 2, 10, 0)
        np.testing.assert_array_equal(names[names], np.arange(10))  # swapped twice is as before
        assert (names != np.arange(10)).sum() == (4 if k // 2 else 0)
        for split in SPLITS:
            own = rows(f, k, split)
            np.testing.assert_array_equal(f.y[own], names[base.y[own]])
    assert len({tuple(concept(g, 2, 10, 0)) for g in range(4)}) == 4


def test_classes_left_out_stay_out_of_swaps_and_flips() -> None:
    f = made(skip_classes=3, label_noise=1.0, swaps=3, groups=2)
    assert set(f.y) == set(range(7))
