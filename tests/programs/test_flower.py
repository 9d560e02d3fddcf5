"""A Flower app as a program: its run config as the space, its metrics, and one line for what cannot be."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from support.flower_apps import FAKE, PYPROJECT, SERVER, flower_app
from support.programs import finish, start

from fedtune.commands import check
from fedtune.core.errors import UserError
from fedtune.programs import fingerprint, flower, program_file, workload
from fedtune.programs.program_file import Program
from fedtune.programs.workload import ProgramWorkload
from fedtune.tuning.options.search import SearchOptions


@pytest.fixture(autouse=True)
def fake_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FAKE))


@pytest.fixture
def app(tmp_path: Path) -> Path:
    return flower_app(tmp_path / "app")


def of_app(app: Path, *metrics: str, python: str | None = sys.executable, space: Any = (), **more: Any) -> Program:
    named: dict[str, Any] = {name: {} for name in metrics or ["client:eval-acc"]}
    return program_file.of_option(flower=str(app), metrics=named, space=dict(space), python=python, **more)


def test_the_run_config_is_what_can_be_searched(app: Path) -> None:
    program = of_app(app, space={"lr": "1..9 log", "local-epochs": "1..8", "opt": ["sgd", "adam"]})
    hps = program.hyper
    assert program.searched == ("lr", "local-epochs", "opt") and program.rounds == 3 and program.seed == "{seed}"
    assert (hps["lr"].low, hps["lr"].high, hps["lr"].integer) == (1.0, 9.0, False)  # the app's own has a point
    assert hps["local-epochs"].integer and hps["local-epochs"].default == 2 and hps["opt"].default == "sgd"
    assert program.configuration({}) == {"fair": True, "model.width": 8, "lr": 3.0, "local-epochs": 2, "opt": "sgd"}
    has_none = "lr has no default; 3.0 is taken, the middle of its range"
    assert program.notes[:2] == (has_none, "lr is 0.5 in the app, outside of what is searched")
    fixed = of_app(app, defaults={"lr": 2, "opt": "adam", "fair": "false"}).configuration({})
    assert fixed == {"fair": False, "model.width": 8, "lr": 2.0, "local-epochs": 2, "opt": "adam"}


def test_the_options_that_name_the_app_stay_as_they_are(app: Path) -> None:
    assert (options := SearchOptions(algo=str(app))).with_typed(workload.of_program(of_app(app))) == options


def test_metrics_have_names_splits_and_directions(app: Path) -> None:
    metrics = ("client:eval-acc", "server:loss", "train:accuracy", "client_f1", "client:test_acc")
    program = of_app(app, *metrics)
    assert [(name, m.mode, m.split) for name, m in program.metrics.items()] == [
        ("client_eval_acc", "max", None),
        ("server_loss", "min", None),
        ("train_accuracy", "max", "train"),
        ("client_f1", None, None),
        ("client_test_acc", "max", None),
    ]
    assert program.reported == ("client_test_acc",)
    said = "client:eval-acc selects: it is measured on what clients evaluate on, which the app chooses"
    assert any(note.startswith(said) for note in program.notes)


FILE = """
flower = "app"
name = "digits"
rounds = 9
client_cpus = 0.5
[metrics."client:eval-acc"]
[metrics.client_f1]
mode = "max"
split = "validation"
[space]
lr = "0.1..1"
local-epochs = {range = "1..4", when = {opt = "adam"}}
[defaults]
opt = "adam"
"""


def test_a_program_file_may_describe_an_app(app: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(f"python = {sys.executable!r}\n{FILE}")
    program = program_file.read(file)
    assert program.name == "digits" and program.rounds == 9 and program.folder == str(app)
    assert program.selectable() == {"client_eval_acc": "max", "client_f1": "max"}
    assert program.searched == ("lr", "local-epochs") and program.configuration({})["opt"] == "adam"
    file.write_text(FILE.replace("local-epochs", "epochs"))
    with pytest.raises(UserError, match=r"own.toml: space: unknown run-config key 'epochs'"):
        program_file.read(file)


def test_a_seed_of_the_apps_own_is_the_trials(tmp_path: Path) -> None:
    app = flower_app(tmp_path / "app", PYPROJECT.replace("lr = 0.5", "lr = 0.5\nseed = 7\nmodel-seed = 1"))
    program = of_app(app)
    best = ProgramWorkload(program=program, seed=3).to_best("", {"lr": 0.25}, 9)
    words = 'num-server-rounds=9 lr=0.25 seed=3 model-seed=1 local-epochs=2 opt="sgd" fair=true model.width=8'
    assert best["command"] == f"flwr run {app} --run-config '{words}'" and "files" not in best
    assert config(program)["seed"] == "{seed}" and "seed" not in program.hyper and program.hyper["model-seed"]
    assert config(of_app(app, seed_key="model-seed"))["model-seed"] == "{seed}"


def config(program: Program) -> dict[str, Any]:
    """What is written as the app's run config, by dotted key."""
    (file,) = program.write.values()
    return {key.removeprefix("config."): value for key, value in file.entries.items() if key.startswith("config.")}


