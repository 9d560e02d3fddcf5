"""Trees with a client axis, and the size of what is sent."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.numbers import TIGHT, assert_same_numbers, copied, flat, randn
from torch.testing import assert_close

from fedtune.core.trees import (
    NOTHING,
    Ragged,
    Size,
    for_each_client,
    join,
    leaves,
    mean_over_clients,
    put,
    size,
    take,
    to_all,
    tree_map,
)


def tree(clients: int = 4, seed: int = 0) -> dict:
    present = torch.rand(clients, 5, generator=torch.Generator().manual_seed(seed)) > 0.5
    return {
        "a": randn(clients, 3, seed=seed),
        "b": {"n": torch.arange(clients) + seed, "r": Ragged(randn(clients, 5, 2, seed=seed + 1), present)},
    }


def test_leaves_are_every_tensor_in_order() -> None:
    t = tree()
    assert [x is y for x, y in zip(leaves(t), flat(t).values(), strict=True)] == [True] * 4


def test_tree_map_keeps_the_form_and_takes_several_trees() -> None:
    a, b = tree(seed=0), tree(seed=1)
    got = tree_map(lambda x, y: x * 1 + y * 1, a, b)
    assert isinstance(got["b"]["r"], Ragged) and got.keys() == a.keys()
    assert torch.equal(got["b"]["r"].values, a["b"]["r"].values + b["b"]["r"].values)


def test_take_and_put_are_inverse_and_change_nothing_they_are_given() -> None:
    t, new, at = tree(), tree(2, seed=3), torch.tensor([3, 1])
    kept = copied(flat(t))
    changed = put(t, at, new)
    assert_same_numbers(flat(t), kept)
    assert_same_numbers(flat(take(changed, at)), flat(new))
    rest = torch.tensor([0, 2])
    assert_same_numbers(flat(take(changed, rest)), flat(take(t, rest)))


def test_take_of_a_slice_is_a_view_and_of_a_tensor_a_copy() -> None:
    t = tree()
    assert take(t, slice(2))["a"].data_ptr() == t["a"].data_ptr()
    assert take(t, 1)["a"].shape == (3,) and torch.equal(take(t, 1)["b"]["r"].values, t["b"]["r"].values[1])
    assert take(t, torch.arange(4))["a"].data_ptr() != t["a"].data_ptr()


def test_join_puts_clients_one_after_another() -> None:
    a, b, c = tree(2), tree(1, seed=1), tree(3, seed=2)
    whole = join([a, b, c])
    for part, rows in ((a, slice(0, 2)), (b, slice(2, 3)), (c, slice(3, 6))):
        assert_same_numbers(flat(take(whole, rows)), flat(part))
    assert join([a]) is a


def test_to_all_gives_everyone_the_same_without_memory() -> None:
    one = take(tree(), 0)
    many = to_all(one, 1000)
    for name, leaf in flat(many).items():
        assert leaf.shape == (1000, *flat(one)[name].shape) and leaf.stride(0) == 0
        assert (leaf == flat(one)[name]).all()


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.float32])
def test_mean_over_clients_is_numpys_weighted_average(dtype: torch.dtype) -> None:
    t, weight = {"x": randn(6, 4, 3), "y": {"z": randn(6, seed=1)}}, torch.tensor([3, 0, 1, 8, 2, 2]).to(dtype)
    got = mean_over_clients(t, weight)
    for name, leaf in flat(t).items():
        want = np.average(leaf.numpy(), axis=0, weights=weight.double().numpy())
        assert flat(got)[name].dtype == torch.float64
        assert_close(flat(got)[name], torch.as_tensor(want), **TIGHT)


def test_the_mean_keeps_the_type_and_that_of_whole_numbers_is_rounded_not_cut() -> None:
    counters = torch.tensor([[10], [11], [11]])
    got = mean_over_clients({"n": counters}, torch.tensor([1, 1, 1]))["n"]
    assert got.dtype == torch.int64 and got.tolist() == [11]  # 10.67
    assert mean_over_clients({"n": counters}, torch.tensor([5, 1, 1]))["n"].tolist() == [10]  # 10.29
    assert_close(mean_over_clients(torch.ones(3, 2), torch.tensor([1, 2, 3])), torch.ones(2))  # float32


def test_size_counts_numbers_by_kind_and_bytes_by_width() -> None:
    message = {"w": torch.zeros(3, 5), "d": torch.zeros(3, 2).double(), "n": torch.zeros(3).long()}
    assert size(message) == Size(15 + 6, 3, 15 * 4 + 6 * 8 + 3 * 8)
    assert size({}) == NOTHING and size(to_all({"w": torch.zeros(5)}, 7)).floats == 35


@pytest.mark.parametrize(("entries", "bitmap"), [(1, 1), (8, 1), (9, 2), (10, 2), (17, 3)])
def test_a_ragged_counts_present_entries_and_each_clients_bitmap(entries: int, bitmap: int) -> None:
    present = torch.zeros(3, entries, dtype=torch.bool)
    present[0, 0] = present[2, entries - 1] = True
    real = size(Ragged(torch.zeros(3, entries, 4), present))
    assert real == Size(8, 0, 8 * 4 + 3 * bitmap)
    whole = size({"n": Ragged(torch.zeros(3, entries, dtype=torch.int64), present)})
    assert whole == Size(0, 2, 2 * 8 + 3 * bitmap)


def test_a_raggeds_bitmap_runs_over_all_its_entry_axes() -> None:
    present = torch.ones(2, 3, 5, dtype=torch.bool)
    assert size(Ragged(torch.zeros(2, 3, 5, 7), present)) == Size(210, 0, 840 + 2 * 2)  # 15 bits are 2 bytes
    assert size(Ragged(torch.zeros(3, 9), torch.ones(3, 9, dtype=torch.bool))) == Size(27, 0, 108 + 3 * 2)


def test_both_ways_to_run_all_clients_agree() -> None:
    def one(t: dict, x: torch.Tensor) -> dict:
        return {"r": Ragged(t["b"]["r"].values * x, t["b"]["r"].present), "s": (t["a"] @ t["a"]) * x}

    t, x = tree(), randn(4, seed=5)
    stack, loop = (for_each_client(one, how, t, x) for how in ("stack", "loop"))
    assert isinstance(stack["r"], Ragged) and isinstance(loop["r"], Ragged)
    for name, leaf in flat(loop).items():
        assert_close(flat(stack)[name], leaf, **TIGHT)
    assert_close(loop["s"], (t["a"] ** 2).sum(1) * x, **TIGHT)
