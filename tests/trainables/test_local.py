"""Local: nothing is exchanged, and every client is what it would be without the others."""

from __future__ import annotations

import torch
from support.helpers import DIGITS, play, random_federation, simulate
from support.numbers import assert_same_numbers, numbers

from fedtune.experiment.algorithm import Phase


def test_nothing_is_sent() -> None:
    sim = simulate("local")
    for row in play(sim, 2):
        assert {row[n] for n in row if n.startswith(("up_", "down_"))} == {0} and row["comm_mb"] == 0
    assert sim.state.server == {}
    actions = sim.setup.algorithm.round(sim.setup.task_in(1))
    assert len(actions) == 1 and isinstance(actions[0], Phase)


def test_other_clients_data_change_nothing() -> None:
    one, other = random_federation([7, 9, 5]), random_federation([7, 9, 5])
    for k in (1, 2):
        other.x[other.train.rows[k]] *= -3
    a, b = (simulate("local", DIGITS, data, executor="loop") for data in (one, other))
    play(a, 3), play(b, 3)
    mine = [{n: t for n, t in numbers(s.state).items() if n.startswith("client 0")} for s in (a, b)]
    assert_same_numbers(*mine)
    assert not torch.equal(numbers(a.state)["client 1/head.weight"], numbers(b.state)["client 1/head.weight"])