def test_a_trial_runs_the_app(app: Path, tmp_path: Path) -> None:
    program = of_app(app, "client:eval-acc", "server:loss", space={"lr": "0.1..4"}, rounds=2)
    run = start(program, tmp_path / "runs", {"lr": 3.0}, seed=5, cpus=2)
    rows = finish(run)
    run.test()
    assert [row["server_loss"] for row in rows] == [3.0, 1.5] and 0 < rows[0]["client_eval_acc"] < 1
    said = (tmp_path / "runs" / "trial" / "output.log").read_text()
    assert "client {'num_cpus': 1, 'num_gpus': 0.0} cpus 2" in said and "'lr': 3.0" in said


def test_a_metric_that_the_app_does_not_report_is_told_with_those_that_it_does(app: Path, tmp_path: Path) -> None:
    run = start(of_app(app, "client:accuracy"), tmp_path / "runs")
    with pytest.raises(UserError, match=r"without client_accuracy of the next \(it reported train_clients, .*eval_acc"):
        run.step()
    run.close()


def test_the_interpreter_of_the_apps_own_environment_is_found(app: Path) -> None:
    own = app / ".venv" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.symlink_to(sys.executable)
    assert of_app(app, python=None).command[0] == str(own)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown key": ({"space": {"lrr": "0.1..1"}}, "unknown run-config key 'lrr': did you mean 'lr'? known are fair"),
    "rounds are searched": ({"space": {"num-server-rounds": "1..9"}}, "space.num-server-rounds must be left out"),
    "no key of rounds": ({"rounds_key": "rounds"}, "name the one that is the number of rounds (rounds_key)"),
    "a range for text": ({"space": {"opt": "1..2"}}, "space: opt must be a list of choices, as the app's is 'sgd'"),
    "a broken range": ({"space": {"local-epochs": "0.5..2"}}, "must be of whole numbers, as the app's is 2"),
    "choices of another type": ({"space": {"local-epochs": [1, 1.5]}}, "must be a whole number in any, but got 1.5"),
    "a fixed value of another type": ({"defaults": {"lr": "fast"}}, "defaults: lr must be a number in any"),
    "no range": ({"space": {"lr": "fast"}}, "--algo: space.lr must be a range or a list of choices"),
    "no interpreter": ({"python": "/none/python"}, "python must be an interpreter that has Flower, but '/none/python'"),
    "no clients": ({"clients": 0}, "clients must be greater than or equal to 1, but got 0"),
    "nobody who measures": ({"metrics": ("client:",)}, "must be client:NAME, server:NAME or train:NAME, but got"),
    "another who measures": ({"metrics": ("clients:loss",)}, "must be client:NAME, server:NAME or train:NAME, but got"),
    "a seed that is no number": ({"seed_key": "opt"}, "opt must be a whole number to be a seed (seed_key)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_is_refused_in_a_line(case: str, app: Path) -> None:
    given, said = WRONG[case]
    with pytest.raises(UserError) as error:
        of_app(app, *given.get("metrics", ()), **{key: value for key, value in given.items() if key != "metrics"})
    assert said in str(error.value) and "\n" not in str(error.value)


APPS = {
    "no TOML": ("a = [", "flower must be a folder with the pyproject.toml of an app, but "),
    "no app": ("[project]\nname = 'x'\n", "tool.flwr.app must be a table, but got None"),
    "a table that is none": ("[tool.flwr]\napp = 3\n", "tool.flwr.app must be a table, but got 3"),
    "no clientapp": (PYPROJECT.replace("clientapp", "client"), "components.clientapp must be there, but is missing"),
    "no object": (PYPROJECT.replace("client:app", "client"), "but got 'own.client'"),
    "no module": (PYPROJECT.replace("own.client", "own.clinet"), "cannot be imported: ModuleNotFoundError: "),
    "no federation": (PYPROJECT.replace('"here"', '"there"'), "has no federation 'there'; it has here"),
    "no clients": (PYPROJECT.replace("options.num-supernodes = 3", ""), "must be 1 or more, but is None"),
    "0 clients": (PYPROJECT.replace("supernodes = 3", "supernodes = 0"), "must be 1 or more, but is 0"),
}


@pytest.mark.parametrize("case", APPS)
def test_an_app_that_cannot_be_is_refused_in_a_line(case: str, tmp_path: Path) -> None:
    pyproject, said = APPS[case]
    with pytest.raises(UserError) as error:
        of_app(flower_app(tmp_path / "app", pyproject))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_without_federations_flowers_own_configuration_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.toml").write_text(
        '[superlink]\ndefault = "local"\n[superlink.local]\noptions.num-supernodes = 5'
    )
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    app = flower_app(tmp_path / "app", re.sub(r"(?s)\[tool.flwr.federations\].*", "", PYPROJECT))
    assert any(note.startswith("5 clients, each with 1 CPU") for note in of_app(app).notes)


