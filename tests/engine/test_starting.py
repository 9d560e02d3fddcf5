"""Where round 0 comes from: the common draw, each client's own, or weights from a file."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.algorithms import every
from support.helpers import DIGITS, assert_same_numbers, numbers, play, random_federation
from torch import Tensor, nn

from fedtune.core import randomness
from fedtune.core.errors import UserError
from fedtune.engine import model_file, simulation
from fedtune.engine.simulation import Simulation
from fedtune.experiment import initial_weights
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.nn import architectures
from fedtune.tuning.options.options import ExperimentOptions
from fedtune.user_code import user_files

DATA = random_federation([5, 9, 7], total=10)
FEW = DIGITS.override(clients=3, ways=2)
MIXED = FEW.override(model="htmini3")


def begun(name: str, file: Path | str = "", scenario: Scenario = FEW, start: str = "common") -> Simulation:
    """A run in float64 at round 0 that starts from a file."""
    started = initial_weights.take(str(file))[0] if file else ""
    experiment = Experiment(algorithm=name, scenario=scenario, executor="stack", start=start, start_from=started)
    experiment.check()
    return Simulation(experiment, {}, DATA, torch.float64)


def said(name: str, file: Path | str, scenario: Scenario = FEW) -> str:
    return Experiment(algorithm=name, scenario=scenario, start_from=initial_weights.take(str(file))[0]).describe_start()


def saved(path: Path, tensors: Any) -> Path:
    torch.save(tensors, path)
    return path


def net(seed: int = 5, model: str = "mlp") -> architectures.Net:
    return architectures.build(model, (1, 8, 8), 10, 12, seed)


def of_client(sim: Simulation, k: int) -> dict[str, Tensor]:
    """Client k's whole model."""
    own = {n.removeprefix(f"client {k}/"): t for n, t in numbers(sim.state).items() if n.startswith(f"client {k}/")}
    return own | dict(sim.state.server.get("shared", {}))


@pytest.mark.parametrize("name", every())
def test_every_algorithm_starts_every_client_from_the_file(name: str, tmp_path: Path) -> None:
    tensors = net().state_dict()
    sim = begun(name, saved(tmp_path / "net.pt", tensors))
    plain = begun(name)
    for k in range(3):
        mine, drawn = of_client(sim, k), of_client(plain, k)
        assert all(torch.equal(mine[n], t.double()) for n, t in tensors.items() if n in mine)
        assert mine.keys() == drawn.keys() and all(torch.equal(mine[n], drawn[n]) for n in mine if n not in tensors)
    play(sim, 1)


def test_the_named_part_only_and_whatever_the_file_calls_it(tmp_path: Path) -> None:
    tensors, plain = net().state_dict(), of_client(begun("fedavg"), 0)
    whole = saved(tmp_path / "net.pt", tensors)
    alone = saved(tmp_path / "body.pt", net().body.state_dict())  # 1.weight, …
    wrapped = saved(tmp_path / "checkpoint.pt", {"state_dict": tensors, "epoch": 3})
    for file, taken in ((f"{whole}:body", "body"), (f"{whole}:head", "head"), (alone, "body"), (wrapped, "")):
        mine = of_client(begun("fedavg", file), 0)
        for n, t in mine.items():
            assert torch.equal(t, tensors[n].double() if n.startswith(taken) else plain[n])
    assert said("fedavg", f"{whole}:body") == "body from net.pt (4 tensors); not used: head.weight, head.bias"


def test_a_trained_model_goes_on_in_another_algorithm(tmp_path: Path) -> None:
    first = begun("fedavg")
    play(first, 2)
    file = tmp_path / "fedavg.pt"
    model_file.write(file, Experiment(algorithm="fedavg", scenario=FEW), {}, first)
    shared = first.state.server["shared"]
    second = begun("fedper", f"{file}:body")
    plain = begun("fedper")
    for n, t in of_client(second, 1).items():
        assert torch.equal(t, shared[n] if n.startswith("body") else of_client(plain, 1)[n])
    third = begun("local", file)
    assert all(torch.equal(t, shared[n]) for n, t in of_client(third, 2).items())


