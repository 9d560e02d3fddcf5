"""A user's own data set: what is read of files, folders and functions, whose each row is, how it is normalised."""

from __future__ import annotations

import json
import pickle
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.foreign_data import TRUSTED, pfllib
from support.user_algorithms import as_in_another_process
from support.user_data import loaded, made, pictures, refused, saved, taken, wards

from fedtune.core.errors import UserError
from fedtune.data import datasets, user_data
from fedtune.data.federation import Federation
from fedtune.engine.built_in import ENGINE
from fedtune.experiment import partitioning
from fedtune.experiment.scenario import Scenario
from fedtune.runs import user_copies
from fedtune.tuning.options.options import ExperimentOptions
from fedtune.user_code import entry_points, user_files

SPLITS = ("train", "val", "test")


def rows(f: Federation, k: int, *splits: str) -> np.ndarray:
    tables = [getattr(f, split) for split in splits or SPLITS]
    return np.concatenate([t.rows[k, : t.counts[k]] for t in tables])


def test_a_table_with_owners_is_partitioned_by_them_and_a_client_is_an_owner(tmp_path: Path) -> None:
    arrays = wards()
    scenario = taken(saved(tmp_path / "wards.npz", **arrays), normalise="none")
    assert (scenario.dataset, scenario.partition, scenario.clients, scenario.owners) == ("wards.npz", "natural", 6, 1)
    assert scenario.model == "mlp" and datasets.describe("wards.npz") == (5, 3) and not datasets.has_tokens("wards.npz")
    f = made(scenario)
    assert f.shape == (5,) and f.classes == 3 and f.x.dtype == np.float32
    whose = {frozenset(map(float, x[:, 0])) for x in np.split(arrays["x"].astype(np.float32), 6)}
    assert {frozenset(map(float, f.x[rows(f, k), 0])) for k in range(6)} == whose
    groups = taken(tmp_path / "wards.npz", owners=2)
    assert groups.clients == 3 and made(groups).train.counts.sum() + made(groups).test.counts.sum() > 180


def test_other_partitions_take_it_as_any_data_set(tmp_path: Path) -> None:
    path = saved(tmp_path / "wards.npz", **wards())
    for partition, clients in (("dirichlet", 4), ("shards", 4), ("iid", 4), ("domains", 6), ("ways-shots", 4)):
        scenario = taken(path, partition, clients=clients, ways=2)
        assert scenario.partition == partition and made(scenario).clients == clients
    assert taken(path, "domains").clients == 6
    assert taken(path, "iid").clients == Scenario().clients


@pytest.mark.parametrize("kind", ["names", "gaps", "bools"])
def test_classes_are_numbered_in_order_and_keep_their_names(kind: str, tmp_path: Path) -> None:
    arrays = wards()
    names: dict[str, Any] = {"names": ["flu", "none", "sars"], "gaps": [3, 10, 12], "bools": [False, True, True]}
    y = np.array(names[kind])[arrays["y"]]
    scenario = taken(saved(tmp_path / "wards.npz", x=arrays["x"], y=y), clients=4, partition="iid")
    data = datasets.load(scenario.dataset)
    assert data.class_names == tuple(map(str, dict.fromkeys(names[kind]))) and data.classes == len(data.class_names)
    np.testing.assert_array_equal(np.array(data.class_names)[data.y], y.astype(str))


def test_named_classes_may_be_absent_from_the_rows(tmp_path: Path) -> None:
    scenario = taken(saved(tmp_path / "w.npz", **wards(), classes=["a", "b", "c", "d"]))
    assert datasets.describe(scenario.dataset)[-1] == 4 and made(scenario).classes == 4


