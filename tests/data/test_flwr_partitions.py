"""Partitioners of flwr-datasets by name: a stand-in for the library everywhere, and itself where it is installed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.user_data import made, saved, taken, wards

from fedtune.core.errors import UserError
from fedtune.data import flwr_partitions
from fedtune.data.federation import Federation
from fedtune.experiment import user_scenario
from fedtune.experiment.scenario import Scenario


class Table:
    """As much of a Hugging Face data set as a partitioner needs."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns = columns

    from_dict = classmethod(lambda cls, columns: cls(columns))

    def __getitem__(self, name: str) -> list[Any]:
        return list(self.columns[name])


class Blocks:
    """Rows by label in blocks, after a shuffle with its own seed."""

    dataset: Table

    def __init__(
        self, num_partitions: int, partition_by: str, alpha: float, shuffle: bool = True, seed: int = 42
    ) -> None:
        if alpha <= 0:
            raise ValueError("alpha must be\npositive")
        self.num_partitions, self.by, self.seed, self.shuffle = num_partitions, partition_by, seed, shuffle

    def load_partition(self, k: int) -> Table:
        label, row = (np.array(self.dataset[n]) for n in (self.by, "row"))
        order = np.random.default_rng(self.seed).permutation(len(row))
        order = order[np.argsort(label[order], kind="stable")]
        return Table({"row": row[np.array_split(order, self.num_partitions)[k]]})


class NaturalIdPartitioner(Blocks):
    def __init__(self, partition_by: str) -> None:
        super().__init__(0, partition_by, 1.0)

    num_partitions = property(lambda self: len(set(self.dataset[self.by])), lambda self, value: None)  # type: ignore[assignment]


class TwicePartitioner(Blocks):
    def load_partition(self, k: int) -> Table:
        return Table({"row": np.arange(10)})


class TinyPartitioner(Blocks):
    def load_partition(self, k: int) -> Table:
        return Table({"row": np.arange(2) + 2 * k})


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """flwr-datasets and datasets, as far as they are used."""
    offered = {c.__name__: c for c in (Blocks, NaturalIdPartitioner, TwicePartitioner, TinyPartitioner)}
    partitioner, flwr, hugging = (ModuleType(n) for n in ("flwr_datasets.partitioner", "flwr_datasets", "datasets"))
    vars(partitioner).update(offered, __all__=[*offered, "Partitioner", "VerticalEvenPartitioner"])
    vars(flwr).update(partitioner=partitioner)
    vars(hugging).update(Dataset=Table)
    for module in (partitioner, flwr, hugging):
        monkeypatch.setitem(sys.modules, module.__name__, module)


def digits(name: str, **fields: Any) -> Scenario:
    given = {"dataset": "digits", "partition": name} | fields
    return user_scenario.taken("digits-w4", given)[0]


def held(f: Federation) -> list[set[int]]:
    """Each client's rows."""
    return [
        {int(f.row[r]) for t in (f.train, f.val, f.test) for r in t.rows[k, : t.counts[k]]} for k in range(f.clients)
    ]


def test_clients_hold_what_the_partitioner_says(library: None) -> None:
    scenario = digits("flwr:Blocks( alpha = 0.5 )", clients=6)
    assert scenario.partition == "flwr:Blocks(alpha=0.5)" and scenario.clients == 6
    f = made(scenario)
    assert sum(map(len, held(f))) == 1797 and (f.val.counts > 0).all()
    assert all(len(set(f.y[f.train.rows[k, : f.train.counts[k]]])) <= 3 for k in range(6))
    assert held(made(scenario)) == held(f) != held(made(scenario, seed=1))


def test_a_given_seed_makes_the_clients_rows_the_same_for_every_seed(library: None) -> None:
    scenario = digits("flwr:Blocks(alpha=1, seed=7, num_partitions=5)")
    assert scenario.clients == 5
    one, other = made(scenario), made(scenario, seed=1)
    assert held(one) == held(other) and one.test.rows.tolist() != other.test.rows.tolist()