def test_what_was_each_clients_own_stays_its_own(tmp_path: Path) -> None:
    first = begun("fedper")
    play(first, 2)
    file = tmp_path / "fedper.pt"
    model_file.write(file, Experiment(algorithm="fedper", scenario=FEW), {}, first)
    again = begun("fedper", file)
    assert_same_numbers(numbers(again.state), numbers(first.state))
    assert said("fedavg", file).startswith("body from fedper.pt (4 tensors); not used: head.weight, head.bias; head of")
    for name, words in (
        ("fedavg", "head.weight is each client's own in the file and shared by all in the model"),
        ("fedper", "which has 3 clients but no client 3"),
    ):
        with pytest.raises(UserError, match=f"head of fedper.pt does not fit this model: .*{words}"):
            said(name, f"{file}:head", FEW.override(clients=4))


def test_torchvisions_file_fits_the_bodies_made_of_its_networks(tmp_path: Path) -> None:
    from fedtune.core.torchvision_import import models

    with torch.random.fork_rng(devices=[]):
        theirs = models.resnet18(weights=None).state_dict()
    old = {n: t for n, t in theirs.items() if not n.endswith("num_batches_tracked")}  # as torchvision's files are
    file = saved(tmp_path / "resnet18-5c106cde.pth", old)
    scenario = Scenario(dataset="cifar10", model="resnet18", clients=2)
    assert said("fedavg", file, scenario) == (
        "body from resnet18-5c106cde.pth (100 tensors); drawn at random: "
        "body.1.weight, body.1.bias; not used: fc.weight, fc.bias"
    )
    ours = architectures.build("resnet18", (3, 32, 32), 10).state_dict()
    target = initial_weights.Target({n: t.shape for n, t in ours.items()}, (), (0, 1))
    names = initial_weights.fit(initial_weights.find(file.name), target).names
    assert names["body.0.layer4.1.bn2.running_var"] == "layer4.1.bn2.running_var" and len(names) == 100
    mixed = scenario.override(model="mcmahan-cnn,resnet18-pooled")
    assert said("fedproto", file, mixed).endswith("1 of 2 architectures use none of it")


def test_a_users_module_starts_from_its_own_state_dict(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\n\ndef net(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, classes))\n"
    )
    model, _ = user_files.take(f"{tmp_path}/net.py:net(head='3')")
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
    sim = begun("fedper", saved(tmp_path / "own.pt", own.state_dict()), FEW.override(model=model, features=0))
    mine = of_client(sim, 1)
    assert torch.equal(mine["body.1.weight"], own[1].weight.double())
    assert torch.equal(mine["head.weight"], own[3].weight.double())


@pytest.mark.parametrize(
    ("name", "scenario"),
    [("fedper", FEW), ("fml", FEW), ("local", MIXED), ("fml", MIXED), ("gfpl", MIXED), ("fedproto", MIXED)],
)
def test_each_client_may_draw_at_its_own_address(name: str, scenario: Scenario) -> None:
    sim, common = begun(name, scenario=scenario, start="own"), begun(name, scenario=scenario)
    for k in range(3):
        member = sim.setup.task.models[k % len(sim.setup.task.models)]
        drawn = architectures.build(member, (1, 8, 8), 10, 12, randomness.number(0, "net", k)).state_dict()
        mine = of_client(sim, k)
        own = [n for n in drawn if n not in sim.state.server.get("shared", {})]
        assert own and all(torch.equal(mine[n], drawn[n].double()) for n in own)
    first, second = sim.state.server.get("shared", {}), common.state.server.get("shared", {})
    assert all(torch.equal(first[n], t) for n, t in second.items())
    play(sim, 1)


def test_weights_come_over_each_clients_own_draw(tmp_path: Path) -> None:
    sim = begun("local", f"{saved(tmp_path / 'net.pt', net().state_dict())}:body", start="own")
    a, b = of_client(sim, 0), of_client(sim, 1)
    assert torch.equal(a["body.1.weight"], b["body.1.weight"]) and not torch.equal(a["head.weight"], b["head.weight"])


