"""A user's own data without a scenario: their own name and defaults, the same in every command, record and page."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from support.user_data import pictures, saved, wards

from fedtune.analysis.simulation.options import TabulationOptions
from fedtune.commands import run
from fedtune.core.errors import UserError
from fedtune.experiment import scenarios
from fedtune.experiment.user_scenario import data_in_words, notes, taken
from fedtune.studies import partition_view
from fedtune.studies.comparison import plan as comparison_plan
from fedtune.studies.options import ComparisonOptions
from fedtune.tuning import plan
from fedtune.tuning.options.options import ExperimentOptions
from fedtune.tuning.options.search import SearchOptions


def data(folder: Path, kind: str) -> str:
    """A data set of this kind, as it is typed."""
    if kind == "pictures":
        return str(pictures(folder / "pets"))
    arrays = wards()
    if kind == "no owners":
        del arrays["owner"]
    path = saved(folder / "clinics.npz", **arrays)
    if kind == "function":
        text = f"import numpy as np\ndef rows(n=1):\n    return dict(np.load({str(path)!r}))\n"
        (folder / "code.py").write_text(text)
        return f"{folder}/code.py:rows(n=2)"
    return str(path)


NAMES = {"owners": "clinics.npz", "no owners": "clinics.npz", "pictures": "pets/", "function": "code.py:rows(n=2)"}


@pytest.mark.parametrize("kind", NAMES)
def test_own_data_are_the_scenario_where_none_was_given(kind: str, tmp_path: Path) -> None:
    typed, name = data(tmp_path, kind), NAMES[kind]
    options = SearchOptions(algo="fedavg", fields={"dataset": typed}, storage_path=str(tmp_path))
    planned = plan.make(options)
    assert planned.options.scenario == planned.to_record()["scenario_name"] == options.scenario == name
    scenario = planned.workload.scenario
    assert (scenario.val_share, scenario.test_share, scenario.rounds) == (0.15, 0.25, 30)
    assert scenario.partition == ("natural" if kind in ("owners", "function") else "shards")
    assert "digits" not in planned.folder.name and data_in_words(scenario).startswith(name)
    again = SearchOptions.from_record(planned.to_record())  # as a resumed search reads it
    assert again.experiment().scenario == scenario
    plain = name.strip("/").replace(":rows(n=2)", "-rows-n=2")
    assert TabulationOptions(algo="fedavg", fields={"dataset": typed}).folder.name == f"table-fedavg-{plain}"
    compared = ComparisonOptions(algos="fedavg,local", fields={"dataset": typed}, storage_path=str(tmp_path))
    assert comparison_plan.make(compared).folder.name.startswith(f"compare-{plain}-2")


def test_a_scenario_that_was_given_is_kept_and_built_in_data_have_the_default_one(tmp_path: Path) -> None:
    fields = {"dataset": data(tmp_path, "owners")}
    given = ExperimentOptions(algo="fedavg", scenario="digits-w4", fields=fields)
    assert given.scenario == "digits-w4" and given.experiment().scenario.rounds == 60
    for built_in in ({}, {"dataset": "digits"}, {"partition": "iid"}):
        assert ExperimentOptions(algo="fedavg", fields=built_in).scenario == "digits-shards"


def test_another_datas_name_is_no_scenario(tmp_path: Path) -> None:
    for fields in ({}, {"dataset": data(tmp_path, "owners")}, {"dataset": "digits"}):
        with pytest.raises(UserError, match="unknown scenario 'others.npz': .* by --dataset"):
            ExperimentOptions(algo="fedavg", scenario="others.npz", fields=fields).experiment()


def test_words_name_what_is_not_as_on_own_data() -> None:
    values = vars(scenarios.OWN) | {"dataset": "clinics.npz"}
    assert scenarios.in_words("clinics.npz", values) == "clinics.npz"
    assert scenarios.in_words("clinics.npz", values | {"rounds": 9}) == "clinics.npz (rounds = 9)"
    follows = {"partition": "natural", "owners": 1, "clients": 12, "model": "mlp", "x_as": "numbers"}
    assert scenarios.in_words("clinics.npz", values | follows) == "clinics.npz", "as the data have it"
    given = {"dataset": "clinics.npz", "clients": 5, "rounds": 9}
    assert scenarios.in_words("clinics.npz", values | follows | given, given) == "clinics.npz (clients = 5, rounds = 9)"
    values = vars(scenarios.find("digits-w4")) | {"rounds": 9}
    assert scenarios.in_words("digits-w4", values) == "digits-w4 (rounds = 9)"


def test_what_was_found_on_own_data_is_trained_on_them_again_or_on_others(tmp_path: Path) -> None:
    typed = data(tmp_path, "owners")
    options = ExperimentOptions(algo="fedavg", fields={"dataset": typed})
    options.experiment()
    best = {
        "algorithm": "fedavg",
        "scenario": "clinics.npz",
        "hyperparameters": {"lr": 0.1},
        "overrides": {"dataset": "clinics.npz", "model": "mlp", "rounds": 7},
    }
    again = ExperimentOptions(**run.over_best(best, {}))
    assert again.scenario == "clinics.npz" and again.experiment().scenario.rounds == 7
    other = saved(tmp_path / "other.npz", **wards(360))
    theirs = ExperimentOptions(**run.over_best(best, {"fields": {"dataset": str(other)}}))
    assert theirs.scenario == "other.npz" and theirs.experiment().scenario.dataset == "other.npz"


@pytest.mark.parametrize("kind", ["digits", "no owners", "owners"])
def test_help_shows_the_values_that_will_be_used(kind: str, tmp_path: Path) -> None:
    fields = {} if kind == "digits" else {"dataset": data(tmp_path, kind)}
    used = ExperimentOptions(algo="fedavg", fields=fields).experiment().scenario
    parser = run.parser()
    shown = {a.dest.removeprefix("field_"): a for a in [*parser._actions, *parser.settable]}
    shown = {name: a for name, a in shown.items() if name in vars(used)}
    assert shown.keys() == vars(used).keys()
    follow = {"model", "partition", "clients", "owners"}  # from the data, which help says in words
    for name, action in shown.items():
        default = re.search(r"\(default (.*?)\)", action.help)[1]
        said = action.help.partition("on your own data: ")[2]
        if kind == "digits":
            assert default == str(getattr(used, name)), name
        elif name in follow:
            assert said
        elif name != "dataset":
            assert (said or default) == str(getattr(used, name)), name


@pytest.mark.parametrize(
    ("fields", "title"),
    [
        ({}, "Partition natural of clinics.npz, owners 1"),
        ({"partition": "domains", "shards": 9, "alpha": 3}, "Partition domains of clinics.npz"),
        ({"partition": "iid", "thinning": 1, "clients": 3}, "Partition iid of clinics.npz, thinning 1.0"),
        ({"partition": "shards", "shards": 4, "clients": 3}, "Partition shards of clinics.npz, shards 4"),
        ({"min_rows": 4, "power": 2}, "Partition natural of clinics.npz, owners 1, min_rows 4"),
    ],
)
def test_the_pictures_title_names_what_the_partition_uses(fields: dict, title: str, tmp_path: Path) -> None:
    options = ExperimentOptions(algo="fedavg", fields={"dataset": data(tmp_path, "owners")} | fields)
    assert partition_view.title(options.experiment().scenario) == title


MODELS = """from torch import nn
class Mean(nn.Module):
    def forward(self, x): return x.mean(1)
