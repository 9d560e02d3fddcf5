"""What a round is scored by, against scikit-learn on each client's own rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, log_loss, recall_score
from support.helpers import DIGITS, TIGHT, random_federation
from torch.testing import assert_close

from fedtune.core.errors import Diverged
from fedtune.core.trees import Tree, take
from fedtune.engine import chunks, evaluation
from fedtune.engine.simulation import Seeds, Simulation
from fedtune.experiment import partitioning
from fedtune.experiment.algorithm import Model
from fedtune.experiment.experiment import Experiment
from fedtune.trainables.fedavg import FedAvg

OWNED = [[0, 1, 2, 3], [1], [0, 3], [2, 3]]
Rows = list[tuple[np.ndarray, np.ndarray]]  # of each client: labels and probabilities


def scored(
    executor: str, monkeypatch: pytest.MonkeyPatch, rule: str = "personal", some: int = 0, algorithm: str = "fedavg"
) -> Simulation:
    """Three rounds, with clients of unlike sizes and classes, scored in chunks."""
    monkeypatch.setattr(chunks, "ROWS_AT_ONCE", 9)
    scenario = DIGITS.override(clients=4, rounds=3, evaluation=rule, eval_clients=some, dataset="digits")
    data = random_federation([9, 4, 6, 5], OWNED, other=4)
    short = data.test._replace(counts=np.array([4, 1, 3, 2]))
    sim = Simulation(
        Experiment(algorithm=algorithm, scenario=scenario, executor=executor),
        {},
        data._replace(test=short),
        torch.float64,
    )
    for _ in range(3):
        sim.step()
    return sim


def by_hand(sim: Simulation, split: str) -> Rows:
    """Every scored client's labels and probabilities on its own rows, one client after another."""
    f, (g,) = sim.setup.federation, sim.state.groups
    g.net.eval()
    table, found = getattr(f, split), []
    for k in sim.setup.scored_clients().tolist():
        rows = table.rows[k, : int(table.counts[k])]
        model = Model(g.net, take(g.tensors, k) | sim.state.server.get("shared", {}))
        scores = sim.setup.algorithm.predict(model, f.x[rows], {})
        assert isinstance(scores, torch.Tensor)
        found.append((f.y[rows].numpy(), scores.softmax(1).detach().numpy()))
    return found


def expected(split: str, clients: Rows, classes: int) -> dict[str, float]:
    """The metrics of a split, by scikit-learn."""
    said = [(y, p.argmax(1), p) for y, p in clients]
    acc = np.array([accuracy_score(y, z) for y, z, _ in said])
    recalls = [recall_score(y, z, labels=np.unique(y), average="macro", zero_division=0) for y, z, _ in said]
    losses = [log_loss(y, p, labels=np.arange(classes)) for y, _, p in said]
    every = [np.concatenate(both) for both in zip(*[(y, z) for y, z, _ in said], strict=True)]
    return {
        f"{split}_acc": acc.mean(),
        f"{split}_acc_std": acc.std(),
        f"{split}_acc_lowest": acc.min(),
        f"{split}_acc_worst10": acc.min(),
        f"{split}_acc_rows": accuracy_score(*every),
        f"{split}_acc_balanced": np.mean(recalls),
        f"{split}_loss": np.mean(losses),
        f"{split}_f1": np.mean([f1_score(y, z, average="macro") for y, z, _ in said]),
    }