def test_a_broken_app_is_refused_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="flower must be a folder with the pyproject.toml"):
        of_app(tmp_path / "none")
    with pytest.raises(UserError, match=r"own/client\.py:1: ZeroDivisionError: division by zero$"):
        of_app(flower_app(tmp_path / "broken", client="1 / 0\n"))
    monkeypatch.delenv("PYTHONPATH")
    with pytest.raises(UserError, match=r"cannot import Flower's simulation \(No module named 'flwr'\)"):
        of_app(flower_app(tmp_path / "app"))


def test_an_app_of_a_command_line_is_that_of_a_file(app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    given: dict[str, Any] = {"algo": str(app), "metric": ("client:eval-acc",), "vary": ["lr=0.01..0.5 log"]}
    found = SearchOptions(**given).workload()
    assert list(found.traits.searched) == ["lr"] and "client_eval_acc" in found.measures.selectable
    with pytest.raises(UserError, match="a Flower app needs --metric"):
        SearchOptions(**given | {"metric": ()}).workload()
    with pytest.raises(UserError, match="--preset is for algorithms that fedtune trains itself"):
        SearchOptions(**given, preset="as_text")


def test_a_newer_fedtune_elsewhere_goes_on_with_an_app(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ProgramWorkload(program=of_app(app, "client:eval-acc"))
    run = start(before.program, tmp_path / "runs")
    run.save(tmp_path / "saved")
    plain = before.to_plain()
    elsewhere = tmp_path / "newer" / Path(flower.CHILD).name
    elsewhere.parent.mkdir()
    elsewhere.write_text(Path(flower.CHILD).read_text() + "# newer")
    monkeypatch.setattr(flower, "CHILD", str(elsewhere))
    monkeypatch.setattr(fingerprint, "OURS", elsewhere.parent)
    now = ProgramWorkload(program=of_app(app, "client:eval-acc"))
    assert str(elsewhere) in now.program.command and now.to_plain() == plain and not plain["scripts"]
    start(now.program, tmp_path / "runs").load(tmp_path / "saved")


def test_an_app_is_checked_too(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Advice is of what an app has, which is no command line."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    app = flower_app(tmp_path / "app", server=f"{SERVER}    open('final.npz', 'w').write('x')\n")
    words = f"{app} --metric server:loss --rounds 2 --set local-epochs=3"
    assert check.main([*words.split(), "--vary", "lr=0.1..4.0", "--vary", "model.width=2..8"]) == 0
    said = capsys.readouterr().out
    for line in (
        "server_loss selects",
        "figures are equal whatever the seed",
        "lr: another value gives other figures",
        "model.width changed nothing in 2 rounds: 8 and 2 give the same figures; see whether it reads it",
        "every trial writes final.npz, which none reads; only the last stays: to keep all, write context.run_id in its "
        "name",
        "let the server evaluate on test rows, with split",
    ):
        assert line in said, said
    assert not re.search(r"\{trial\}|\{seed\}|\$|\[check\]", said.partition("selection")[2])
    assert check.main(["--metric", "server:loss"]) == 2 and "--metric goes with a Flower app" in capsys.readouterr().err
