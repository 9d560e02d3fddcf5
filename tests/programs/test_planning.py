"""What a search or a comparison of programs is refused for, and planned as, before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
from support.commands import refusal

import fedtune
from fedtune.analysis import reproduce, simulate
from fedtune.commands import partition, run
from fedtune.core.errors import UserError
from fedtune.core.objectives import Goal
from fedtune.core.workload import Place
from fedtune.programs import workload
from fedtune.studies.comparison import plan as comparison_plan
from fedtune.studies.comparison.results import scenario_words
from fedtune.studies.options import ComparisonOptions
from fedtune.tuning import plan
from fedtune.tuning.options.search import SearchOptions
from fedtune.tuning.plan import SearchPlan

VARY = ["lr=0.001..0.3 log", "mu=0.0..1.0", "k=1..8"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def file(folder: Path, name: str = "own", metrics: str = "[metrics.val_acc]", more: str = "") -> str:
    """A program file that is never run."""
    words = f"{sys.executable} own.py {{lr}} {{rounds}} {{seed}}"
    (folder / "own.py").touch()
    text = f"name = '{name}'\ncommand = '{words}'\nrounds = 5\n[space]\nlr = '0.001..0.3 log'\nbatch = '1..8'\n"
    text = text.replace(" {seed}", " {seed} {batch}")
    path = folder / f"{name}.toml"
    path.write_text(f"{text}{metrics}\n{more}")
    return str(path)


def planned(**options: Any) -> SearchPlan:
    return plan.make(SearchOptions(**options))


def compared(**options: Any) -> comparison_plan.ComparisonPlan:
    return comparison_plan.make(ComparisonOptions(**options))


def test_a_command_runs_in_the_folder_where_its_search_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = f"{sys.executable} -c pass {{lr}} {{mu}} {{k}} {{rounds}}"
    p = planned(algo=command, metric=("acc: (.*)",), vary=VARY, fields={"rounds": "4"})
    assert (p.workload.rounds, p.goal.first.name, p.space.names) == (4, "val_acc", ["lr", "mu", "k"])
    assert [type(value) for value in p.default().values()] == [float, float, int]
    record = {"defaults": {}, **p.to_record(), **p.workload.to_record()}
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    again = plan.make(SearchOptions.from_record(record))
    assert again.workload.to_plain() == p.workload.to_plain() and again.space.text() == p.space.text()
    assert not any("{rounds}" in line and "note" in line for line in p.workload.describe())


def test_rounds_may_be_fixed_in_the_command_if_they_are_the_programs_own(tmp_path: Path) -> None:
    given = {"metric": ("acc: (.*)",), "vary": ["lr=0..1"], "fields": {"rounds": 4}}
    assert planned(algo="true {lr} --rounds 4", **given).workload.rounds == 4
    (tmp_path / "own.toml").write_text(
        "command = 'true {lr} --rounds 4'\nrounds = 4\n[metrics.val_acc]\n[space]\nlr = '0..1'\n"
    )
    found = planned(algo="own.toml", fields={"rounds": 4}).workload
    told = [line for line in found.describe() if "{rounds}" in line]
    assert found.rounds == 4 and len(told) == 1 and told[0].endswith("has no {rounds}: 4 must be its own number")
    with pytest.raises(UserError, match="^--rounds needs {rounds} in the command of own, but got 5"):
        planned(algo="own.toml", fields={"rounds": 5})


def test_test_figures_select_only_where_that_is_asked_for(tmp_path: Path) -> None:
    p = planned(algo=file(tmp_path, metrics="[metrics.test_acc]"), selects_on_test=True)
    assert str(p.goal.first) == "test_acc:max" and p.workload.to_record()["metrics"]["test_acc"]["split"] == "test"
    assert any("test_acc may select" in line for line in p.workload.describe())


@pytest.mark.parametrize("column", ["test_f1", "f1"])
def test_the_final_check_compares_what_reports_the_objective(tmp_path: Path, column: str) -> None:
    p = planned(algo=file(tmp_path, metrics=F1, more=f"[check]\nmetrics.{column} = {{mode = 'max'}}\n"))
    assert p.goal.first.reported(p.workload.measures.figures({})) == column


def test_the_worst_value_of_a_metric_is_what_the_file_says(tmp_path: Path) -> None:
    worst = planned(algo=file(tmp_path, metrics="[metrics.val_loss]\nworst = 50\n")).workload.measures.worst
    assert worst("val_loss") == 50 and worst("seconds") is None


def test_a_cost_that_grows_is_judged_by_where_it_is_heading(tmp_path: Path) -> None:
    metrics = "[metrics.val_acc]\n[metrics.comm_mb]\n[metrics.sim_seconds]\n[metrics.epsilon]\n[metrics.size]\n"
    own = file(tmp_path, metrics=metrics + "[metrics.kwh]\nmode = 'min'\ngrows = true\n")
    p = planned(
        algo=own,
        objective="val_acc,kwh,sim_seconds,epsilon",
        subject_to="kwh<=8,size<=8",
        scheduler="front",
        budget_unit="sim_seconds",
        budget=20.0,
    )
    row = {"val_acc": 0.5, "kwh": 4.0, "sim_seconds": 3.0, "epsilon": 2.0, "size": 4.0}
    assert p.goal.excesses(row, 0.25) == [1.0, -0.5]
    assert p.goal.heading(row | {"judged": 0.5}, 0.25) == (0.5, -16.0, -12.0, -2.0)
    assert p.goal.growing == ("kwh",) and Goal.from_record(p.workload.to_record()).growing == ("kwh",)
    assert p.budget[:2] == ("sim_seconds", 20.0)
    rows = [{"round": t, "sim_seconds": 4.0 * t, "seconds": 0.1, "eval_seconds": 0.0} for t in range(1, 6)]
    assert [p.budget.reached(of, 0.0) for of in rows] == [False] * 4 + [True]
    assert not any(p.budget.passed([10.0], of, 0.0) for of in rows[1:])  # each of its rows is whole


F1 = "[metrics.f1]\nmode = 'max'\n"
BOTH = "[metrics.val_acc]\n[metrics.test_acc]"
REFUSED: dict[str, tuple[Any, dict[str, Any], str, str]] = {  # what the file `own` says; {} stands for its path
    "test rows": (planned, {"metrics": "[metrics.test_acc]"}, "{}", "must not use test data.*--selects-on-test"),
    "of no program": (planned, {}, "fedavg", "^--selects-on-test is for a program of yours, but got fedavg"),
    "a final check of something else": (
        *(planned, {"metrics": F1, "more": "[check]\nmetrics.real = {mode = 'max'}\n"}, "{}"),
        "must report f1 or test_f1, but that of own reports real",
    ),
    "other rounds": (compared, {"metrics": BOTH}, "{},fedavg", "number of rounds, but there are own 5, fedavg 30"),
    "unlike figures": (
        *(compared, {"name": "other", "metrics": BOTH}, "own.toml,{}"),
        "same figure on fresh seeds, but there are own val_acc, other test_acc",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_planned_is_refused(tmp_path: Path, case: str) -> None:
    make, says, algos, rule = REFUSED[case]
    file(tmp_path)
    words = algos.format(file(tmp_path, **says))
    more: dict[str, Any] = {"selects_on_test": True} if words == "fedavg" else {}
    more |= {"trials": 2} if "," in words else {}
    more |= {"baselines": "none", "scenario": "digits-shards"} if ",fedavg" in words else {}
    with pytest.raises(UserError, match=rule):
        make(**{"algo" if make is planned else "algos": words}, **more)


def test_a_program_and_an_algorithm_are_compared_over_the_same_rounds(tmp_path: Path) -> None:
    own = file(tmp_path, metrics=BOTH)
    with_clients = {"rounds": "7", "clients": "4"}
    c = compared(algos=f"{own},fedavg", trials=2, baselines="none", scenario="digits-w4", fields=with_clients)
    assert {p.workload.rounds for p in c.plans.values()} == {7} and c.to_record()["rounds"] == 7
    assert "batch" in c.plans["own"].space.names and "batch" not in c.plans["fedavg"].space.names  # each has its own
    again = comparison_plan.make(ComparisonOptions.from_record(c.to_record()))
    assert {n: p.workload.to_plain() for n, p in again.plans.items()} == {
        n: p.workload.to_plain() for n, p in c.plans.items()
    }


def test_what_a_program_has_not_is_fixed_for_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    beside: dict[str, Any] = {"algos": f"{file(tmp_path, metrics=BOTH)},fedavg", "trials": 2, "baselines": "none"}
    beside |= {"scenario": "digits-w4", "fields": {"rounds": 5}}
    c = compared(**beside, set={"momentum": 0, "lr": 0.02}, vary=["local_epochs=1..3"])
    said = "note: own has no local_epochs, momentum: --set and --vary of it are for the others"
    assert capsys.readouterr().err.count(said) == 1
    spaces = {"own": {"batch": "1..8"}, "fedavg": {"local_epochs": "1..3"}, "fedavg-again": {"local_epochs": "1..3"}}
    assert [{n: p.space.text() for n, p in of.items()} for of in c.searches] == [spaces] * 3
    with pytest.raises(UserError, match="unknown hyperparameter of fedavg 'momentun'"):
        compared(**beside, set={"momentun": 0})
    two = f"{file(tmp_path)},{file(tmp_path, 'other')}"
    assert "lr" not in compared(algos=two, trials=2, set={"lr": 0.1}).plans["other"].space.names
    with pytest.raises(UserError, match="unknown hyperparameter of own 'momentum'"):
        compared(algos=two, trials=2, set={"momentum": 0})
    with pytest.raises(UserError, match="unknown hyperparameter of own 'momentum'"):
        compared(algos=two, trials=2, vary=["momentum=0..1"])


def test_programs_alone_are_compared_without_built_in_baselines(tmp_path: Path) -> None:
    c = compared(algos=f"{file(tmp_path)},{file(tmp_path, 'other')}", trials=2, searches=1)
    assert c.folder.name.startswith("compare-programs-")
    assert list(c.plans) == ["own", "other"] and not c.baselines and scenario_words(c.to_record()) == "their own data"


def test_a_changed_script_is_another_program(tmp_path: Path) -> None:
    before = workload.of_file(file(tmp_path))
    record, plain = before.to_record(), before.to_plain()
    assert before.as_recorded(record) == before and before.to_plain() == plain
    (script,) = record["program"]["scripts"]
    with (tmp_path / script).open("a") as f:
        f.write("# changed\n")
    assert before.to_plain() != plain  # so no outcome of the earlier one is taken for its own
    with pytest.raises(UserError, match=f"but {script} has changed since"):
        before.as_recorded(record)


@pytest.mark.parametrize("command", [partition, reproduce, run, simulate])
def test_commands_for_what_fedtune_trains_refuse_program_files(command: Any, capsys: pytest.CaptureFixture) -> None:
    said = refusal(command.main, "own.toml", capsys)
    assert "own.toml" in said


def test_a_program_file_that_is_gone_is_read_from_its_copy(tmp_path: Path) -> None:
    path = file(tmp_path)
    before = workload.of_file(path)
    Path(path).rename(tmp_path / "moved.toml")
    again = workload.of_file(path)
    assert again.to_plain() == before.to_plain() and again.program.folder == str(tmp_path)
    assert "is gone; the run's own copy of it is used" in again.program.notes[-1]
    with pytest.raises(UserError, match="other.toml cannot be read: No such file"):
        workload.of_file(str(tmp_path / "other.toml"))


def test_python_takes_program_files(tmp_path: Path) -> None:
    own = file(tmp_path)
    search = fedtune.Search(own, trials=3, batch=4, rounds=7)
    assert search.options.trials == 3 and repr(search).startswith(f"Search(algo={own!r}")
    found = search.options.workload()
    assert (found.pinned, found.rounds, found.default()["batch"]) == ({"batch": 4}, 7, 4)
    for wrong, said in (({"bach": 4}, "did you mean 'batch'"), ({"clients": 4}, "unknown argument 'clients'")):
        with pytest.raises(UserError, match=said):
            fedtune.Search(own, **wrong)


def test_optuna_asks_programs(tmp_path: Path) -> None:
    own = file(tmp_path)
    (tmp_path / "own.py").write_text("import sys\nfor _ in range(5):\n    print('fedtune {\"val_acc\": 0.5}')\n")
    study = optuna.create_study(direction="maximize")
    study.optimize(fedtune.objective(own), n_trials=1)
    assert study.best_value == 0.5 and 0.001 <= study.best_params["lr"] <= 0.3


def test_two_searches_of_a_program_do_not_meet(tmp_path: Path) -> None:
    """Trials of one name at the same time, in the same folder of the program's: each has files of its own."""
    path = file(tmp_path, more="[environment]\nPLACES = '{trial} {folder} {checkpoint}'\n")
    script = "import os\ntrial, folder, _ = os.environ['PLACES'].split()\nfile = open(f'{trial}.txt', 'x')\n"
    lines = "for i in range(5):\n    print('fedtune {\"val_acc\": 0.%d}' % i)\n"
    (tmp_path / "own.py").write_text(script + lines)
    made = workload.of_file(path)
    runs = [
        made.trainer.trial(made, {}, [None], Place(tmp_path / search / "outputs", "00001"))
        for search in ("one", "other")
    ]
    rows = [[run.step()["val_acc"] for run in runs] for _ in range(5)]
    assert rows == [[i / 10] * 2 for i in range(5)] and len(list(tmp_path.glob("*.txt"))) == 2
    assert sorted(f.parts[-4] for f in tmp_path.rglob("output.log")) == ["one", "other"]


