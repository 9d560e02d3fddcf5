"""Who takes part: the draws, and rounds in which nobody does."""

import json

import pytest
import torch
from support.helpers import CLOCK, DIGITS, play, random_federation, simulate
from support.numbers import assert_close_rows, assert_same_numbers, copied, numbers

from fedtune.core import randomness
from fedtune.engine.cohort import participants
from fedtune.engine.simulation import Seeds
from fedtune.experiment.experiment import Experiment

POISSON = DIGITS.override(participation=0.3, sampling="poisson")


def test_fixed_draws_are_the_first_of_the_rounds_permutation() -> None:
    sim = simulate("fedavg", DIGITS.override(participation=0.4), random_federation([2] * 10))
    for t in range(1, 20):
        order = torch.randperm(10, generator=randomness.stream(0, "participants", t))
        assert participants(sim.setup, t).tolist() == sorted(order[:4].tolist())


def test_poisson_draws_each_client_independently_with_probability_m_of_k() -> None:
    sim = simulate("fedavg", POISSON, random_federation([2] * 10))
    rounds = 4000
    drawn = torch.zeros(rounds, 10, dtype=torch.float64)
    for t in range(rounds):
        drawn[t, participants(sim.setup, t)] = 1
    q, sd = 0.3, (0.3 * 0.7 / rounds) ** 0.5
    assert (drawn.mean(0) - q).abs().max() < 4 * sd
    pairs = drawn.T @ drawn / rounds  # of two clients: q² if they are independent; without replacement 2/30
    off = pairs[~torch.eye(10, dtype=torch.bool)]
    assert (off - q**2).abs().max() < 5 * (q**2 * (1 - q**2) / rounds) ** 0.5
    assert drawn.sum(1).min() == 0 and abs(drawn.sum(1).var().item() - 10 * q * (1 - q)) < 0.2
    assert participants(sim.setup, 3).equal(participants(sim.setup, 3))


def test_poisson_with_all_clients_is_the_fixed_draw_and_auto_follows_privacy() -> None:
    data = random_federation([9, 5, 7])
    rows = [play(simulate("scaffold", DIGITS.override(sampling=how), data), 2) for how in ("fixed", "poisson")]
    assert rows[0] == rows[1]
    assert not DIGITS.is_poisson and DIGITS.override(privacy="client").is_poisson
    assert not DIGITS.override(privacy="client", sampling="fixed").is_poisson


def empty_round(sim) -> int:
    return next(t for t in range(1, 99) if not len(participants(sim.setup, t)))


@pytest.mark.parametrize("executor", ["stack", "loop"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedproto", "fedpft", "gfpl", "local"])
def test_a_round_without_clients_changes_nothing(name: str, executor: str) -> None:
    sim = simulate(name, POISSON, random_federation([9, 5, 7, 6]), executor=executor, groups=[[0, 2], [1, 3]])
    t = empty_round(sim)
    play(sim, t - 1)
    before, total = copied(numbers(sim.state)), sim.state.bytes
    (row,) = play(sim, 1)
    assert_same_numbers(numbers(sim.state), before)
    assert row["train_loss"] is None and row["up_bytes"] == row["down_bytes"] == 0 and sim.state.bytes == total
    assert sim.state.round == t and 0 <= row["val_acc"] <= 1 and json.dumps(row, allow_nan=False)
    later = play(sim, 3)
    assert [r["round"] for r in later] == [t + 1, t + 2, t + 3]


def test_empty_rounds_in_a_stack_of_seeds_give_the_numbers_of_single_runs() -> None:
    base, seeds = Experiment(algorithm="scaffold", scenario=POISSON.override(clients=4)), (0, 1, 2)
    data = {seed: random_federation([9, 5, 7, 6], seed=seed) for seed in seeds}
    runs = Seeds(base, {}, data, torch.float64)
    assert any(not len(participants(r.setup, t)) for r in runs.runs for t in (1, 2, 3, 4))
    together: list[dict] = [runs.steps() for _ in range(4)]
    for i, seed in enumerate(seeds):
        alone = simulate("scaffold", POISSON, data[seed], seed)
        stacked = [{n: v for n, v in rows[i].items() if n not in CLOCK} for rows in together]
        assert_close_rows(stacked, play(alone, len(together)))