def test_owners_and_the_split_of_the_data_are_used(library: None, tmp_path: Path) -> None:
    split = np.where(np.arange(240) % 4 == 3, 2, 0)
    path = saved(tmp_path / "w.npz", **wards(), split=split)
    f = made(taken(path, "flwr:Blocks(alpha=1, partition_by='owner')", clients=6))
    assert len(f.owners) == 6 and all(len(o) == 1 for o in f.owners) and (f.test.counts == 10).all()
    with pytest.raises(UserError, match="has 6 clients, but clients is 4; give --clients 6"):
        made(taken(path, "flwr:NaturalIdPartitioner()", clients=4))


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("flwr:Block(alpha=1)", {}, "unknown partitioner of flwr-datasets 'Block': did you mean 'Blocks'"),
        ("flwr:Partitioner()", {}, "unknown partitioner of flwr-datasets 'Partitioner'"),
        ("flwr:Blocks(alpah=1)", {}, "unknown argument of Blocks 'alpah': did you mean 'alpha'"),
        ("flwr:Blocks()", {}, r"Blocks needs alpha, as in flwr:Blocks\(alpha=…\), but got"),
        ("flwr:Blocks(0.3)", {}, "must be keyword literals"),
        ("flwr:Blocks(alpha=1", {}, "as in flwr:DirichletPartitioner"),
        ("flwr:", {}, "as in flwr:DirichletPartitioner"),
        ("flwr:Blocks(alpha=1, num_partitions=0)", {}, "num_partitions of .* whole number from 1 on, but got 0"),
        ("flwr:Blocks(alpha=1, seed='a')", {}, "seed of .* must be a whole number from 0 on, but got 'a'"),
        ("flwr:Blocks(alpha=1, num_partitions=4)", {"clients": 5}, "has 4 clients, but clients was given as 5"),
        ("flwr:Blocks(alpha=1, partition_by='y')", {}, "must be 'label', .* but got 'y'"),
        ("flwr:Blocks(alpha=-1)", {}, r"cannot divide 1797 rows: alpha must be positive$"),
        ("flwr:NaturalIdPartitioner()", {}, "must be 'label', .* but got 'owner'"),
        ("flwr:TwicePartitioner(alpha=1)", {}, "needs 3 rows that no other has, .* 190 rows twice"),
        ("flwr:TinyPartitioner(alpha=1)", {}, "needs 3 rows .* gives client 0 2 rows"),
        ("flwr:VerticalEvenPartitioner(num_partitions=3)", {}, "unknown partitioner of flwr-datasets 'Vertical"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(name: str, fields: Any, message: str, library: None) -> None:
    with pytest.raises(UserError, match=message) as error:
        made(digits(name, **fields))
    assert "\n" not in str(error.value)


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    with pytest.raises(UserError, match=r"needs the library flwr-datasets, .* pip install 'fedtune\[flwr\]'"):
        digits("flwr:IidPartitioner()")
    assert Scenario(partition="flwr:IidPartitioner()").clients == 20  # a record is read without it


@pytest.mark.parametrize(
    "name",
    [
        "DirichletPartitioner(alpha=0.3)",
        "IidPartitioner()",
        "ShardPartitioner(num_shards_per_partition=2)",
        "PathologicalPartitioner(num_classes_per_partition=2)",
        "SizePartitioner(partition_sizes=[100, 200, 50, 60, 70])",
        "LinearPartitioner()",
    ],
)
def test_the_library_itself(name: str) -> None:
    pytest.importorskip("flwr_datasets", reason="flwr-datasets is not installed: pip install 'fedtune[flwr]'")
    scenario = digits(f"flwr:{name}", **({} if "sizes" in name else {"clients": 5}))
    assert held(made(scenario)) == held(made(scenario)) and flwr_partitions.is_named(scenario.partition)
