"""docs/tutorials/your-own.md runs from top to bottom in an empty folder, and what it says of each step holds."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

import fedtune
from fedtune.experiment.algorithm import Algorithm, Phase
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.runs.folder import RunFolder
from fedtune.tuning import space

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "tutorials" / "your-own.md").read_text()
HOOKS = (DOCS / "reference" / "hooks.md").read_text()

TOUR = next(text for text in re.findall(r"^```python\n(.*?)^```$", HOOKS, re.M | re.S) if text.startswith("# tour.py"))


def steps() -> Iterator[tuple[str, str]]:
    """The page's blocks in their order: files to be written, by the name in their first line, and commands."""
    for language, text in re.findall(r"^```(python|bash)\n(.*?)^```$", PAGE, re.M | re.S):
        name = re.match(r"# (\w+\.py)\n", text) if language == "python" else None
        yield (name[1] if name else ""), text


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the page was followed, and in `said.txt` what its commands printed."""
    folder = tmp_path_factory.mktemp("story")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", "RAY_ADDRESS": "local", "FEDTUNE_FORK": "yes"}
    said = []
    for name, text in steps():
        if name:
            (folder / name).write_text(text)
            continue
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, text + done.stdout + done.stderr
        said.append(done.stdout)
    (folder / "said.txt").write_text("\n".join(said))
    return folder


def test_every_hospital_is_a_client_and_drawn(story: Path) -> None:
    said = (story / "said.txt").read_text()
    assert "40 clients" in said and "3 classes" in said and "critical" in said
    assert (story / "who.html").stat().st_size > 10_000


def test_the_algorithm_passes_the_checks_and_is_described(story: Path) -> None:
    said = (story / "said.txt").read_text()
    assert "exponent of the loss in a client's weight" in said and "0.1 … 5 (log), or 0.0" in said


def test_the_worst_tenth_is_searched_for_below_its_bound(story: Path) -> None:
    run = RunFolder(story / "runs" / "worst")
    trials = run.trials
    assert run.state == "finished" and len(trials) == 4 and {"config/q", "config/lr"} <= set(trials)
    assert (run.rounds["comm_mb"] <= 20).all() and run.rounds["val_recall"].between(0, 1).all()
    full = trials[trials["status"] == "finished"]
    best = full.loc[full["last_val_acc_worst10"].idxmax()]
    assert run.best["found"]["trial"] == best["trial"]
    assert {file.name for file in (run.path / "own").rglob("*.py")} >= {"fair.py", "net.py", "alarm.py"}
    assert (run.path / "report.html").exists()


def test_the_search_trains_again_to_the_same_numbers_with_dropout(story: Path) -> None:
    assert "are the same bit for bit" in (story / "said.txt").read_text().replace("\n", " ")


def test_ones_own_stands_beside_a_built_in(story: Path) -> None:
    table = next((story / "runs" / "against").rglob("table.csv"))
    assert set(pd.read_csv(table)["algorithm"]) == {"fair.py", "fedavg", "fedavgft", "local"}


def test_every_method_is_on_the_page_with_its_arguments_and_an_example() -> None:
    rows = dict(re.findall(r"^\| `(\w+)\((.*?)\)` \|", HOOKS, re.M))
    methods = {n: f for n, f in vars(Algorithm).items() if inspect.isfunction(f) and not n.startswith("_")}
    assert rows.keys() == methods.keys()
    for name, arguments in rows.items():
        parameters = [*inspect.signature(methods[name]).parameters]
        assert ["self", *filter(None, arguments.split(", "))] == parameters
        assert f"    def {name}({', '.join(parameters)}):" in TOUR


def test_every_field_of_a_phase_is_on_the_page() -> None:
    table = HOOKS[HOOKS.index("## What a phase can say") :].partition("FedALA")[0]
    named = [n for row in re.findall(r"^\| (`.*?) \|", table, re.M) for n in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(Phase._fields)


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_the_example_of_all_methods_trains(executor: str, tmp_path: Path) -> None:
    (tmp_path / "tour.py").write_text(TOUR)
    rows = fedtune.train(tmp_path / "tour.py", rounds=3, clients=4, local_epochs=1, executor=executor)
    assert rows["best_so_far"].tolist()[1:] == pytest.approx(rows["val_acc"].cummax().tolist()[:-1], abs=1e-6)
    assert {"val_acc_held", "val_acc_plain"} <= {*rows.columns}


def test_the_space_is_read_from_any_file(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", (DOCS / "reference" / "your-code.md").read_text(), re.M | re.S)
    (tmp_path / "spaces.py").write_text(code)
    loaded = space.load(str(tmp_path / "spaces.py"), Experiment("fedproto", Scenario()))
    assert sorted(loaded.names) == ["lam", "momentum", "optimizer"]
    assert loaded.conditions == {"momentum": {"optimizer": ("sgd",)}}
