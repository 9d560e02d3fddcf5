"""A data set dealt out: tables, disjointness, what is stored; and what a scenario accepts."""

from __future__ import annotations

import warnings
from copy import copy
from fnmatch import fnmatch
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


@pytest.mark.parametrize("law", SMALL)
def test_the_seed_alone_decides_which_rows_a_client_holds(law: str) -> None:
    work = {"lr": 0.3, "batch": 7, "local_epochs": 3, "momentum": 0.1, "rounds": 2, "model": "mlp"}
    trained = SMALL[law].override(**({} if law == "natural" else work))
    one, same, other = (
        np.concatenate([rows for split in held(partitioning.partition(numbered(), s, seed)) for rows in split])
        for s, seed in ((SMALL[law], 0), (trained, 0), (SMALL[law], 1))
    )
    assert np.array_equal(one, same) and not np.array_equal(one, other)


def test_test_rows_come_from_the_official_test_set() -> None:
    f = partitioning.partition(numbered(official=250), SMALL["ways-shots"], seed=0)
    train, val, test = ([np.concatenate(split)] for split in held(f))
    assert max(train[0].max(), val[0].max()) < 250 <= test[0].min()


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


# ------------------------------------------------------------------------------------------------------ scenario


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_stands_and_its_data_set_and_model_fit(name: str) -> None:
    s = scenarios.find(name)
    *shape, classes = datasets.describe(s.dataset)
    assert s.override() == s and 1 <= s.participants <= s.clients
    assert s.partition != "ways-shots" or s.ways <= classes
    assert s.model != "cnn8" or shape == [1, 8, 8]
    assert (s.model == "celeba-cnn") == (s.dataset == "celeba")


SGD = {"batch": 10, "lr": 0.01, "momentum": 0, "local_epochs": 1, "optimizer": "sgd"}
FEDSA = SGD | {"partition": "dirichlet", "alpha": 0.1, "test_share": 0.25}
POOLED = {"local_steps": 20, "batch": 32, "momentum": 0, "evaluation": "pooled"}
PAPERS: dict[str, tuple[int, dict[str, Any]]] = {  # scenarios -> how many there are, and what the paper says of them
    "fedsa-*-silo*": (10, FEDSA | {"clients": 20, "participants": 20}),
    "fedsa-*-device*": (10, FEDSA | {"clients": 100, "participants": 10}),
    "fedsa-[ct]*-silo*": (6, {"rounds": 200}),
    "fedsa-[ct]*-device*": (6, {"rounds": 1000}),
    "fedsa-[fd]*": (8, {"rounds": 100}),
    "fedpa-*": (9, POOLED | {"rounds": 200, "optimizer": "adam", "clients": 20, "participants": 10}),
    "fedpa-[cfm]*": (7, {"lr": 3e-4}),
    "fedpa-emnist-*": (2, {"lr": 1e-4, "share": 0.1}),
    "fedpa-*fmnist*": (4, {"share": 0.5}),
    "fedgenp-*": (15, POOLED | {"rounds": 100, "optimizer": "sgd", "lr": 0.01}),
    "fedgenp-*mnist-*": (10, {"clients": 20}),
    "fedgenp-mnist-100pct-*": (2, {"participants": 20}),
    "fedgenp-mnist-10pct-*": (2, {"participants": 10}),
    "fedgenp-mnist-*[05]pct-a1": (3, {"alpha": 1}),
    "fedgenp-mnist-5pct-*": (2, {"participants": 20}),
    "fedgenp-celeba-*": (5, {"clients": 25}),
}


@pytest.mark.parametrize("names", PAPERS)
def test_scenarios_of_papers_are_as_their_tables_say(names: str) -> None:
    many, fields = PAPERS[names]
    scenarios_found = {n: s for n, s in SCENARIOS.items() if fnmatch(n, names)}
    assert len(scenarios_found) == many
    for name, s in scenarios_found.items():
        assert {field: getattr(s, field) for field in fields} == fields, name
        if names.startswith("fedsa"):
            wide = s.dataset in ("cifar10", "cifar100", "tiny-imagenet")
            assert not wide or architectures.width(s.model, (3, 32, 32), 10, s.features) == 512
            assert name.endswith(f"-{s.model}" if s.model in catalogue.FAMILIES else ("silo", "device"))
            continue
        assert s.partition == ("natural" if s.dataset == "celeba" else "fedgen") and s.skip_classes == ("9" in name)
        said = {"-a": f"-a{s.alpha:g}", "-r": f"-r{s.participants / s.clients:g}", "pct": f"-{100 * s.share:g}pct"}
        assert all(sign not in name or text in name for sign, text in said.items()), name


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


OUTSIDE: dict[str, tuple[Any, ...]] = {  # fields, and values that they cannot have
    "alpha": (0, "nan"),
    "batch": (0,),
    "clients": (0, 2.5, "many", None),
    "feature_noise": (-1,),
    "features": (-1,),
    "groups": (0,),
    "label_noise": (1.5,),
    "lr": (2,),
    "noisy_clients": (-0.1,),
    "optimizer": ("rmsprop",),
    "owners": (0,),
    "participation": (0, 1.01, "nan"),
    "power": ("nan",),
    "rotation": (float("inf"),),
    "rounds": (0, float("inf")),
    "share": (0, "nan"),
    "shards": (0,),
    "shots": (1,),
    "skip_classes": (-1, 9, 0.5),
    "thinning": (-1, float("nan")),
    "ways": (1, 11),
    "ways_spread": (-1,),
}


@pytest.mark.parametrize("field", OUTSIDE)
def test_a_value_outside_a_fields_range_is_refused(field: str) -> None:
    for value in OUTSIDE[field]:
        with pytest.raises(UserError, match=f"^{field} must be .*, but got '?{value}"):
            Scenario().override(**{"partition": "ways-shots", field: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"client": 3}, "unknown scenario field 'client': did you mean 'clients'"),
        ({"dataset": "digit"}, "unknown data set 'digit': did you mean 'digits'"),
        ({"model": "cnn"}, "unknown model 'cnn'"),
        ({"partition": "dirichlett"}, "unknown partition 'dirichlett': did you mean 'dirichlet'"),
        ({"evaluation": "globl"}, "unknown evaluation rule 'globl': did you mean 'global'"),
        ({"noisy_splits": "test"}, "unknown choice of noisy_splits 'test'"),
        ({"skip_classes": 7}, "ways must be at most the 3 classes of digits that are in use, but got 4"),
        ({"skip_classes": 3, "swaps": 4}, "swaps must be at most 3 pairs of the 7 classes, but got 4"),
        *(({"partition": p}, "needs a data set with the owner of each row") for p in ("natural", "domains")),
        *(({"val_share": share}, "val_share and test_share must be above 0") for share in (0, "nan")),
        ({"val_share": 0.5, "test_share": 0.5}, "leave training rows, but got 0.5 and 0.5"),
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
