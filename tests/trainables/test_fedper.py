"""FedPer: the body is everybody's, the head one's own."""

from __future__ import annotations

import numpy as np
import torch
from support.helpers import DIGITS, play, random_federation, simulate
from support.numbers import TIGHT, assert_same_numbers
from torch.testing import assert_close


def test_in_its_first_round_it_trains_as_fedavg_and_averages_the_body_alone() -> None:
    data = random_federation([5, 9, 6])
    per, avg = (simulate(name, DIGITS, data) for name in ("fedper", "fedavg"))
    play(per, 1), play(avg, 1)
    whole = avg.state.server["shared"]
    assert set(per.state.server["shared"]) == {n for n in whole if n.startswith("body")}
    assert_same_numbers(per.state.server["shared"], {n: t for n, t in whole.items() if n.startswith("body")})
    # FedAvg's head is the mean, by rows, of the heads that FedPer's clients kept
    for name, heads in per.state.groups[0].tensors.items():
        assert name.startswith("head") and (heads[0] != heads[1]).any()
        want = np.average(heads.numpy(), axis=0, weights=[5, 9, 6])
        assert_close(whole[name], torch.as_tensor(want), **TIGHT)


def test_only_the_body_is_sent() -> None:
    sim = simulate("fedper", DIGITS, random_federation([5, 9, 6]))
    row = play(sim, 1)[0]
    body = sum(t.numel() for t in sim.state.server["shared"].values())
    assert row["up_floats"] == row["down_floats"] == 3 * body and row["up_ints"] == 3