@pytest.mark.parametrize(
    ("algorithm", "executor", "some", "rule"),
    [
        ("fedavg", "stack", 0, "personal"),
        ("fedper", "loop", 0, "personal"),
        ("local", "stack", 0, "personal"),
        ("fedavg", "stack", 3, "personal"),
        ("fedavg", "stack", 0, "pooled"),  # all rows are one client's
    ],
)
def test_every_metric_is_scikit_learns_on_the_clients_own_rows(
    algorithm: str, executor: str, some: int, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = scored(executor, monkeypatch, rule, some, algorithm)
    row = evaluation.score(sim.setup, sim.state).row
    for split in ("val", "test"):
        clients = by_hand(sim, split)
        if rule == "pooled":
            clients = [tuple(np.concatenate(part) for part in zip(*clients, strict=True))]  # type: ignore[misc]
            assert row[f"{split}_acc_std"] == 0 and row[f"{split}_acc"] == row[f"{split}_acc_rows"]
        for name, value in expected(split, clients, sim.setup.task.classes).items():
            assert_close(row[name], float(value), **TIGHT, msg=name)


@pytest.mark.parametrize("model, fields", [("cnn8", {}), ("mlp", {"dataset": "digits"})])
def test_padding_that_is_left_out_changes_no_bit(model: str, fields: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients with about as many rows are scored together; sums over rows round as if all had been padded alike."""
    scenario = DIGITS.override(clients=9, partition="dirichlet", alpha=0.5, model=model, **fields)
    sim = Simulation(Experiment(algorithm="fedavg", scenario=scenario), {}, partitioning.make(scenario, 0))
    sim.step()
    found = {}
    for band in (1, 8, 10**9):
        monkeypatch.setattr(chunks, "BAND", band)
        chunks._BANDS.clear()
        found[band] = evaluation.score(sim.setup, sim.state).row
        bands, *_ = next(iter(next(iter(chunks._BANDS.values())).values()))
        assert (len(bands) == 1) == (band == 10**9)
    assert found[1] == found[8] == found[10**9]


@pytest.mark.parametrize("counts", [[5], [30, 3], [40, 39, 8, 7, 3], [240, 7, 100, 20, 33, 90, 90, 8, 1]])
def test_bands_hold_every_client_with_its_rows(counts: list[int]) -> None:
    for part in (slice(None), torch.arange(len(counts) // 2, len(counts))):
        mine = torch.tensor(counts)[part]
        bands = chunks.bands_of(torch.tensor(counts), part)
        clients = torch.cat([torch.arange(len(counts))[of] for of, *_ in bands])
        assert clients.sort().values.equal(torch.arange(len(counts))[part])
        for of, rows, longest in bands:
            own = torch.tensor(counts)[of]
            assert len(own) > 1 or len(mine) == 1
            assert own.max() <= rows <= longest == mine.max()
            assert (longest - rows) % chunks.STEP == 0 and rows >= min(longest, chunks.STEP)
        padded = sum(rows * len(torch.tensor(counts)[of]) + chunks.BAND for of, rows, _ in bands)
        assert padded <= chunks.BAND + len(mine) * mine.max()


# who shares a model computes the rows of all classes for two clients, who tunes or keeps a part for all; what clients
# keep between rounds tells them apart only where `predict` uses it, as FedPHP's does, and MOON's and FedDyn's do not
SCORED = {"fedavg": 2, "fedgen": 2, "fedensemble": 2, "ccvr": 2, "moon": 2, "feddyn": 2}
SCORED |= {"fedper": 6, "fedavgft": 6, "fedbn": 6, "local": 6, "fedphp": 6}


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("algorithm", SCORED)
def test_clients_that_are_the_same_are_scored_on_the_same_rows_once(
    algorithm: str, seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every figure is the same to the last bit as if each client were scored."""
    scenario = DIGITS.override(clients=6, rounds=2, all_classes=40, model="fedgen-cnn")
    data, representatives = [partitioning.make(scenario, seed) for seed in range(seeds)], evaluation._representatives
    counted: list[int] = []

    def counting(tree: Tree, runs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        who, of_each = representatives(tree, runs)
        counted.append(len(who))
        return who, of_each

    def rows_with(law: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> pd.DataFrame:
        monkeypatch.setattr(evaluation, "_representatives", law)
        sim = Seeds(Experiment(algorithm=algorithm, scenario=scenario), {}, dict(enumerate(data)))
        rows = pd.DataFrame([sim.step() for _ in range(scenario.rounds)])
        return rows.drop(columns=["seconds", "eval_seconds"])

    every = rows_with(lambda tree, runs: (torch.arange(len(runs)), torch.arange(len(runs))))
    pd.testing.assert_frame_equal(rows_with(counting), every, check_exact=True)
    assert sum(counted) == scenario.rounds * seeds * SCORED[algorithm] and every["test_acc_all"].gt(0).all()


def test_who_draws_when_predicting_is_scored_client_by_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that are the same draw from streams of their own."""

    def drawing(alg: FedAvg, m: Model, x: torch.Tensor, received: dict) -> torch.Tensor:
        return torch.rand(len(x), 10, dtype=x.dtype)

    def never(*_: object) -> None:
        raise AssertionError("two clients stand for all")

    monkeypatch.setattr(FedAvg, "predict", drawing)
    monkeypatch.setattr(evaluation, "_representatives", never)
    scenario = DIGITS.override(clients=6, rounds=1, all_classes=40)
    row = Simulation(Experiment(algorithm="fedavg", scenario=scenario), {}, partitioning.make(scenario, 0)).step()
    assert 0 < row["test_acc_all"] < 0.4


@pytest.mark.parametrize("clients", [1, 2, 3, 20, 600])
@pytest.mark.parametrize("rows", [1, 7, 8, 28, 30, 257, 2575])
def test_blocks_are_all_rows_in_order_none_short_and_the_last_ends_as_the_whole(rows: int, clients: int) -> None:
    blocks = chunks.blocks_of(rows, clients)
    assert [i for block in blocks for i in range(rows)[block]] == [*range(rows)]
    *others, last = [block.stop - block.start for block in blocks]
    assert (rows - last) % chunks.STEP == 0 and len({*others}) <= 1
    for n in others:
        assert n % chunks.STEP == 0 and n / 2 <= last <= 1.5 * n
        assert n * clients <= chunks.BLOCK or n == chunks.STEP


@pytest.mark.parametrize("hook", ["predict", "deployed"])
def test_an_algorithm_that_finds_itself_diverged_as_it_is_scored_has_diverged(hook: str) -> None:
    def found(*_: object) -> None:
        raise Diverged("mine")

    sim = Simulation(Experiment(algorithm="fedavg", scenario=DIGITS), {}, random_federation([6, 6]))
    cls = type("Own", (FedAvg,), {hook: found})
    sim.setup = sim.setup._replace(algorithm=cls())
    with pytest.raises(Diverged, match="mine"):
        sim.step()
