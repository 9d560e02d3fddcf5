"""Owners keep their names and their order: in the federation, in messages, in the table and the picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.own_data import made, saved, taken, wards

from analysis import partition_plots
from fedtune.core.errors import Diverged
from fedtune.data import datasets, own_partition
from fedtune.data.federation import joined
from fedtune.federated import partitioning
from fedtune.federated.experiment import Experiment
from fedtune.federated.simulation import Simulation
from fedtune.runs import clients
from fedtune.studies import partition_view

CLINICS = [f"clinic-{i:02d}" for i in range(12)]


def clinics(path: Path, names: list[str] | list[int] = CLINICS, rows: int = 240, shuffled: bool = True) -> Path:
    """Rows of these owners, in any order; the first feature says whose each is."""
    arrays = wards(rows, len(names))
    arrays["x"][:, 0] = arrays["owner"]
    order = np.random.default_rng(3).permutation(rows) if shuffled else np.arange(rows)
    owner = np.array(names)[arrays["owner"]]
    return saved(path, x=arrays["x"][order], y=arrays["y"][order], owner=owner[order])


@pytest.mark.parametrize("names", [CLINICS, [7, 10, 100, 2000], ["süd", "nord", "a b", "10", "9"]])
@pytest.mark.parametrize("law", ["natural", "domains"])
def test_client_k_is_owner_k_on_every_seed(names: list, law: str, tmp_path: Path) -> None:
    scenario = taken(clinics(tmp_path / "clinics.npz", names), law, normalise="none")
    for seed in range(3):
        f = made(scenario, seed)
        assert f.owners == tuple((str(name),) for name in sorted(names))
        for k, name in enumerate(sorted(names)):
            held = np.concatenate([t.rows[k, : t.counts[k]] for t in (f.train, f.val, f.test)])
            assert set(f.x[held, 0]) == {names.index(name)} and len(held) == 240 // len(names)
            assert f.who(k) == f"owner {name}" and f.owner(k) == str(name)


def test_every_row_says_which_row_of_the_data_set_it_is(tmp_path: Path) -> None:
    scenario = taken(clinics(tmp_path / "clinics.npz"), normalise="none", clients=5)
    data, f = datasets.load(scenario.dataset), made(scenario, 4)
    np.testing.assert_array_equal(np.asarray(data.x)[f.row], f.x)
    both = joined([f.to(), made(scenario, 5).to()])
    np.testing.assert_array_equal(torch.as_tensor(np.asarray(data.x)[both.row]), both.x)
    assert both.owners[:5] == f.owners and len(both.owners) == 10


def test_a_group_of_owners_lists_its_members(tmp_path: Path) -> None:
    scenario = taken(clinics(tmp_path / "clinics.npz"), owners=4, normalise="none")
    f = made(scenario, 1)
    assert sorted(name for group in f.owners for name in group) == CLINICS
    for k, group in enumerate(f.owners):
        held = np.concatenate([t.rows[k, : t.counts[k]] for t in (f.train, f.val, f.test)])
        assert list(group) == [CLINICS[int(i)] for i in np.unique(f.x[held, 0])]
        assert f.owner(k) == " + ".join(group) and f.who(k) == f"owners {' + '.join(group)}"


def test_clients_that_share_an_owner_are_told_apart_by_number_and_mixed_ones_have_no_name(tmp_path: Path) -> None:
    path = clinics(tmp_path / "clinics.npz", ["north", "south"])
    parts = made(taken(path, "domains", clients=4))
    assert [parts.who(k) for k in range(4)] == [f"client {k} (owner {o})" for k, o in enumerate(["north", "south"] * 2)]
    for law in ("iid", "dirichlet", "shards"):
        mixed = made(taken(path, law, clients=4))
        assert mixed.owners == () and mixed.who(2) == "client 2" and mixed.owner(2) == ""


def test_a_partition_that_was_saved_keeps_the_names(tmp_path: Path) -> None:
    path = clinics(tmp_path / "clinics.npz")
    data, scenario = datasets.load(taken(path).dataset), taken(path)
    own_partition.write(tmp_path / "mine.npz", partitioning.rows_of_clients(data, scenario, 0))
    again = made(taken(path, tmp_path / "mine.npz"), 5)
    assert again.owners == tuple((name,) for name in CLINICS)


def test_table_picture_and_clients_parquet_say_the_owner_and_the_class_by_name(tmp_path: Path) -> None:
    path = clinics(tmp_path / "clinics.npz")
    arrays = dict(np.load(path))
    saved(path, **arrays | {"y": np.array(["flu", "none", "sars"])[arrays["y"]]})
    scenario = taken(path)
    data, f = datasets.load(scenario.dataset), made(scenario, 2)
    assert f.class_names == ("flu", "none", "sars")
    counts = partition_view.counts(f, data)
    assert counts.groupby("client")["owner"].unique().map(list).tolist() == [[name] for name in CLINICS]
    shown = partition_view.printed(counts)
    assert [str(cell) for cell in shown.columns[1].cells] == CLINICS
    figure = partition_plots.partition(counts)
    assert list(figure.layout.xaxis2.ticktext) == CLINICS and figure.layout.xaxis2.title.text == "owner"
    assert {text for _, text in figure.data[0].customdata} == {f"client {k} ({n})" for k, n in enumerate(CLINICS)}

    columns = clients.columns("last", 3, {"client": torch.tensor([4, 2]), "val_acc": torch.rand(2)}, f.owner)
    table = clients.table([({"seed": 1}, [columns])])
    assert table["owner"].tolist() == ["clinic-04", "clinic-02"] and list(table)[3:5] == ["client", "owner"]
    old = {name: values for name, values in columns.items() if name != "owner"}  # an outcome of an earlier version
    assert clients.table([({"seed": 1}, [old])])["owner"].tolist() == ["", ""]


@pytest.mark.parametrize("some", [1, 2, 7])
def test_who_diverged_is_said_by_name(some: int, tmp_path: Path) -> None:
    scenario = taken(clinics(tmp_path / "clinics.npz"), rounds=1, momentum=0.0)
    simulation = Simulation(Experiment("local", scenario), {}, made(scenario))
    f = simulation.setting.federation
    for k in range(some):
        f.x[f.train.rows[k, : f.train.counts[k]]] *= 1e30
    said = "owner clinic-00's loss" if some == 1 else rf"the loss of {some} clients \(clinic-00, clinic-01"
    with pytest.raises(Diverged, match=f"diverged in round 1: {said}.* became NaN or infinite"):
        simulation.step()
