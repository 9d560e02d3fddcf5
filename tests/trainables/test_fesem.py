"""FeSEM: the E and the M step, the first centres and whole rounds by hand."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from support.helpers import DIGITS, next_task, play, random_federation, record_uploads, simulate
from support.numbers import TIGHT, assert_close_numbers, randn
from torch import Tensor
from torch.testing import assert_close

from fedtune.core import randomness
from fedtune.engine import engine
from fedtune.experiment.algorithm import Task
from fedtune.experiment.scenario import Scenario
from fedtune.trainables.fesem import FeSEM, seeds, squared_distance_to_centres, weights

TASK = Task(classes=4, features=3, clients=6, batch=4, seed=0)


def column(*values: float) -> dict[str, Tensor]:
    return {"w": torch.tensor([[v] for v in values], dtype=torch.float64)}


def told(points: dict[str, Tensor], rows: list[int], ids: list[int]) -> dict:
    return {"shared": points, "rows": torch.tensor(rows), "ids": torch.tensor(ids)}


def server_with(centres: dict[str, Tensor]) -> dict:
    start = {n: t.new_full(t.shape[1:], 77) for n, t in centres.items()}
    return FeSEM().init(TASK) | {"shared": start, "centres": centres}


def test_an_e_and_an_m_step_on_three_points() -> None:
    """0 and 1 are nearer to 0.2, 10 is nearer to 8; the first two have 1 and 3 rows."""
    server = server_with(column(0.2, 8.0))
    after = FeSEM(clusters=2).aggregate(server, told(column(0.0, 1.0, 10.0), [1, 3, 2], [0, 2, 5]), TASK)
    assert_close(after["centres"], column((1 * 0 + 3 * 1) / 4, 10.0), **TIGHT)
    assert after["cluster"].tolist() == [0, -1, 0, -1, -1, 1]
    assert_close(after["shared"]["w"].item(), (0 + 3 + 20) / 6, **TIGHT)  # over everything: FedAvg's
    assert FeSEM().report(after) == {"clusters_occupied": 2}
    assert server["cluster"].tolist() == [-1] * 6 and "centres" in server  # nothing given was changed


def test_a_cluster_without_a_client_of_the_round_keeps_its_centre_and_its_clients() -> None:
    alg = FeSEM(clusters=3)
    after = alg.aggregate(server_with(column(0.2, 8.0, 100.0)), told(column(9.0, 99.0), [1, 1], [1, 4]), TASK)
    assert_close(after["centres"], column(0.2, 9.0, 99.0), **TIGHT)
    again = alg.aggregate(after, told(column(0.0, 9.0), [1, 1], [4, 5]), TASK)
    assert_close(again["centres"], column(0.0, 9.0, 99.0), **TIGHT)  # 100's is empty, and stays at 99
    assert again["cluster"].tolist() == [-1, 1, -1, -1, 0, 1] and alg.report(again) == {"clusters_occupied": 2}


def test_the_distance_is_over_all_weights_and_no_running_statistic() -> None:
    net = {"body.0.weight": randn(3, 2, 4), "head.bias": randn(3, 5, seed=1)}
    norm = {
        "body.1.running_mean": 1e3 * randn(3, 2, seed=2),
        "body.1.running_var": 1e3 + randn(3, 2, seed=3),
        "body.1.num_batches_tracked": torch.tensor([1, 500, 9000]),
    }
    got = squared_distance_to_centres(weights(net | norm), weights(net | norm)[:2])
    for i in range(3):
        for j in range(2):
            want = sum(np.square(t[i].numpy() - t[j].numpy()).sum() for t in net.values())
            assert_close(got[i, j].item(), want, **TIGHT)
    alone = {"head.bias": torch.tensor([[0.0], [1.0], [10.0]], dtype=torch.float64)} | norm
    server = server_with({n: t[[0, 2]] for n, t in alone.items()})
    after = FeSEM(clusters=2).aggregate(server, told(alone, [1, 3, 2], [0, 1, 2]), TASK)
    assert after["cluster"][:3].tolist() == [0, 0, 1]
    assert after["centres"]["body.1.num_batches_tracked"].tolist() == [round((1 + 3 * 500) / 4), 9000]
    mean = (norm["body.1.running_mean"][0] + 3 * norm["body.1.running_mean"][1]) / 4
    assert_close(after["centres"]["body.1.running_mean"][0], mean, **TIGHT)


def test_a_client_gets_its_clusters_centre_and_before_it_has_one_the_mean() -> None:
    start = {"cluster": torch.full((6,), -1), "shared": {"w": torch.tensor([5.0])}}
    ids = torch.tensor([0, 2, 3])
    alg = FeSEM(clusters=2)
    assert alg.broadcast(start, ids, TASK)["shared"]["w"].tolist() == [[5.0]] * 3
    later = start | {"centres": {"w": torch.tensor([[1.0], [2.0]])}, "cluster": torch.tensor([1, 0, -1, 0, 1, -1])}
    assert alg.broadcast(later, ids, TASK)["shared"]["w"].tolist() == [[2.0], [5.0], [1.0]]


def test_first_centres_are_drawn_by_the_squared_distance_to_those_before() -> None:
    """Points 0, 1, 3: any is first; the next by squared distance, e.g. after 0 one of 1 and 3 as 1 to 9."""
    points, draws = column(0.0, 1.0, 3.0)["w"], 4000
    law = {(0, 1): 1 / 10, (0, 2): 9 / 10, (1, 0): 1 / 5, (1, 2): 4 / 5, (2, 0): 9 / 13, (2, 1): 4 / 13}
    counts = Counter(tuple(seeds(points, 2, randomness.stream("law", i)).tolist()) for i in range(draws))
    assert set(counts) == set(law)
    for pair, p in law.items():
        p /= 3
        assert abs(counts[pair] / draws - p) < 4 * (p * (1 - p) / draws) ** 0.5, pair
    third = Counter(tuple(seeds(points, 3, randomness.stream("law", i)).tolist()) for i in range(200))
    assert all(sorted(chosen) == [0, 1, 2] for chosen in third)  # what is a centre is at distance 0


def test_the_third_centre_is_drawn_by_the_nearest_of_the_two_before() -> None:
    points = column(0.0, 10.0, 1.0, 8.0)["w"]
    counts = Counter(
        tuple(s[2:].tolist())
        for i in range(6000)
        if set((s := seeds(points, 3, randomness.stream("third", i)))[:2].tolist()) == {0, 1}
    )
    n = counts.total()
    assert n > 1000 and abs(counts[(2,)] / n - 1 / 5) < 4 * (0.16 / n) ** 0.5  # 1² to 2²


def test_first_centres_come_from_their_own_stream() -> None:
    points = randn(20, 7)
    drawn = [seeds(points, 4, randomness.stream(seed, "clusters")).tolist() for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_fewer_points_than_centres_fill_up_with_copies_that_stay_empty() -> None:
    for points, different in ((column(1.0, 4.0), 2), (column(3.0, 3.0, 3.0), 1)):
        chosen = seeds(points["w"], 5, randomness.stream("few"))
        assert len(chosen) == 5 and len(set(points["w"][chosen].flatten().tolist())) == different
        m = len(points["w"])
        after = FeSEM(clusters=5).aggregate(
            FeSEM().init(TASK) | {"shared": {"w": torch.zeros(1).double()}}, told(points, [2] * m, list(range(m))), TASK
        )
        assert FeSEM().report(after) == {"clusters_occupied": different}
        assert_close(after["centres"]["w"][after["cluster"][:m]], points["w"], **TIGHT)
        assert after["centres"]["w"].shape == (5, 1)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_is_left_for_the_engine_to_find(bad: float) -> None:
    points = column(0.0, bad, 3.0, 4.0)
    assert set(seeds(points["w"], 3, randomness.stream("bad")).tolist()) <= {0, 1, 2, 3}
    server = FeSEM().init(TASK) | {"shared": {"w": torch.zeros(1).double()}}
    after = FeSEM(clusters=3).aggregate(server, told(points, [1] * 4, [0, 1, 2, 3]), TASK)
    assert not after["shared"]["w"].isfinite().all()


@pytest.mark.parametrize("model", ["mlp", "fedgen-cnn"])
def test_rounds_with_some_of_the_clients_by_hand(model: str) -> None:
    scenario = Scenario(model=model, features=8, participation=0.5)
    sim = simulate("fesem", scenario, random_federation([5, 9, 7, 4, 12, 6]), clusters=2, lr=0.3)
    seen = record_uploads(sim)
    centres: np.ndarray = np.zeros(0)
    cluster = np.full(6, -1)
    for t in range(1, 6):
        row, up = play(sim, 1)[0], seen[t - 1]
        ids, n = up["ids"].numpy(), up["rows"].numpy()
        assert ids.tolist() == engine.participants(sim.setup, t).tolist()
        moving = [name for name, _ in sim.state.groups[0].net.named_parameters()]
        points = np.concatenate([up["shared"][name].numpy().reshape(3, -1) for name in moving], 1)
        if t == 1:
            first = seeds(torch.as_tensor(points), 2, randomness.stream(0, "clusters")).tolist()
            assert len(set(first)) == 2
            centres = points[first]
        nearest = np.array([np.argmin([np.linalg.norm(p - c) for c in centres]) for p in points])
        for k in range(2):
            if (nearest == k).any():
                centres[k] = np.average(points[nearest == k], axis=0, weights=n[nearest == k])
        cluster[ids] = nearest
        server = sim.state.server
        got = np.concatenate([server["centres"][name].numpy().reshape(2, -1) for name in moving], 1)
        assert_close(got, centres, **TIGHT)
        assert server["cluster"].tolist() == cluster.tolist()
        assert row["clusters_occupied"] == len({c for c in cluster if c >= 0})
        mean = np.average(points, axis=0, weights=n)
        assert_close(np.concatenate([server["shared"][name].numpy().ravel() for name in moving]), mean, **TIGHT)
        received = sim.setup.algorithm.broadcast(server, torch.arange(6), next_task(sim))["shared"]
        own = np.concatenate([received[name].numpy().reshape(6, -1) for name in moving], 1)
        assert_close(own, np.stack([mean if c < 0 else centres[c] for c in cluster]), **TIGHT)
    assert (cluster >= 0).any()


def two_kinds() -> Any:
    """Clients 0, 2, 4 and 1, 3, 5 see the same pictures, but the latter name them the other way round."""
    data = random_federation([24] * 6, total=2, other=12)
    y = data.y.copy()
    for split in (data.train, data.val, data.test):
        for k in (1, 3, 5):
            rows = split.rows[k, : split.counts[k]]
            y[rows] = 1 - y[rows]
    return data._replace(y=y)


def test_clients_of_two_kinds_find_each_other_and_do_better_than_with_one_model() -> None:
    scenario, config = Scenario(model="mlp", features=12), {"lr": 0.1, "local_epochs": 5, "momentum": 0.0}
    sem = simulate("fesem", scenario, two_kinds(), clusters=2, **config)
    avg = simulate("fedavg", scenario, two_kinds(), **config)
    rows, plain = play(sem, 5), play(avg, 5)
    cluster = sem.state.server["cluster"].tolist()
    assert cluster[0::2] == [cluster[0]] * 3 and cluster[1::2] == [1 - cluster[0]] * 3
    assert rows[-1]["test_acc"] > 0.9 and plain[-1]["test_acc"] < 0.7


def test_fewer_clients_than_clusters_play() -> None:
    sim = simulate("fesem", DIGITS, random_federation([5, 9]), clusters=5)
    rows = play(sim, 3)
    assert [row["clusters_occupied"] for row in rows] == [2, 2, 2]
    alone = simulate("local", DIGITS, random_federation([5, 9]))
    play(alone, 3)  # each in a cluster of its own
    for k, c in enumerate(sim.state.server["cluster"].tolist()):
        own = {n: t[c] for n, t in sim.state.server["centres"].items()}
        assert_close_numbers(own, {n: t[k] for n, t in alone.state.groups[0].tensors.items()})