def test_trials_whose_reports_stand_for_several_rounds_are_judged_at_reports(tmp_path: Path) -> None:
    each, fifth = file(tmp_path), file(tmp_path, "fifth", more="")
    third = file(tmp_path, "third")
    for name, every in ((fifth, 5), (third, 3)):
        Path(name).write_text(f"report_every = {every}\n{Path(name).read_text().replace('rounds = 5', 'rounds = 30')}")
    p = planned(algo=fifth)
    assert (p.workload.rounds, p.grace, p.to_record()["rungs"]) == (30, 5, [5, 15])
    assert planned(algo=fifth, grace=10).grace == 10
    both = compared(algos=f"{each},{fifth},{third}", fields={"rounds": 60})
    assert {p.grace for p in both.plans.values()} == {15}
    for options, says in [
        ({"grace": 7}, "^--grace must be a multiple of report_every, 5, .* but got 7"),
        ({"fields": {"rounds": 4}}, "^rounds must be a multiple of report_every, 5, .* got 4; give 5"),
    ]:
        with pytest.raises(UserError, match=says):
            planned(algo=fifth, **options)
    Path(fifth).write_text(Path(fifth).read_text().replace("rounds = 30", "rounds = 31"))
    with pytest.raises(UserError, match=r"fifth.toml: rounds must be a multiple .* got 31; give 35"):
        planned(algo=fifth)
