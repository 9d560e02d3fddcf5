"""Owners keep their names and their order: in the federation, in messages, in the table and the picture."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from support.user_data import made, refused, saved, taken, wards

import fedtune
from fedtune.analysis import partition_plots
from fedtune.core.errors import Diverged, UserError
from fedtune.data import datasets, user_partition
from fedtune.data.federation import joined
from fedtune.engine.simulation import Simulation
from fedtune.experiment import partitioning
from fedtune.experiment.experiment import Experiment
from fedtune.runs import tables
from fedtune.studies import partition_view, ray_tasks
from fedtune.tuning.options.options import ExperimentOptions

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
    np.testing.assert_array_equal(np.asarray(data.x, np.float32)[f.row], f.x)
    both = joined([f.to(), made(scenario, 5).to()])
    np.testing.assert_array_equal(torch.as_tensor(np.asarray(data.x, np.float32)[both.row]), both.x)
    assert both.owners[:5] == f.owners and len(both.owners) == 10


@pytest.mark.parametrize(("owners", "groups"), [(1, [1] * 12), (4, [4] * 3), (5, [5, 5, 2]), (11, [11, 1]), (40, [12])])
def test_groups_hold_every_owner_and_every_row_and_list_their_members(
    owners: int, groups: list[int], tmp_path: Path
) -> None:
    scenario = taken(clinics(tmp_path / "clinics.npz"), owners=owners, normalise="none")
    f = made(scenario, 1)
    assert [len(group) for group in f.owners] == groups and len(f.row) == 240
    assert sorted(name for group in f.owners for name in group) == CLINICS
    for k, group in enumerate(f.owners):
        held = np.concatenate([t.rows[k, : t.counts[k]] for t in (f.train, f.val, f.test)])
        assert list(group) == [CLINICS[int(i)] for i in np.unique(f.x[held, 0])]
        many = "s" * (len(group) > 1)
        assert f.owner(k) == " + ".join(group) and f.who(k) == f"owner{many} {' + '.join(group)}"


def test_clients_of_one_owner_are_numbered_and_mixed_ones_have_no_name(tmp_path: Path) -> None:
    path = clinics(tmp_path / "clinics.npz", ["north", "south"])
    parts = made(taken(path, "domains", clients=4))
    assert [parts.who(k) for k in range(4)] == [f"client {k} (owner {o})" for k, o in enumerate(["north", "south"] * 2)]
    for law in ("iid", "dirichlet", "shards"):
        mixed = made(taken(path, law, clients=4))
        assert mixed.owners == () and mixed.who(2) == "client 2" and mixed.owner(2) == ""


def test_a_partition_that_was_saved_keeps_the_names(tmp_path: Path) -> None:
    path = clinics(tmp_path / "clinics.npz")
    data, scenario = datasets.load(taken(path).dataset), taken(path)
    user_partition.write(tmp_path / "mine.npz", partitioning.rows_of_clients(data, scenario, 0))
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
    assert shown["owner"].tolist() == CLINICS
    figure = partition_plots.partition(counts)
    assert list(figure.layout.xaxis2.ticktext) == CLINICS and figure.layout.xaxis2.title.text == "owner"
    assert {text for _, text in figure.data[0].customdata} == {f"client {k} ({n})" for k, n in enumerate(CLINICS)}

    columns = ray_tasks.client_columns("last", 3, {"client": torch.tensor([4, 2]), "val_acc": torch.rand(2)}, f.owner)
    table = tables.clients_frame([({"seed": 1}, [columns])])
    assert table["owner"].tolist() == ["clinic-04", "clinic-02"] and list(table)[3:5] == ["client", "owner"]


@pytest.mark.parametrize("some", [1, 2, 7])
def test_who_diverged_is_said_by_name(some: int, tmp_path: Path) -> None:
    scenario = taken(clinics(tmp_path / "clinics.npz"), rounds=1, momentum=0.0)
    simulation = Simulation(Experiment(algorithm="local", scenario=scenario), {}, made(scenario))
    f = simulation.setup.federation
    for k in range(some):
        f.x[f.train.rows[k, : f.train.counts[k]]] *= 1e30
    said = "owner clinic-00's loss" if some == 1 else rf"the loss of {some} clients \(clinic-00, clinic-01"
    with pytest.raises(Diverged, match=f"diverged in round 1: {said}.* became NaN or infinite"):
        simulation.step()


def told(path: Path, capsys: pytest.CaptureFixture, partition: str = "", **fields: float | str) -> str:
    """What is said of the rows that nobody holds."""
    scenario = taken(path, partition, **fields)
    partitioning.report(datasets.load(scenario.dataset), scenario, 0)
    return capsys.readouterr().err.replace("\n", " ").strip()


@pytest.mark.parametrize(
    ("partition", "fields", "lines"),
    [
        ("", {}, ""),
        ("", {"owners": 5}, "note: the last of 3 clients holds 2 owners, the others 5"),
        ("", {"owners": 13}, "note: the only client holds 12 owners, because there are fewer than 13"),
        ("", {"share": 0.5}, r"note: 120 of 240 rows are left out, all those of 6 owners \(.*, …\): share 0.5"),
        ("", {"clients": 11}, r"note: 20 of 240 rows are left out, all those of 1 owner \(c.*\): clients 11, owners 1"),
        ("", {"skip_classes": 1}, r"note: 80 of 240 rows are left out, all those of 1 class \(0\): skip-classes 1"),
        ("iid", {"clients": 3, "keep_classes": 2}, r"note: 80 of 240 .* of 1 class \(2\): keep-classes 2"),
        ("dirichlet", {"clients": 3}, ""),
        ("shards", {"clients": 3, "thinning": 1.0}, r"note: \d+ of 240 rows are left out: thinning 1.0"),
        ("ways-shots", {"clients": 3, "ways": 2}, r"note: \d+ of 240 .* out: partition ways-shots, clients 3, ways 2"),
        ("fedgen", {"clients": 2, "alpha": 5.0, "share": 0.5}, r"note: \d+ of 240 .*: partition fedgen,.* share 0.5"),
    ],
)
def test_rows_that_nobody_holds_are_counted_in_a_line(
    partition: str, fields: dict, lines: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    said = told(clinics(tmp_path / "clinics.npz"), capsys, partition, **fields)
    assert re.fullmatch(lines + (".*" if lines else ""), said), said
    if number := re.search(r"note: (\d+) of", said):
        assert 240 - int(number[1]) == len(made(taken(tmp_path / "clinics.npz", partition, **fields)).row)


def uneven(path: Path, sizes: dict[str, int]) -> Path:
    """Owners of so many rows."""
    owner = np.repeat(list(sizes), list(sizes.values()))
    x, y = np.random.default_rng(0).normal(size=(len(owner), 3)), np.arange(len(owner)) % 2
    return saved(path, x=x, y=y, owner=owner)


@pytest.mark.parametrize(
    ("sizes", "partition", "fields", "message"),
    [
        ({"a": 1, "b": 9, "c": 9}, "", {}, r"owners have fewer: a with 1 row for 1 client; .*--min-rows 3\)$"),
        ({"a": 1, "b": 9, "c": 2}, "", {}, r": a with 1 row for 1 client, c with 2 rows for 1 client; "),
        ({"a": 1, "b": 9, "c": 9}, "domains", {}, ": a with 1 row for 1 client; "),
        ({"a": 9, "b": 5}, "domains", {"clients": 4}, ": b with 5 rows for 2 clients; take fewer clients, or"),
        ({n: 1 for n in "abcd"}, "", {"owners": 2, "clients": 1}, ": [a-d] and [a-d] with 2 rows for 1 client; "),
        ({c: 1 for c in "abcdefgh"}, "", {}, "d with 1 row for 1 client, e with 1 row for 1 client, …; "),
    ],
)
def test_owners_with_too_few_rows_are_named_and_can_be_dropped(
    sizes: dict[str, int], partition: str, fields: dict, message: str, tmp_path: Path
) -> None:
    path = uneven(tmp_path / "w.npz", sizes)
    with pytest.raises(UserError, match=message) as told_so:
        made(taken(path, partition, **fields))
    least = int(re.search(r"min-rows (\d+)", str(told_so.value))[1])  # what it advises
    kept = {name: size for name, size in sizes.items() if size >= least}
    if not kept:
        message = f"min_rows {least} leaves no owner, because none has more than 1 row: lower it"
        refused(message, path, partition, min_rows=least, **fields)
        return
    f = made(taken(path, partition, min_rows=least, **{"clients": len(kept)} if fields else {}))
    assert [f.owner(k) for k in range(f.clients)] == list(kept) and len(f.row) == sum(kept.values())


def test_small_owners_can_be_dropped_where_rows_have_owners(tmp_path: Path) -> None:
    path = uneven(tmp_path / "w.npz", {"a": 1, "b": 40, "c": 40})
    f = made(taken(path, "iid", clients=4, min_rows=2))
    assert len(f.row) == 80 and 0 not in f.row
    arrays = dict(np.load(path))
    del arrays["owner"]
    refused("min_rows needs a data set with the owner of each row", saved(tmp_path / "v.npz", **arrays), min_rows=2)


def test_owners_that_only_train_or_only_test_are_named(tmp_path: Path) -> None:
    path = clinics(tmp_path / "clinics.npz")
    arrays = dict(np.load(path))
    test = arrays["owner"] > "clinic-09"
    with pytest.raises(UserError) as refused:
        made(taken(saved(path, **arrays, split=np.where(test, "test", "train"))))
    said = str(refused.value)
    assert "2 of 12 clients (clinic-10, clinic-11) have no train and no val rows" in said
    assert "10 of 12 clients (clinic-00, clinic-01, clinic-02, clinic-03, clinic-04, …) have no test rows" in said
    assert "or leave the split out" in said and made(taken(saved(path, **arrays))).clients == 12  # as it advises


def test_a_client_with_one_row_is_named(tmp_path: Path) -> None:
    path = clinics(tmp_path / "clinics.npz", ["a", "b", "c"], shuffled=False)
    row = np.array([*range(80), *range(80, 160), 160])  # of owner c one
    given = saved(tmp_path / "p.npz", row=row, client=row // 80, split=np.arange(161) % 3)
    refused("p.npz owner c, of 1 row, has no train and no test rows: merge clients, or leave such", path, given)


def test_a_metric_that_is_no_number_names_the_owner(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(
        "import torch\n\ndef rare(scores, y):\n"
        "    seen = (y == 2).float()\n    return (scores.argmax(1) == y).float().mul(seen).sum() / seen.sum()\n"
    )
    path = clinics(tmp_path / "clinics.npz")
    arrays = dict(np.load(path))
    arrays["y"][(arrays["y"] == 2) & (arrays["owner"] == "clinic-05")] = 0
    given = {"dataset": str(saved(path, **arrays)), "val_share": 0.4, "rounds": 1}
    options = ExperimentOptions(algo="local", fields=given, metric=f"{tmp_path}/m.py:rare")
    simulation = Simulation(options.experiment(), {}, made(options.experiment().scenario))
    with pytest.raises(UserError, match=r"returns nan for \d+ rows of 2 classes \(owner clinic-05\)"):
        simulation.step()


def test_python_says_what_is_left_out_too(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = uneven(tmp_path / "w.npz", {"a": 1, "b": 20, "c": 20})
    for call in (
        lambda: fedtune.train("local", dataset=path, min_rows=3, rounds=1),
        lambda: fedtune.objective("local", dataset=path, min_rows=3, rounds=1),
        lambda: fedtune.tunable("local", dataset=path, min_rows=3, rounds=1),
    ):
        call()
        assert "note: 1 of 41 rows is left out, all those of 1 owner (a): min-rows 3" in capsys.readouterr().err
    with pytest.raises(UserError, match="owners have fewer: a with 1 row for 1 client; "):
        fedtune.train("local", dataset=path, rounds=1)
