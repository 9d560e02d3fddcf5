"""Settings with room between clients alone and the best: few shots, a common extractor, real digits, many classes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from support.helpers import numbers, play, random_federation

from fedtune.core.errors import UserError
from fedtune.data import datasets
from fedtune.data.dataset import Dataset
from fedtune.engine.simulation import Simulation
from fedtune.experiment import initial_weights, partitioning
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import BODIES, Scenario
from fedtune.experiment.scenarios import SCENARIOS, find
from fedtune.nn import architectures
from fedtune.tuning.options.options import ExperimentOptions

# training and test rows of each class
STOCK = {
    "fashion-mnist": [(6000, 1000)] * 10,
    "mnist-5k": [(500, 0)] * 10,
    "fashion-mnist+mnist-5k": [(7000, 0)] * 10 + [(500, 0)] * 10,
    "fashion-mnist-rot4": [(1500, 250)] * 40,
}
KINDS = ("gfpl-fmnist-few", "gfpl-fmnist-common", "gfpl-mnist5k", "gfpl-20", "gfpl-40")
ROOM = [name for name in SCENARIOS if name.startswith(KINDS)]
BODY = "fmnist-first5"
SHA256 = "d784503c95a25a394ad89b6285156b7576ad06501042493b822e71317c6b8270"
TINY = random_federation([4, 6, 5], total=10, shape=(1, 28, 28))


def of_shape(name: str) -> Dataset:
    """Labels as the data set has them; its images play no part in who holds what."""
    stock = STOCK[name]
    parts = [np.repeat(np.arange(len(stock)), [rows[i] for rows in stock]) for i in (0, 1)]
    y = np.concatenate(parts)
    assert datasets.describe(name)[-1] == len(stock)
    return Dataset(name, np.zeros((len(y), 1, 1, 1), np.float32), y, len(stock), len(parts[0]))


@pytest.mark.parametrize("name", ROOM)
def test_every_setting_can_be_partitioned_as_it_says(name: str) -> None:
    s, data = find(name), of_shape(find(name).dataset)
    for seed in range(5):
        f = partitioning.partition(data, s, seed)
        for k in range(s.clients):
            splits = {"t": f.train, "v": f.val, "e": f.test}
            held = {name: np.bincount(f.y[t.rows[k, : t.counts[k]]]) for name, t in splits.items()}
            own = np.flatnonzero(held["t"])
            assert abs(len(own) - s.ways) <= s.ways_spread
            assert set(held["t"][own]) <= set(range(s.shots - s.shots_spread, s.shots + s.shots_spread + 1))
            assert set(held["v"][own]) == {s.val_shots} and set(held["e"][own]) == {s.test_shots}


def test_keep_classes_leaves_out_what_comes_after() -> None:
    data = datasets.load("digits")
    f = partitioning.partition(data, Scenario(skip_classes=2, keep_classes=3, ways=3, clients=5, partition="iid"), 0)
    rows = np.flatnonzero((data.y >= 2) & (data.y < 5))
    assert sorted(np.bincount(f.y)) == sorted(np.bincount(data.y[rows])[2:]) and f.classes == 10
    all_of_them = partitioning.partition(data, Scenario(keep_classes=10), 0)
    np.testing.assert_array_equal(all_of_them.x, partitioning.partition(data, Scenario(), 0).x)
    # shifts draw among the classes that there are
    wrong = partitioning.partition(data, Scenario(keep_classes=4, label_noise=1.0, partition="iid"), 0)
    assert set(wrong.y) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keep_classes": 1}, "keep_classes must be 2 to the 10 classes there are, or 0 for all, but got 1"),
        ({"keep_classes": -1}, "keep_classes must be 2 to the 10 classes there are"),
        ({"keep_classes": 8, "skip_classes": 3}, "keep_classes must be 2 to the 7 classes there are"),
        ({"keep_classes": 3}, "ways must be at most the 3 classes of digits that are in use, but got 4"),
        ({"keep_classes": 3, "skip_classes": 1}, "the 3 classes of digits that are in use"),
        ({"pretrained": "fmnist-first"}, "unknown pretrained body 'fmnist-first': did you mean 'fmnist-first5'"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Scenario(**change)  # type: ignore[arg-type]


def test_the_body_is_what_its_scenario_trains() -> None:
    """Its file never changes: another body would need another name."""
    file = BODIES[BODY]
    assert [*BODIES] == [BODY]
    assert hashlib.sha256(file.read_bytes()).hexdigest() == SHA256
    kept = torch.load(file, weights_only=True)
    of = kept["experiment"]
    assert (of["algorithm"], of["seed"], kept["config"], of["pinned"]) == ("fedavg", 0, {}, {})
    assert Scenario(**of["scenario"]) == find(BODY) and kept["state"]["round"] == find(BODY).rounds


def test_nobody_holds_a_class_that_the_body_has_seen() -> None:
    for name in ("gfpl-fmnist-common", "gfpl-fmnist-common-frozen"):
        s, made = find(name), find(BODY)
        assert s.pretrained == BODY and s.dataset == made.dataset and s.model == made.model
        assert made.skip_classes == 0 and made.keep_classes == s.skip_classes == 5
    assert find("gfpl-fmnist-common").body_lr_scale == 0.1 and find("gfpl-fmnist-common-frozen").frozen == ("body",)


@pytest.mark.parametrize("name", ["fedavg", "gfpl"])
@pytest.mark.parametrize("pace", [0.0, 0.1])
def test_every_model_starts_from_the_body_and_a_frozen_one_stays(name: str, pace: float) -> None:
    given = {n: t.double() for n, t in initial_weights.find(BODY).common.items() if n.startswith("body.")}
    scenario = find("gfpl-fmnist-common").override(clients=3, body_lr_scale=pace, all_classes=0)
    sim = Simulation(Experiment(algorithm=name, scenario=scenario, executor="stack"), {}, TINY, torch.float64)

    def from_body() -> list[bool]:
        held = ((n.split("/")[-1], t) for n, t in numbers(sim.state).items())
        return [torch.equal(t, given[n]) for n, t in held if n in given]

    assert from_body() and all(from_body())
    play(sim, 1)
    assert all(from_body()) == (pace == 0)


def test_it_says_where_round_0_comes_from_and_start_from_comes_first(tmp_path: Path) -> None:
    scenario = find("gfpl-fmnist-common").override(clients=3)
    experiment = Experiment(algorithm="fedavg", scenario=scenario)
    said = "body from fmnist-first5 (6 tensors); not used: head.weight, head.bias"
    assert experiment.describe_start() == said and experiment.beginning() == {}
    other = {n: t + 1 for n, t in initial_weights.find(BODY).common.items()}
    torch.save(other, tmp_path / "other.pt")
    options = ExperimentOptions(algo="fedavg", scenario="gfpl-fmnist-common", start_from=f"{tmp_path}/other.pt:body")
    assert options.experiment().describe_start() == said.replace("fmnist-first5", "other.pt")
    with pytest.raises(
        UserError, match="body of fmnist-first5 does not fit this model: .* in the file and .* in the model"
    ):
        Experiment(algorithm="fedavg", scenario=scenario.override(model="fedgen-cnn")).check()


def test_the_body_reads_its_own_classes() -> None:
    """What it has learnt, on the official test rows of classes 0 to 4 that it was not trained on."""
    root = Path(os.environ.get("FEDTUNE_DATA_DIR", ""))
    if not os.environ.get("FEDTUNE_DATA_DIR") or not (root / datasets.SOURCES["fashion-mnist"].folder).is_dir():
        pytest.skip("FEDTUNE_DATA_DIR does not name a folder with Fashion-MNIST")
    net = architectures.build("fedproto-cnn", (1, 28, 28), 10, 50, 0)
    net.load_state_dict(dict(initial_weights.find(BODY).common))
    f = partitioning.make(find(BODY), 0)
    rows = f.test.rows[0]
    with torch.no_grad():
        found = net(torch.from_numpy(f.x[rows])).argmax(1).numpy()
    assert len(rows) == 3500 and (found == f.y[rows]).mean() > 0.91  # .9197 as it was made