class Float(nn.Module):
    def forward(self, x): return x.float().flatten(1)
def net(shape, classes, kind):
    n, size = nn.Module(), 1
    for s in shape: size *= s
    if kind == "words": n.body = nn.Sequential(nn.Embedding(50, 8), Mean())
    if kind == "table": n.body = nn.Sequential(nn.Linear(shape[0], 8), nn.ReLU())
    if kind == "time": n.body = nn.Sequential(nn.Conv1d(shape[0], 8, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    if kind == "picture": n.body = nn.Sequential(nn.Conv2d(shape[0], 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    if kind == "both": n.body = nn.Sequential(Float(), nn.Linear(size, 8))
    n.head = nn.Linear(8, classes)
    return n
"""
WHOLE, PLANES, LAST = np.arange(240).reshape(40, 6) % 50, np.zeros((40, 8, 9)), np.zeros((40, 8, 9, 7))


@pytest.mark.parametrize(
    ("x", "model", "kind"),
    [
        (WHOLE, "net.py:net(kind='words')", "tokens"),
        (WHOLE, "net.py:net(kind='table')", "numbers"),
        (WHOLE, "tokens", "tokens"),
        (WHOLE, "mlp", "numbers"),
        (PLANES, "net.py:net(kind='time')", "series"),
        (PLANES, "net.py:net(kind='picture')", "images"),
        (PLANES, "cnn8", "images"),
        (WHOLE, "net.py:net(kind='both')", ""),
        (PLANES, "mlp", ""),
        (LAST, "net.py:net(kind='picture')", ""),  # whichever axis the channels are, it runs
        (WHOLE, "", ""),
    ],
)
def test_a_model_that_takes_one_kind_of_rows_only_says_what_they_are(
    x: np.ndarray, model: str, kind: str, tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text(MODELS)
    named = model.replace("net.py", str(tmp_path / "net.py"))
    fields = {"dataset": str(saved(tmp_path / "x.npz", x=x, y=np.arange(40) % 2)), "partition": "iid", "clients": "2"}
    fields |= {"model": named} if model else {}
    if not kind:
        with pytest.raises(UserError, match="--x-as"):
            taken("digits-shards", fields)
        return
    scenario, *_ = taken("digits-shards", fields)
    assert scenario.x_as == kind and f"x of x.npz is taken as {kind} (--x-as)" in notes(scenario)


@pytest.mark.parametrize(
    ("fields", "clients"),
    [
        ({"skip_classes": 2}, 4),
        ({"skip_classes": "2", "keep_classes": 2}, 3),
        ({"keep_classes": 3, "min_rows": 20}, 3),
        ({"skip_classes": 2, "owners": 2}, 2),
    ],
)
def test_owners_whose_classes_are_all_skipped_are_no_clients(fields: dict, clients: int, tmp_path: Path) -> None:
    """Owner c holds class c, and one more holds some of each."""
    y = np.repeat(np.arange(5), 30)
    owner = np.where(np.arange(150) % 10 == 0, 5, y)
    np.savez(tmp_path / "skip.npz", x=np.zeros((150, 2), np.float32), y=y, owner=owner)
    found = taken("digits-shards", {"dataset": str(tmp_path / "skip.npz"), **fields})[0]
    assert found.clients == clients