WRONG: dict[str, tuple[Any, str, str]] = {
    "a module": (nn.Linear(2, 2), "", "net.pt has no weights that can be loaded without running code"),
    "a list": ([1, 2], "", "weights must be a state_dict, or a file from fedtune run --save, but net.pt holds a list"),
    "nothing": ({}, "", "but net.pt holds an empty dictionary"),
    "a run without groups": ({"experiment": {}, "state": {"groups": 3}}, "", "net.pt has no weights"),
    "a run without a server": ({"experiment": {}, "state": {"server": 3, "groups": []}}, "", "net.pt has no weights"),
    "numbers": ({"lr": 0.1}, "", "but net.pt holds a dictionary with 'lr'"),
    "nan": (net().state_dict() | {"head.bias": torch.full((10,), torch.nan)}, "", "head.bias of net.pt has nan or inf"),
    "another net": ({"conv.weight": torch.ones(3)}, "", "net.pt has no tensor of this model; it has conv.weight"),
    "another shape": (
        net().state_dict() | {"body.1.weight": torch.ones(3, 64)},
        ":body",
        "body of net.pt does not fit this model: body.1.weight is 3×64 in the file and 128×64 in the model",
    ),
    "a hole": (
        {n: t for n, t in net().state_dict().items() if n != "body.3.bias"},
        ":body",
        "body.3.bias is missing in the file",
    ),
    "a deeper net": (net().state_dict() | {"body.9.bias": torch.ones(1)}, ":body", "body.9.bias is only in the file"),
    "no such part": (net().state_dict(), ":haed", "unknown part 'haed': did you mean 'head'"),
    "an absent part": (
        net().body.state_dict(),
        ":head",
        "head of net.pt does not fit this model: the file has no tensor of it",
    ),
    "none fits": (
        net(model="cnn8").state_dict() | {"head.bias": torch.ones(1)},
        "",
        "body of net.pt does not fit this model",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_file_that_does_not_fit_is_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    content, part, words = WRONG[kind]
    file = saved(tmp_path / "net.pt", content)
    with pytest.raises(UserError) as error:
        begun("fedavg", f"{file}{part}")
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_not_there_or_cut_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--start-from takes FILE.pt or FILE.pt:part, but .*none.pt cannot be read: No"):
        begun("fedavg", tmp_path / "none.pt")
    file = saved(tmp_path / "cut.pt", net().state_dict())
    file.write_bytes(file.read_bytes()[:-300])
    with pytest.raises(UserError, match="cut.pt has no weights that can be loaded without running code"):
        begun("fedavg", file)


def test_a_worker_needs_neither_the_models_file_nor_the_weights(tmp_path: Path) -> None:
    """What is pickled is all there is: another process trains to the same numbers where the files are gone."""
    there = tmp_path / "mine"
    there.mkdir()
    (there / "net.py").write_text(
        "from torch import nn\nfrom widths import WIDTH\n\n\ndef net(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, classes))\n"
    )
    (there / "widths.py").write_text("WIDTH = 12\n")
    saved(there / "net.pt", nn.Sequential(nn.Flatten(), nn.Linear(64, 12)).state_dict())
    given = {"algo": "fedper", "fields": {"model": f"{there}/net.py:net(head='3')", "clients": 3, "rounds": 2}}
    experiment = ExperimentOptions(**given, start_from=f"{there}/net.pt:body").experiment()
    rows = [row["val_acc"] for row in simulation.train(experiment, {})]
    (tmp_path / "pickled").write_bytes(pickle.dumps(experiment))
    shutil.rmtree(there)
    code = (
        "import pickle, sys; from fedtune.engine import simulation\n"
        "e = pickle.load(open(sys.argv[1], 'rb')); print([row['val_acc'] for row in simulation.train(e, {})])"
    )
    told = subprocess.run([sys.executable, "-c", code, "pickled"], cwd=tmp_path, capture_output=True, text=True)
    assert told.stdout.strip() == str(rows), told.stderr


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("w.pt", ("w.pt", "")),
        ("w.pt:body", ("w.pt", "body")),
        ("a:b.pt", ("a:b.pt", "")),
        ("C:/x,y", ("C:/x,y", "")),
        ("it's [1]:2/w.pt:head", ("it's [1]:2/w.pt", "head")),
        ("fmnist-first5:body", ("fmnist-first5", "body")),
    ],
)
def test_weights_are_named_whatever_their_file_is_called(reference: str, parts: tuple[str, str]) -> None:
    assert initial_weights.parse(reference) == parts
