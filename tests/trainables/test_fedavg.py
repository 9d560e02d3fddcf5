"""FedAvg: the mean by hand, counters included."""

import numpy as np
import torch
from support.helpers import BATCHNORM, DIGITS, play, random_federation, record_uploads, simulate
from support.numbers import TIGHT, assert_close_numbers, assert_close_rows, numbers
from torch.testing import assert_close

from fedtune.engine.engine import run_rounds
from fedtune.engine.seed_stack import SeedStack


def test_the_server_holds_the_mean_weighted_by_rows_counters_included() -> None:
    sim = simulate("fedavg", BATCHNORM, random_federation([3, 17, 8]))  # 1, 5 and 2 steps
    seen = record_uploads(sim)
    sim.state, _ = run_rounds(SeedStack((sim.setup,)), {0: sim.state})[0]
    (up,) = seen
    assert up["rows"].tolist() == [3, 17, 8]
    for name, t in up["shared"].items():
        want = np.average(t.double().numpy(), axis=0, weights=[3, 17, 8])
        got = sim.state.server["shared"][name]
        if name.endswith("num_batches_tracked"):
            assert t.tolist() == [1, 5, 2] and got.dtype == torch.int64
            assert got.item() == round((3 * 1 + 17 * 5 + 8 * 2) / 28) == 4
        else:
            assert_close(got, torch.as_tensor(want), **TIGHT)
            assert (t[0] != t[1]).any() or name in ("body.0.bias", "body.3.bias")  # BatchNorm takes their pull away


def test_clients_with_the_same_rows_and_whole_batches_are_one_client() -> None:
    one = random_federation([4])
    many = one._replace(
        **{
            name: type(s)(np.repeat(s.rows, 5, axis=0), np.repeat(s.counts, 5))
            for name, s in (("train", one.train), ("val", one.val), ("test", one.test))
        }
    )
    a, b = (simulate("fedavg", DIGITS, data, momentum=0.0) for data in (one, many))
    rows, wanted = play(b, 3), play(a, 3)
    assert_close_numbers(numbers(b.state), numbers(a.state))
    quality = ("val_acc", "val_loss", "test_acc", "train_loss")
    assert_close_rows(*([{n: r[n] for n in quality} for r in x] for x in (rows, wanted)))


def test_weights_go_both_ways_and_nothing_else() -> None:
    sim = simulate("fedavg", BATCHNORM, random_federation([5, 6, 7]))
    row = play(sim, 1)[0]
    state = sum(t.numel() for t in sim.state.server["shared"].values() if t.is_floating_point())
    assert row["down_floats"] == row["up_floats"] == 3 * state
    assert row["down_ints"] == 3 * 2 and row["up_ints"] == 3 * 2 + 3  # BatchNorm's counters; the rows
