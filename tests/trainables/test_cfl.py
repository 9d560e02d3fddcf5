"""CFL: clients of two tasks part, and each half is FedAvg of its own; rounds by hand."""

import pytest
import torch
from sklearn.cluster import AgglomerativeClustering
from support.helpers import DIGITS, play, random_federation, record_uploads, simulate
from support.numbers import TIGHT, copied, randn
from torch.testing import assert_close

from fedtune.data.federation import Federation
from fedtune.trainables.cfl import second_half

ROWS = [6, 9, 7, 8]


def two_tasks() -> Federation:
    """Clients 1 and 3 call every class by the next one's name."""
    data = random_federation(ROWS)
    y = data.y.copy()
    for split in (data.train, data.val, data.test):
        for k in (1, 3):
            rows = split.rows[k, : split.counts[k]]
            y[rows] = (data.y[rows] + 1) % 4
    return data._replace(y=y)


@pytest.mark.parametrize("weighting", ["rows", "clients"])
def test_clients_of_two_tasks_part_and_each_half_is_averaged_by_itself(weighting: str) -> None:
    config = {"eps1": 10.0, "eps2": 0.01, "start": 2, "weighting": weighting}
    sim = simulate("cfl", DIGITS, two_tasks(), lr=0.1, local_epochs=3, **config)
    seen = record_uploads(sim)
    share = torch.tensor(ROWS if weighting == "rows" else [1] * 4, dtype=torch.float64)
    for t in range(1, 5):
        rows = play(sim, 1)
        apart = t > 2
        assert rows[0]["clusters_occupied"] == 1 + apart
        assert sim.state.server["cluster"].tolist() == ([0, 1, 0, 1] if apart else [0] * 4)
        for c, own in enumerate([[0, 2], [1, 3]] if apart else [[0, 1, 2, 3]]):
            for n, sent in seen[t - 1]["shared"].items():
                weights = share[own].view(-1, *[1] * (sent.ndim - 1))
                assert_close(sim.state.server["models"][n][c], (sent[own] * weights).sum(0) / share[own].sum(), **TIGHT)
    alone = copied(sim.state.server["models"])
    play(sim, 1)  # two clients are not split again
    assert sim.state.server["cluster"].tolist() == [0, 1, 0, 1]
    assert any((t != alone[n]).any() for n, t in sim.state.server["models"].items())


def test_a_cluster_splits_if_its_mean_move_is_shorter_and_one_longer_than_given() -> None:
    probe = simulate("cfl", DIGITS, two_tasks(), eps1=0.0, lr=0.1)
    seen, start = record_uploads(probe), copied(probe.state.server["shared"])
    play(probe, 1)
    moves = torch.cat([(t - start[n]).flatten(1) for n, t in seen[0]["shared"].items()], 1)
    mean = (moves * torch.tensor(ROWS, dtype=torch.float64)[:, None]).sum(0).norm().item() / sum(ROWS)
    longest = moves.norm(dim=1).max().item()
    for eps1, eps2, splits in (
        (1.01 * mean, 0.99 * longest, True),
        (0.99 * mean, 0.99 * longest, False),
        (1.01 * mean, 1.01 * longest, False),
    ):
        sim = simulate("cfl", DIGITS, two_tasks(), eps1=eps1, eps2=eps2, start=0, lr=0.1)
        assert play(sim, 1)[0]["clusters_occupied"] == 1 + splits


def test_who_sits_a_split_out_stays_with_the_first_half() -> None:
    scenario = DIGITS.override(participation=0.75)
    sim = simulate("cfl", scenario, two_tasks(), eps1=10.0, eps2=0.01, start=0, lr=0.1, local_epochs=3)
    play(sim, 1)
    out = set(range(4)) - set(sim.state.server["cluster"].nonzero()[:, 0].tolist())
    assert len(out) >= 2 and len(sim.state.server["cluster"].unique()) == 2


@pytest.mark.parametrize("seed", range(6))
def test_two_groups_are_those_of_the_authors_library(seed: int) -> None:
    moves = randn(3 + 2 * seed, 5, seed=seed)
    unit = moves / moves.norm(dim=1, keepdim=True)
    linkage = AgglomerativeClustering(metric="precomputed", linkage="complete")
    of = linkage.fit((1 - unit @ unit.T).numpy()).labels_
    assert second_half(moves).tolist() == (of != of[0]).tolist()


def test_moves_as_far_from_one_another_as_any_are_two_groups_too() -> None:
    assert 0 < int(second_half(torch.eye(3)).sum()) < 3
