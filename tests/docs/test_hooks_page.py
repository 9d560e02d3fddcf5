"""The page on an algorithm's hooks names all of them, and its example and that of a search space are ones."""

import inspect
import re
from pathlib import Path

import pytest
from support.rows import first

import fedtune
from fedtune.experiment.algorithm import Algorithm, Phase
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.tuning import space

DOCS = Path(__file__).parents[2] / "docs"
HOOKS = (DOCS / "reference" / "hooks.md").read_text()

TOUR = next(text for text in re.findall(r"^```python\n(.*?)^```$", HOOKS, re.M | re.S) if text.startswith("# tour.py"))


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


@pytest.mark.parametrize("executor", first(["stack", "loop"], 1))
def test_the_example_of_all_methods_trains(executor: str, tmp_path: Path) -> None:
    (tmp_path / "tour.py").write_text(TOUR)
    rows = fedtune.train(tmp_path / "tour.py", rounds=3, clients=4, local_epochs=1, executor=executor)
    assert rows["best_so_far"].tolist()[1:] == pytest.approx(rows["val_acc"].cummax().tolist()[:-1], abs=1e-6)
    assert {"val_acc_held", "val_acc_plain"} <= {*rows.columns}


def test_the_space_is_read_from_any_file(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", (DOCS / "reference" / "your-code.md").read_text(), re.M | re.S)
    (tmp_path / "spaces.py").write_text(code)
    loaded = space.load(str(tmp_path / "spaces.py"), Experiment(algorithm="fedproto", scenario=Scenario()))
    assert sorted(loaded.names) == ["lam", "momentum", "optimizer"]
    assert loaded.conditions == {"momentum": {"optimizer": ("sgd",)}}