def test_features_are_standardised_by_training_rows_alone(tmp_path: Path) -> None:
    arrays = wards()
    path = saved(tmp_path / "wards.npz", **arrays)
    f, raw = made(taken(path)), made(taken(path, normalise="none"))
    train = np.concatenate([rows(f, k, "train") for k in range(f.clients)])
    np.testing.assert_allclose(f.x[train].mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(f.x[train].std(0), 1, atol=1e-5)
    np.testing.assert_array_equal(f.y, raw.y)
    mean, std = raw.x[train].mean(0, dtype=np.float64), raw.x[train].std(0, dtype=np.float64)
    np.testing.assert_allclose(f.x, (raw.x - mean) / std, atol=1e-5)
    far = dict(arrays, x=arrays["x"].copy())
    of_test = np.isin(arrays["x"][:, 0].astype(np.float32), raw.x[rows(raw, 0, "test"), 0])
    far["x"][of_test] = 1e6
    other = made(taken(saved(tmp_path / "far.npz", **far)))
    np.testing.assert_array_equal(other.x[train], f.x[train])


def test_a_feature_that_never_varies_and_channels_of_images_are_normalised(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (60, 3, 4, 4)).astype(np.uint8)
    x[:, 2] = 7
    scenario = taken(saved(tmp_path / "i.npz", x=x, y=np.arange(60) % 2), "iid", clients=3)
    f = made(scenario)
    assert f.shape == (3, 4, 4) and scenario.model == Scenario().model and (f.x[:, 2] == 0).all()
    train = np.concatenate([rows(f, k, "train") for k in range(3)])
    np.testing.assert_allclose(f.x[train][:, :2].std(axis=(0, 2, 3)), 1, atol=1e-5)
    raw = made(taken(tmp_path / "i.npz", "iid", clients=3, normalise="none"))
    np.testing.assert_allclose(raw.x.max(), x.max() / 255, rtol=1e-6)


@pytest.mark.parametrize(
    ("x", "x_as", "shape", "tokens", "model"),
    [
        (np.zeros((40, 6)), "auto", (6,), False, "mlp"),
        (np.zeros((40, 6), bool), "auto", (6,), False, "mlp"),
        (np.zeros((40, 6), np.int32), "tokens", (6,), True, "tokens"),
        (np.zeros((40, 6), np.int32), "numbers", (6,), False, "mlp"),
        (np.zeros((40, 6), np.uint8), "numbers", (6,), False, "mlp"),
        (np.zeros((40, 6)), "tokens", (6,), True, "tokens"),
        (np.zeros((40, 2, 9)), "series", (2, 9), False, "mlp"),
        (np.zeros((40, 9, 9)), "images", (1, 9, 9), False, Scenario().model),
        (np.zeros((40, 9, 9), np.int64), "images", (1, 9, 9), False, Scenario().model),
        (np.zeros((40, 9, 9), bool), "images", (1, 9, 9), False, Scenario().model),
        (np.zeros((40, 5, 9), np.uint8), "auto", (1, 5, 9), False, Scenario().model),
        (np.zeros((40, 5, 9), np.uint8), "series", (5, 9), False, "mlp"),
        (np.zeros((40, 3, 5, 9), np.float16), "auto", (3, 5, 9), False, Scenario().model),
        (np.zeros((40, 64, 7, 7), np.float32), "auto", (64, 7, 7), False, Scenario().model),
        (np.zeros((40, 8, 8, 3)), "images", (8, 8, 3), False, Scenario().model),
    ],
)
def test_what_rows_are_follows_from_type_axes_and_what_is_said(
    x: np.ndarray, x_as: str, shape: Any, tokens: bool, model: str, tmp_path: Path
) -> None:
    scenario = taken(saved(tmp_path / "d.npz", x=x, y=np.arange(40) % 2), "iid", clients=3, x_as=x_as)
    assert datasets.describe("d.npz", x_as=x_as) == (*shape, 2) and datasets.has_tokens("d.npz", x_as) == tokens
    assert scenario.model == model
    f = made(scenario)
    assert f.shape == shape and f.x.dtype == (np.int64 if tokens else np.float32)
    assert f.to(dtype=f.to().x.double().dtype).x.is_floating_point() != tokens  # tokens stay whole numbers


@pytest.mark.parametrize("names", [SPLITS, ("Training", "dev", "TEST"), None])
def test_the_split_of_a_data_set_is_used(names: tuple[str, ...] | None, tmp_path: Path) -> None:
    arrays = wards()
    split = np.random.default_rng(1).permutation(np.arange(240) % 3)
    given = np.array(names)[split] if names else split
    path = saved(tmp_path / "wards.npz", **arrays, split=given)
    role = dict(zip(arrays["x"][:, 0].astype(np.float32), split, strict=True))
    for partition in ("natural", "iid", "dirichlet", "shards"):
        f = made(taken(path, partition, clients=4, normalise="none"))
        for k in range(4):
            for i, name in enumerate(SPLITS):
                assert {role[v] for v in f.x[rows(f, k, name), 0]} == {i}
    f = made(taken(path, "ways-shots", clients=3, ways=2, normalise="none"))  # draws validation rows by itself
    for name in SPLITS:
        assert all((role[v] == 2) == (name == "test") for k in range(3) for v in f.x[rows(f, k, name), 0])


def test_without_validation_rows_they_are_drawn_from_those_to_train_on(tmp_path: Path) -> None:
    arrays = wards()
    split = np.where(np.arange(240) % 4 == 3, 2, 0)
    f = made(taken(saved(tmp_path / "w.npz", **arrays, split=split), normalise="none", val_share=0.2))
    test = dict(zip(arrays["x"][:, 0].astype(np.float32), split, strict=True))
    assert [table.counts.tolist() for table in (f.train, f.val, f.test)] == [[24] * 6, [6] * 6, [10] * 6]
    assert all(test[v] == 2 * (name == "test") for name in SPLITS for k in range(6) for v in f.x[rows(f, k, name), 0])


def test_a_function_gives_the_data_with_options_and_is_called_once(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", **wards())
    (tmp_path / "code.py").write_text(
        "import numpy as np\nfrom pathlib import Path\nCALLS = []\n"
        "def wards(feature=0, times=1.0):\n"
        "    CALLS.append(1)\n"
        f"    found = dict(np.load({str(tmp_path / 'w.npz')!r}))\n"
        "    return found['x'][:, feature:] * times, found['y'], found['owner']\n"
    )
    one = taken(f"{tmp_path}/code.py:wards(feature=2, times=3.0)")
    assert one.dataset == "code.py:wards(feature=2,times=3.0)" and datasets.describe(one.dataset) == (3, 3)
    f, want = made(one), wards()["x"][:, 2:]
    assert f.clients == 6 and f.shape == (3,)
    raw = made(one.override(normalise="none"))
    assert np.isin(raw.x, (want * 3).astype(np.float32)).all()
    assert len(user_files.load("code.py", "module").CALLS) == 1
    two = taken(f"{tmp_path}/code.py:wards")
    assert datasets.describe(two.dataset) == (5, 3) and made(two).shape == (5,)


def test_the_arrays_of_a_functions_only_call_are_those_that_every_trial_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would return others each time, so a worker that called it would train on other rows."""
    calls = tmp_path / "calls"
    (tmp_path / "code.py").write_text(
        "import numpy as np\n"
        "def make():\n"
        f"    with open({str(calls)!r}, 'a') as file:\n"
        "        file.write('.')\n"
        "    return np.random.default_rng().normal(size=(60, 4)), np.arange(60) % 3\n"
    )
    fields = {"dataset": f"{tmp_path}/code.py:make", "clients": 3, "rounds": 1}
    workload = ExperimentOptions(algo="fedavg", fields=fields).experiment()
    loaded = ENGINE.load(workload, None, False)
    data, sent = [ENGINE.prepare(workload, loaded, seed) for seed in (0, 1)], pickle.dumps(workload)
    here = ENGINE.trial(workload, {"lr": 0.1}, data).step()
    as_in_another_process(monkeypatch)
    user_data._read.cache_clear()  # as there
    there = ENGINE.trial(pickle.loads(sent), {"lr": 0.1}, pickle.loads(pickle.dumps(data))).step()
    assert there["val_loss"] == here["val_loss"] and calls.read_text() == "."


def test_what_a_run_knew_of_a_functions_arrays_is_held_against_them_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code.py").write_text(
        f"import numpy as np\ndef make():\n    f = np.load({str(tmp_path / 'w.npz')!r})\n    return f['x'], f['y']\n"
    )
    np.savez(tmp_path / "w.npz", **wards())
    name, files = user_files.take(f"{tmp_path}/code.py:make")
    recorded = user_data.described(name, files)
    as_in_another_process(monkeypatch)
    user_data._read.cache_clear()  # as in another process
    np.savez(tmp_path / "w.npz", **wards(seed=1))
    user_files.register(recorded)  # from the run's record
    scenario = taken(f"{tmp_path}/code.py:make", "iid", clients=4)
    with pytest.raises(UserError, match="code.py:make returned other arrays than before"):
        made(scenario)


@pytest.mark.parametrize(
    ("returned", "got"), [("{'x': 1, 'z': 2}", r"\['x', 'z'\]"), ("[1]", "a list"), ("3", "a int")]
)
def test_a_function_that_returns_something_else_is_told_what(tmp_path: Path, returned: str, got: str) -> None:
    (tmp_path / "code.py").write_text(f"def make():\n    return {returned}\n")
    with pytest.raises(UserError, match=f"code.py:make must return .* but returned {got}$"):
        made(taken(f"{tmp_path}/code.py:make", "iid", clients=4))


def test_a_data_set_of_an_installed_package_is_one_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("ourwards", "support.user_data:wards", "fedtune.datasets")
    monkeypatch.setattr(entry_points, "_points", lambda group: {"ourwards": (point,)} if group == "datasets" else {})
    user_data._read.cache_clear()
    scenario = taken("ourwards")
    assert "ourwards" in datasets.names() and datasets.describe("ourwards") == (5, 3)
    assert scenario.dataset == "ourwards" and scenario.clients == 6 and made(scenario).clients == 6


def test_a_folder_of_pictures_is_read_as_it_is_needed_with_its_classes_names(tmp_path: Path) -> None:
    scenario = taken(pictures(tmp_path / "pets", dog=(8, 8)), "iid", clients=3, normalise="none")
    assert scenario.dataset == "pets/" and datasets.describe("pets/") == (3, 8, 8, 2)
    data = datasets.load("pets/")
    assert data.class_names == ("cat", "dog") and data.y.tolist() == [0] * 12 + [1] * 12 and len(data.x) == 24
    np.testing.assert_allclose(data.x[np.array([15, 2])][:, :, 3, 4] * 255, [[3, 10, 0], [2, 0, 0]], atol=1e-4)
    f = made(scenario)
    np.testing.assert_array_equal(f.y, (f.x[:, 1, 0, 0] > 0).astype(np.int64))
    large = made(taken(tmp_path / "pets", "iid", clients=3, image_size=16))
    assert large.shape == (3, 16, 16)


def test_pictures_of_several_sizes_are_brought_to_one(tmp_path: Path) -> None:
    pictures(tmp_path / "pets", dog=(20, 10))
    refused("pictures of pets/ must have the same size, but differ; give a size .* --image", tmp_path / "pets")
    assert made(taken(tmp_path / "pets", "iid", clients=3, image_size=12)).shape == (3, 12, 12)


def test_a_worker_needs_the_description_and_not_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "wards.npz", **wards())
    name, files = user_files.take(str(path))
    files = user_data.described(name, files)
    assert files[0].content is None and len(pickle.dumps(files)) < 1000
    path.unlink()
    as_in_another_process(monkeypatch)
    fields = {"dataset": "wards.npz", "partition": "natural", "owners": 1, "clients": 6, "model": "mlp"}
    scenario = Scenario(**fields)  # as recorded elsewhere
    with pytest.raises(UserError):
        datasets.describe(scenario.dataset)
    user_files.register(files)
    assert datasets.describe(scenario.override(lr=0.1).dataset) == (5, 3)
    with pytest.raises(UserError, match="wards.npz was read from .*, which no longer exists; restore it"):
        partitioning.make(scenario, 0)


@pytest.mark.parametrize("kind", ["file", "folder", "pfllib"])
def test_a_runs_copy_of_small_data_is_used_when_they_are_gone(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = saved(tmp_path / "w.npz", **wards()) if kind == "file" else tmp_path / "w"
    if kind != "file":
        pictures(data) if kind == "folder" else pfllib(data)
    fields = {"dataset": f"{data}{TRUSTED if kind == 'pfllib' else ''}", "partition": "iid", "clients": 3}
    options = ExperimentOptions(algo="fedavg", fields=fields | {"model": "mlp"})
    experiment = options.experiment()
    before = made(experiment.scenario)
    user_copies.keep(experiment.own, tmp_path / "run")
    record = json.loads(json.dumps({"own": user_copies.to_record(experiment.own)}))
    data.rename(tmp_path / "elsewhere")
    as_in_another_process(monkeypatch)
    user_copies.restore(tmp_path / "run", record)
    again = options.experiment()
    assert again == experiment
    np.testing.assert_array_equal(made(again.scenario).x, before.x)
    for run in ("run", "replay"):  # it is resumed, and replayed elsewhere
        user_copies.keep(again.own, tmp_path / run)
    inside = {"file": "w.npz", "folder": "w/cat/00.png", "pfllib": "w/train/0.npz"}[kind]
    assert (tmp_path / "replay" / "own" / inside).read_bytes() == (tmp_path / "run" / "own" / inside).read_bytes()
    copy = tmp_path / "run" / "own" / inside
    copy.write_bytes(b"another")
    with pytest.raises(UserError, match="is the copy of .*, but it was changed"):
        user_copies.restore(tmp_path / "run", record)


def test_large_data_stay_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_copies, "LARGEST", 1000)
    monkeypatch.setattr(user_files, "copies", {})
    name, files = user_files.take(str(saved(tmp_path / "w.npz", **wards())))
    files = user_data.described(name, files)
    user_copies.keep(files, tmp_path / "run")
    assert not (tmp_path / "run" / "own" / "w.npz").exists()
    (tmp_path / "w.npz").unlink()
    with pytest.raises(UserError, match="the run .* needs .*w.npz, which no longer exists; restore it"):
        user_copies.restore(tmp_path / "run", json.loads(json.dumps({"own": user_copies.to_record(files)})))


RNG = np.random.default_rng(5)
REAL, MANY = "y of .* holds real numbers, .* bin a measurement", r"y of .* has \d+ values in 400 rows, from .* bin a"
TARGETS = {  # measurements -> what is said of them
    "real": (RNG.normal(100, 15, 400), REAL),
    "float32": (RNG.random(400).astype(np.float32), REAL),
    "disease progression": (RNG.integers(25, 346, 400), MANY),
    "ages": (18 + np.arange(400) % 70, "has 70 values in 400 rows, from 18 to 87: .* as text"),
    "scores": (5 * RNG.integers(0, 25, 400), MANY),
    "text": (RNG.normal(size=400).astype(str), MANY),
}
FOUR = {"x": np.ones((4, 2)), "y": [0, 1, 0, 1], "owner": [0, 1, 0, 1]}
GAP = "must have a value for every row, but 1 of 4 have none, the first is row"
UNNAMED: list[tuple[dict[str, Any], str]] = [  # arrays whose rows have no name, or two have one
    (FOUR | {"owner": ["a", "", "b", " "]}, "owner of .* but 2 of 4 have none, the first is row 1"),
    (FOUR | {"owner": [1.0, 2.0, np.nan, 3.0]}, f"owner of .* {GAP} 2"),
    (FOUR | {"owner": [1.5, 2.0, 1.0, 2.0]}, "whole numbers or names, but holds real numbers, from 1 to 2"),
    (FOUR | {"y": [0.0, np.nan, 1.0, 0.0]}, f"y of .* {GAP} 1"),
    (FOUR | {"y": ["a", "b", "", "a"]}, f"y of .* {GAP} 2"),
    (FOUR | {"classes": ["b", "a", "b"]}, "classes of .* different names, but 'b' occurs twice"),
    (FOUR | {"classes": [1, 2, 1]}, "but '1' occurs twice"),
    (FOUR | {"owner": ["a\n", r"a\n"] * 2}, "must look different"),
]


@pytest.mark.parametrize("i", range(len(UNNAMED)))
def test_a_row_without_a_name_of_its_own_is_refused(i: int, tmp_path: Path) -> None:
    arrays, message = UNNAMED[i]
    refused(message, saved(tmp_path / "w.npz", **arrays))


SHOWN = {n: n.encode("unicode_escape").decode() for n in ("ward\n1", "a\tb", "red\x1b[31m", "end\u2028")}
SHOWN |= {"Ä b|<c>": "Ä b|<c>"}


@pytest.mark.parametrize("name", SHOWN)
def test_a_name_is_one_line_wherever_it_is_shown(name: str, tmp_path: Path) -> None:
    x, names, path = np.zeros((12, 2)), np.array([name, "plain"] * 6), tmp_path / "w.npz"
    data = loaded(saved(path, x=x, y=names, owner=names))
    assert {*data.class_names} == {*data.owner_names} == {SHOWN[name], "plain"}
    numbered = loaded(saved(path, x=x, y=np.arange(12) % 2, classes=names[:2]))
    assert numbered.class_names == (SHOWN[name], "plain")


@pytest.mark.parametrize("what", TARGETS)
def test_measurements_are_no_targets_and_the_way_to_bin_them_is_one(what: str, tmp_path: Path) -> None:
    y, message = TARGETS[what]
    path, x = tmp_path / "w.npz", np.arange(1200.0).reshape(400, 3)
    refused(message, saved(path, x=x, y=y))
    y = y.astype(float)
    taken(saved(path, x=x, y=np.digitize(y, np.quantile(y, [0.25, 0.5, 0.75]))), "iid")  # as it advises


def test_many_classes_by_number_are_taken_as_they_are_counted_or_as_names(tmp_path: Path) -> None:
    path, x, y = tmp_path / "w.npz", np.arange(1200.0).reshape(400, 3), np.arange(400) % 40
    by_name = sorted(map(str, range(0, 280, 7)))
    for classes, names in ((y, range(40)), (y + 1, range(1, 41)), ((7 * y).astype(str), by_name)):
        data = loaded(saved(path, x=x, y=classes))
        assert data.class_names == tuple(map(str, names))
    for numbers in (y % 5 * 30, y % 5 * 30.0):  # a class such as 30.0 is 30, as in every other format
        assert loaded(saved(path, x=x, y=numbers)).class_names[-1] == "120"
