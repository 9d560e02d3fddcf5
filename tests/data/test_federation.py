"""A data set dealt out: tables, disjointness, what is stored; and what a scenario accepts."""

from __future__ import annotations

import warnings
from copy import copy
from typing import Any

import numpy as np
import pytest
import torch

from fedtune.core.errors import UserError
from fedtune.core.hyper import hyperparameters
from fedtune.data import datasets
from fedtune.data.datasets import Dataset
from fedtune.data.federation import Federation
from fedtune.experiment import partitioning, scenarios
from fedtune.experiment.scenario import Scenario
from fedtune.experiment.scenarios import SCENARIOS
from fedtune.nn import architectures, catalogue

LAWS = {
    "ways-shots": Scenario(clients=6, ways_spread=2, shots_spread=4),
    "dirichlet": Scenario(clients=6, partition="dirichlet", floor=20),
    "iid": Scenario(clients=7, partition="iid"),
    "fedgen": Scenario(clients=6, partition="fedgen", alpha=0.5, floor=20),
}


def numbered(rows: int = 400, classes: int = 10, official: int = 400) -> Dataset:
    """Row i is a picture of the number i, so that a stored row tells where it came from; ten rows are one owner's."""
    y = np.random.default_rng(0).permutation(np.arange(rows) % classes)
    x = np.arange(rows, dtype=np.float32).reshape(-1, 1, 1, 1)
    return Dataset("numbered", x, y, classes, official, np.arange(rows) // 10)


def held(f: Federation) -> list[list[np.ndarray]]:
    """The original row numbers of every client in every split."""
    return [[f.x[s.rows[k, :n]].ravel().astype(int) for k, n in enumerate(s.counts)] for s in (f.train, f.val, f.test)]


# Scenario refuses `natural` without a data set with owners, and `numbered` stands in for it here
NATURAL = Scenario(dataset="celeba", clients=5, ways=2, partition="natural", owners=4)
SMALL = {
    "ways-shots": Scenario(clients=5, ways=3, shots=5, shots_spread=2, val_shots=2, test_shots=3),
    "dirichlet": Scenario(clients=5, partition="dirichlet", floor=12, alpha=0.5),
    "iid": Scenario(clients=7, partition="iid"),
    "fedgen": Scenario(clients=5, partition="fedgen", floor=12, alpha=0.5),
    "natural": NATURAL,
}


@pytest.mark.parametrize("law", SMALL)
def test_tables_hold_each_clients_rows_and_no_row_twice(law: str) -> None:
    data = numbered()
    f = partitioning.partition(data, SMALL[law], seed=3)
    rows = np.concatenate([r for split in held(f) for r in split])
    assert len(np.unique(rows)) == len(rows)
    np.testing.assert_array_equal(np.sort(rows), f.x.ravel())  # only rows that somebody holds, each once
    np.testing.assert_array_equal(f.y, data.y[f.x.ravel().astype(int)])
    assert f.clients == SMALL[law].clients and f.classes == 10 and f.shape == (1, 1, 1)
    for split in (f.train, f.val, f.test):
        assert split.rows.shape == (f.clients, split.counts.max()) and split.counts.min() >= 1
        for k, n in enumerate(split.counts):
            assert set(split.rows[k, n:]) <= set(split.rows[k, :n]), "padding must be a real row of the client"
    assert law in ("ways-shots", "fedgen") or len(rows) == (200 if law == "natural" else 400)


def test_test_rows_come_from_the_official_test_set() -> None:
    f = partitioning.partition(numbered(official=250), SMALL["ways-shots"], seed=0)
    train, val, test = ([np.concatenate(split)] for split in held(f))
    assert max(train[0].max(), val[0].max()) < 250 <= test[0].min()


def test_each_client_is_tested_on_its_own_classes() -> None:
    for law in ("ways-shots", "fedgen"):
        f = partitioning.make(LAWS[law], seed=1)
        for k in range(f.clients):
            train, val, test = ({*f.y[s.rows[k, : s.counts[k]]]} for s in (f.train, f.val, f.test))
            assert train | val == test and (law == "fedgen" or train == val and 2 <= len(train) <= 6)


@pytest.mark.parametrize("law", SMALL)
def test_skipped_classes_are_left_out_and_the_others_renumbered(law: str) -> None:
    data = numbered(official=400 if law == "natural" else 300)
    # celeba has too few classes to skip any, so the field is set past the scenario's own check there
    small = {"floor": 5, "shots": 3, "test_shots": 1}
    s = copy(SMALL[law].override(**small))
    object.__setattr__(s, "skip_classes", 3)
    f = partitioning.partition(data, s, seed=2)
    original = f.x.ravel().astype(int)
    assert (data.y[original] >= 3).all() and f.classes == 10  # the head keeps its width
    np.testing.assert_array_equal(f.y, data.y[original] - 3)
    assert len(np.unique(original)) == len(original) and f.shape == (1, 1, 1)
    for k in range(f.clients):  # a row's class is that of the picture that it shows
        for split in (f.train, f.val, f.test):
            mine = split.rows[k, : split.counts[k]]
            np.testing.assert_array_equal(f.y[mine], data.y[f.x[mine].ravel().astype(int)] - 3)
    if law in ("ways-shots", "fedgen"):
        assert max(rows.max() for split in held(f)[:2] for rows in split) < 300
        assert min(rows.min() for rows in held(f)[2]) >= 300


def test_a_natural_clients_rows_are_its_owners_training_rows() -> None:
    data = numbered(official=250)
    f = partitioning.partition(data, NATURAL, seed=0)
    owners = [np.unique(np.concatenate(parts) // 10) for parts in zip(*held(f), strict=True)]
    assert all(len(own) == 4 for own in owners) and len(np.unique(np.concatenate(owners))) == 20
    assert len(f.x) == 200 and f.x.max() < 250
    with pytest.raises(UserError, match="the owner of each row, but numbered has none: use celeba"):
        partitioning.partition(data._replace(owner=None), NATURAL, seed=0)


def test_only_images_that_somebody_holds_are_read() -> None:
    class Lazy:
        asked: list[np.ndarray] = []

        def __getitem__(self, rows: np.ndarray) -> np.ndarray:
            self.asked.append(rows)
            return rows.astype(np.float32).reshape(-1, 1, 1, 1)

    data, lazy = numbered(official=250), Lazy()
    f = partitioning.partition(data._replace(x=lazy), NATURAL, seed=0)  # type: ignore[arg-type]
    assert [len(rows) for rows in lazy.asked] == [200]
    np.testing.assert_array_equal(f.x, partitioning.partition(data, NATURAL, seed=0).x)


@pytest.mark.parametrize("law", LAWS)
def test_one_seed_one_federation(law: str) -> None:
    a, b, c = (partitioning.make(LAWS[law], seed) for seed in (0, 0, 1))
    assert np.array_equal(a.x, b.x) and np.array_equal(a.train.rows, b.train.rows)
    assert a.train.rows.shape != c.train.rows.shape or not np.array_equal(a.train.rows, c.train.rows)


@pytest.mark.parametrize(
    "change", [{"lr": 0.1}, {"batch": 16}, {"model": "mlp"}, {"local_epochs": 3}, {"participation": 0.5}, {"rounds": 2}]
)
def test_training_hyperparameters_deal_no_other_rows(change: dict) -> None:
    a, b = partitioning.make(LAWS["ways-shots"], 0), partitioning.make(LAWS["ways-shots"].override(**change), 0)
    assert np.array_equal(a.x, b.x) and np.array_equal(a.train.rows, b.train.rows)


def test_tensors_in_float32_share_the_arrays_memory_and_read_only_arrays_do_not_warn() -> None:
    f = partitioning.partition(numbered(), SMALL["iid"], 0)
    f.x.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shared, wide = f.to(), f.to(dtype=torch.float64)
    assert shared.x.data_ptr() == f.x.ctypes.data and shared.x.dtype == torch.float32
    assert wide.x.dtype == torch.float64 and wide.y.dtype == wide.train.rows.dtype == torch.int64
    assert wide.to(dtype=torch.float64).x is wide.x and wide.clients == f.clients and wide.shape == f.shape
    np.testing.assert_array_equal(wide.train.counts.numpy(), f.train.counts)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": 500}, "fewer clients"),
        ({"partition": "dirichlet", "clients": 100, "floor": 20}, "take 89 clients or fewer"),
        ({"partition": "iid", "clients": 1797}, "clients or fewer"),
        ({"partition": "fedgen", "clients": 200}, "200 clients with at least 10 rows each need 2000 rows, but 1501"),
        ({"partition": "fedgen", "clients": 40, "alpha": 10}, "40 clients share 29 to 30 rows a class: take fewer"),
    ],
)
def test_what_the_data_cannot_give_is_refused(change: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        partitioning.make(Scenario().override(**change), 0)


# ------------------------------------------------------------------------------------------------------ scenario


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_stands_and_its_data_set_and_model_fit(name: str) -> None:
    s = scenarios.find(name)
    *shape, classes = datasets.describe(s.dataset)
    assert s.override() == s and 1 <= s.participants <= s.clients
    assert s.partition != "ways-shots" or s.ways <= classes
    assert s.model != "cnn8" or shape == [1, 8, 8]
    assert (s.model == "celeba-cnn") == (s.dataset == "celeba")


def test_fedsas_scenarios_are_the_papers_and_their_twins() -> None:
    family = {n: s for n, s in SCENARIOS.items() if n.startswith("fedsa-")}
    assert len(family) == 5 * 2 * 2
    for name, s in family.items():
        _, data, kind, *mixed = name.split("-")
        assert (s.clients, s.participants) == {"silo": (20, 20), "device": (100, 10)}[kind]
        assert (s.partition, s.alpha, s.test_share) == ("dirichlet", 0.1, 0.25)
        assert (s.batch, s.lr, s.momentum, s.local_epochs, s.optimizer) == (10, 0.01, 0, 1, "sgd")
        assert mixed == ([s.model] if s.model in catalogue.FAMILIES else [])
        if data in ("fmnist", "digits"):
            assert s.rounds == 100 and s.model in ("fedproto-cnn", "cnn8", "htmini3")
        else:
            assert s.rounds == {"silo": 200, "device": 1000}[kind]
            assert architectures.width(s.model, (3, 32, 32), 10, s.features) == 512


def test_fedpas_and_fedgenps_scenarios_are_the_papers_tables() -> None:
    family = {n: s for n, s in SCENARIOS.items() if n.startswith(("fedpa-", "fedgenp-"))}
    for name, s in family.items():
        rounds, lr, many = (200, 3e-4, 20) if name.startswith("fedpa-") else (100, 0.01, 20)
        many = 25 if "fedgenp-celeba" in name else many
        lr = 1e-4 if name.startswith("fedpa-emnist") else lr
        assert (s.rounds, s.lr, s.clients, s.local_steps, s.batch, s.momentum) == (rounds, lr, many, 20, 32, 0), name
        assert s.evaluation == "pooled" and s.optimizer == ("adam" if name.startswith("fedpa-") else "sgd")
        assert s.partition == ("natural" if s.dataset == "celeba" else "fedgen")
        assert s.dataset == "celeba" or name.endswith(f"-a{s.alpha:g}")
        assert "pct" not in name or f"-{100 * s.share:g}pct-" in name
        assert s.skip_classes == ("fmnist9" in name)
    alphas = {n.rpartition("-a")[0]: set() for n, s in family.items() if s.dataset != "celeba"}
    for name, s in family.items():
        if s.dataset != "celeba":
            alphas[name.rpartition("-a")[0]].add(s.alpha)
    assert alphas == {
        "fedpa-mnist": {0.1, 1},
        "fedpa-emnist": {0.1, 1},
        "fedpa-fmnist": {0.3, 1},
        "fedpa-fmnist9": {0.3, 1},
        "fedgenp-mnist-100pct": {0.1, 1},
        "fedgenp-mnist-10pct": {1, 10},
        "fedgenp-mnist-5pct": {1, 10},
        "fedgenp-emnist-100pct": {0.1, 1},
        "fedgenp-emnist-10pct": {0.01, 1},
    }
    active = {n: s.participants for n, s in family.items()}
    assert [active[f"fedgenp-mnist-{p}pct-a1"] for p in (100, 10, 5)] == [20, 10, 20]
    assert [active[f"fedgenp-celeba-r{r}"] for r in ("0.2", "0.4", "0.6", "0.8", "1")] == [5, 10, 15, 20, 25]
    assert {active[n] for n in active if n.startswith("fedpa-")} == {10}


@pytest.mark.parametrize("name", [n for n, s in SCENARIOS.items() if s.partition == "fedgen"])
def test_every_fedgen_scenario_can_be_dealt_from_data_of_its_shape(name: str) -> None:
    s = scenarios.find(name)
    train = {"mnist": 6000, "fashion-mnist": 6000, "emnist-letters": 4800, "digits": 180}[s.dataset]
    classes, test = datasets.describe(s.dataset)[-1], 0 if s.dataset == "digits" else train // 6
    y = np.concatenate([np.tile(np.arange(classes), train), np.tile(np.arange(classes), test)])
    data = Dataset(name, np.zeros((len(y), 1, 1, 1), np.float32), y, classes, train * classes)
    for seed in range(2):
        f = partitioning.partition(data, s, seed)
        assert (f.train.counts + f.val.counts).min() >= s.floor
        if s.dataset == "fashion-mnist":
            assert (f.train.counts + f.val.counts).sum() == 1500 * (10 - s.skip_classes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"client": 3}, "unknown scenario field 'client': did you mean 'clients'"),
        ({"dataset": "digit"}, "unknown data set 'digit': did you mean 'digits'"),
        ({"model": "cnn"}, "unknown model 'cnn'"),
        ({"partition": "dirichlett"}, "unknown partition 'dirichlett': did you mean 'dirichlet'"),
        ({"evaluation": "globl"}, "unknown evaluation rule 'globl': did you mean 'global'"),
        ({"clients": 0}, "clients must be in 1..1000000, but got 0"),
        ({"clients": 2.5}, "clients must be a whole number, but got 2.5"),
        ({"clients": "many"}, "clients must be a whole number, but got 'many'"),
        ({"clients": None}, "clients must be a whole number, but got None"),
        ({"rounds": 0}, "rounds must be in 1..1000000, but got 0"),
        ({"rounds": float("inf")}, "rounds must be a whole number, but got inf"),
        ({"ways": 11}, "ways must be at most the 10 classes of digits that are in use, but got 11"),
        ({"ways_spread": -1}, "ways_spread must be in 0..100000, but got -1"),
        ({"features": -1}, "features must be in 0..1000000, but got -1"),
        ({"participation": 0}, r"participation must be a number in 1e-06..1 log, but got 0"),
        ({"participation": 1.01}, r"participation must be a number in .* but got 1.01"),
        ({"participation": "nan"}, r"participation must be a number in .* but got .*nan"),
        ({"alpha": 0}, "alpha must be in 1e-09..1000000, but got 0"),
        ({"alpha": "nan"}, "alpha must be in 1e-09..1000000, but got nan"),
        ({"share": 0}, r"share must be in 1e-09..1, but got 0"),
        ({"share": "nan"}, r"share must be in 1e-09..1, but got nan"),
        ({"owners": 0}, "owners must be in 1..1000000, but got 0"),
        ({"skip_classes": -1}, "skip_classes must be 0 to 8 to leave two of the 10 classes of digits, but got -1"),
        ({"skip_classes": 9}, "skip_classes must be 0 to 8 to leave two of the 10 classes of digits, but got 9"),
        ({"skip_classes": 0.5}, "skip_classes must be a whole number, but got 0.5"),
        ({"skip_classes": 7}, "ways must be at most the 3 classes of digits that are in use, but got 4"),
        ({"partition": "natural"}, r"needs a data set with the owner of each row \(celeba\), but got digits"),
        ({"val_share": 0}, "val_share and test_share must be above 0"),
        ({"val_share": 0.5, "test_share": 0.5}, "leave training rows, but got 0.5 and 0.5"),
        ({"val_share": "nan"}, "val_share and test_share must be above 0"),
        ({"batch": 0}, "batch must be a whole number in 1..256 .*, but got 0"),
        ({"lr": 2}, "lr must be a number in .*, but got 2"),
        ({"optimizer": "rmsprop"}, "optimizer must be one of sgd | adam, but got 'rmsprop'"),
        ({"shards": 0}, "shards must be in 1..1000000, but got 0"),
        ({"power": "nan"}, "power must be in 0.0..100.0, but got nan"),
        ({"thinning": -1}, "thinning must be in 0.0..100.0, but got -1"),
        ({"ways": 1}, "ways must be"),
        ({"shots": 1}, "shots must be"),
        ({"partition": "dirichlet", "floor": 2}, "floor must be"),
    ],
)
def test_a_scenario_refuses_what_cannot_be_played(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Scenario().override(**change)


def test_fields_are_taken_as_text_too() -> None:
    s = Scenario().override(clients="7", participation="0.5", lr="0.1", optimizer="adam", alpha="1")
    assert (s.clients, s.participation, s.lr, s.alpha) == (7, 0.5, 0.1, 1.0) and isinstance(s.clients, int)


@pytest.mark.parametrize(("share", "clients", "number"), [(1.0, 20, 20), (0.1, 20, 2), (0.01, 20, 1), (0.5, 6, 3)])
def test_the_number_that_takes_part_is_rounded_and_at_least_one(share: float, clients: int, number: int) -> None:
    assert Scenario(clients=clients, participation=share).participants == number


def test_an_unknown_scenario_is_told_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown scenario 'digits-w5': did you mean 'digits-w4'"):
        scenarios.find("digits-w5")


def test_what_can_be_searched_is_what_is_declared() -> None:
    assert "lr" in hyperparameters(Scenario) and "clients" not in hyperparameters(Scenario)
