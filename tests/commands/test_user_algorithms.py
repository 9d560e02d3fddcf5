"""An algorithm from a user's file: taken wherever a name is, or refused in one line that names the place in it."""

import json
import pickle
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pandas as pd
import pytest
import yaml
from support.commands import refusal
from support.user_algorithms import as_in_another_process

import fedtune
from fedtune.commands import compare, replay, resume, run, search
from fedtune.commands import list as listing
from fedtune.core import terminal
from fedtune.core.about import FORMAT
from fedtune.core.errors import UserError
from fedtune.engine import model_file, simulation
from fedtune.experiment import partitioning, registry
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.runs import user_copies
from fedtune.studies.comparison import plan as comparison_plan
from fedtune.studies.options import ComparisonOptions
from fedtune.tuning import plan
from fedtune.tuning import space as spaces
from fedtune.tuning.options.options import ExperimentOptions
from fedtune.tuning.options.search import SearchOptions
from fedtune.user_code import entry_points, user_files

TOP = "from dataclasses import dataclass\nfrom fedtune import Algorithm, hyper\n"
HEAD = TOP + "@dataclass(frozen=True)\nclass Mine(Algorithm):\n"  # four lines
LAM = "    lam: float = hyper(0.1, 0.01, 1.0, log=True, help='weight')\n"
BODY = LAM + "    shared = ('body', 'head')\n"
GOOD = '"""Mine: FedAvg, but ours."""\n' + HEAD + BODY
QUICK = {"clients": 4, "rounds": 1}
RUN = " --clients 4 --rounds 1"

# a file -> what the one line says of it, and its own line that is named
WRONG = {
    "def f(:": "wrong.py:1 is not valid Python: invalid syntax",
    "": "an algorithm must be a subclass of fedtune.Algorithm, but {path} defines none",
    "import nowhere_at_all": "wrong.py:1: ModuleNotFoundError: No module named 'nowhere_at_all'",
    "\nimport sys\nsys.exit(3)": "wrong.py:3: SystemExit: 3",
    "x = 1 / 0": "wrong.py:1: ZeroDivisionError: division by zero",
    "class Mine:\n    pass": "defines only Mine",
    TOP + "x = Algorithm": "defines none",
    GOOD + "class More(Mine):\n    pass": "defines 2 algorithms, Mine, More; say which: wrong.py:Mine",
    TOP + "class Mine(Algorithm):\n" + LAM: "wrong.py:3: algorithm Mine: lam is no hyperparameter yet",
    TOP + "@dataclass\nclass Mine(Algorithm):\n" + LAM: "cannot inherit non-frozen dataclass from a frozen one",
    HEAD + "    lam = hyper(0.1, 0, 1)": "wrong.py:3: TypeError: 'lam' is a field but has no type annotation",
    HEAD + "    lam: float": "a field is a hyperparameter, but lam is not declared with hyper(…)",
    HEAD + "    lam: float = hyper(2.0, 0.0, 1.0)": "be made with its defaults: lam must be a number in 0.0..1.0",
    HEAD + "    lam: float = hyper(0.1, low=0, hihg=1)": "wrong.py:5: TypeError",
    HEAD + "    m: str = hyper('a', choices=('a', ('b', 'c')))": "choices must be strings, numbers or bools, but",
    HEAD + "    shared = 'body'": "shared must be a tuple of names, as in shared = ('body',), but is 'body'",
    HEAD + "    sends = ('c', 1)": "sends must be a tuple of names",
    HEAD + "    presets = ['a']": "presets must be dicts of hyperparameters by name, but are ['a']",
    GOOD + "    def loss(self, m, batch):\n        pass": "wrong.py:8: algorithm Mine: loss is called with (self, m, "
    "batch, down), but takes (self, m, batch)",
    GOOD + "    def aggregate(self, up):\n        pass": "aggregate is called with (self, server, up, task)",
    GOOD + "    async def loss(self, m, batch, down):\n        pass": "wrong.py:8: algorithm Mine: loss must be a "
    "plain function, but is async",
    GOOD + "    @staticmethod\n    def init(task):\n        return {}": "init must be an instance method",
    GOOD + "    upload = 3": "upload must be an instance method, but is a int",
    GOOD + "    def build(self, net, task):\n        return net.nothing": "wrong.py:9: AttributeError",
    HEAD + "    shared = ('boddy',)": "wrong.py averages boddy, but a model of cnn8 has body, head",
    GOOD + "    def loss(self, m, batch, down):\n        return m.head(m.bod(batch.x))": "wrong.py:9: AttributeError: "
    "'Model' object has no attribute 'bod'",
    GOOD + "    def predict(self, m, x, down):\n        raise KeyError(x.shape)": "wrong.py:9: KeyError",
}

# the same for what only a search reads
WRONG_SPACES = {
    "3": "SPACES must be search spaces by name",
    "{1: {}}": "SPACES must be search spaces by name",
    "{}": "SPACES must be search spaces by name",
    "{'default': {}}": "that of {path} is {'default': {}}",
    "{'default': 'lam'}": "that of {path} is {'default': 'lam'}",
    "{'default': {'lamb': 1}}": "unknown hyperparameter of wrong.py in space 'default' 'lamb': did you mean 'lam'",
    "{'default': [{'lam': 7}]}": "lam must be a number in 0.01..1 log, but got 7",
}

# a reference -> what is said of it
REFERENCES = {
    "{}/nowhere.py": "nowhere.py cannot be read: No such file",
    "{}/folder": "{}/folder is a program",
    "{}/folder.py": "this algorithm needs a Python file, but got 'folder.py/'",
    "{}/good.py:Mien": "'Mien': did you mean 'Mine'",
    "{}/good.py:": "FILE.py: must be followed by a name",
    "{}/good.py:Mine(lam=1)": "hyperparameters are given by --set NAME=VALUE",
    "{}/good.py:Mine(open)": "options after a name must be keyword literals",
    "{}/good.py:dataclass": "is a function",
    "{}/good.py:Algorithm": "but good.py:Algorithm is the class Algorithm",
    "{}/latin.py": "latin.py:1 is not valid Python: (unicode error)",
    "{}/rows.npz": "this algorithm needs a Python file, but got 'rows.npz'",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with good.py and files that are no code, where everything is refused before a study's folder is made."""
    monkeypatch.chdir(tmp_path)
    as_in_another_process(monkeypatch)
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "latin.py").write_bytes("x = 'é'".encode("latin-1"))
    (tmp_path / "rows.npz").write_bytes(b"PK")
    return tmp_path


def refused(main, words: str, folder: Path, capsys) -> str:
    """The line; nothing is left behind."""
    before = sorted(folder.rglob("*"))
    line = refusal(main, words, capsys)
    assert sorted(folder.rglob("*")) == before
    return line


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_file_is_refused_in_one_line(text, folder, capsys):
    (folder / "wrong.py").write_text(text)
    said = WRONG[text].replace("{path}", str(folder / "wrong.py"))
    if "m.bod(" in text or "KeyError" in text:  # only training runs these lines
        with pytest.raises(UserError) as error:
            fedtune.train("wrong.py", **QUICK)
        assert said in str(error.value) and str(folder / "wrong.py:9") in str(error.value)
    else:
        assert said in refused(run.main, "--algo wrong.py" + RUN, folder, capsys)


@pytest.mark.parametrize("text", WRONG_SPACES)
def test_wrong_spaces_are_refused_in_one_line(text, folder, capsys):
    (folder / "wrong.py").write_text(GOOD + f"SPACES = {text}\n")
    said = WRONG_SPACES[text].replace("{path}", str(folder / "wrong.py"))
    assert said in refused(search.main, "--algo wrong.py --name a", folder, capsys)


@pytest.mark.parametrize("text", REFERENCES)
def test_a_wrong_reference_is_refused_in_one_line(text, folder, capsys):
    said = REFERENCES[text].replace("{}", str(folder))
    assert said in refused(run.main, f"--algo {text.format(folder)}" + RUN, folder, capsys)


def test_two_algorithms_of_one_comparison_each_get_their_own_utils(folder, capsys):
    for name in "ab":
        (folder / name).mkdir()
        (folder / name / f"{name}.py").write_text(f"import utils\n{GOOD}    schedule = (utils.name,)\n")
        (folder / name / "utils.py").write_text(f"name = {name!r}")
    options = ComparisonOptions(
        algos="a/a.py,b/b.py", storage_path=str(folder), name="both", trials=2, searches=1, baselines="none"
    )
    with terminal.silent():
        planned = comparison_plan.make(options)
    user_copies.keep(planned.own, folder / "both")
    record = json.loads(json.dumps(planned.to_record()))
    sent = {name: pickle.dumps(p.workload) for name, p in planned.plans.items()}
    assert [p.folder.name for p in planned.plans.values()] == ["a.py", "b.py"]
    for file in [*folder.glob("a/*.py"), *folder.glob("b/*.py")]:
        file.unlink()
    for name, experiment in sent.items():  # as a worker gets it
        user_files._files.clear(), user_files._code.clear()
        with user_files.Execution().used():
            assert pickle.loads(experiment).traits.schedule == (name[0],)
    user_files._files.clear(), user_files._code.clear()
    user_copies.restore(folder / "both", record)  # as `resume` does
    again, before = ComparisonOptions.from_record(record), planned.plans["a.py"].workload
    assert again.algos == f"{folder}/a/a.py,{folder}/b/b.py"
    found = again.of_search(again.algos.split(",")[0], folder).experiment()
    assert replace(found, defaults=before.defaults) == before
    for name in ("a.py", "b.py"):
        with user_files.Execution().used():
            assert registry.find(name).schedule == (name[0],)
    copy = next((folder / "both" / "own").glob("*/utils.py"))
    copy.write_text("name = 'c'")
    with pytest.raises(UserError, match="is the copy of .*b/utils.py that the run was made with, but it was changed"):
        user_copies.restore(folder / "both", record)


def test_two_algorithms_of_one_name_are_refused(folder, capsys):
    for name in "ab":
        (folder / name).mkdir()
        (folder / name / "mine.py").write_text(f"{GOOD}# {name}\n")
    said = refused(compare.main, "--algos a/mine.py,b/mine.py --name c", folder, capsys)
    assert "names each algorithm once" in said or "need different names" in said
    assert "names each algorithm once" in refused(compare.main, "--algos good.py,./good.py --name c", folder, capsys)


# ---- what a file gives


def test_its_spaces_are_those_of_the_file_or_derived(folder):
    assert spaces.names(user_files.take("good.py")[0]) == ["default"]
    derived = spaces.load("default", SearchOptions(algo="good.py").experiment())
    assert set(derived.names) == {"lam", "lr", "momentum", "local_epochs"}
    (folder / "good.py").write_text(GOOD + "SPACES = {'paper': [{'lam': 0.1}, {'lam': 1.0}]}\n")
    experiment = SearchOptions(algo="good.py").experiment()
    assert spaces.names("good.py") == ["default", "paper"]
    assert spaces.load("paper", experiment).points == [{"lam": 0.1}, {"lam": 1.0}]


def test_list_describes_it_like_a_built_in_with_choices_and_help_as_they_are_written(folder, capsys):
    mode = "    mode: str = hyper('[min]', choices=('[min]', '[/max]'), help='[low, high] of 100 %')\n"
    (folder / "marked.py").write_text(f"{GOOD}{mode}")
    assert listing.main(["marked.py"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "marked.py Mine: FedAvg, but ours." in out and "space default: lam" in out
    assert "mode [min] [min] | [/max] round 1 [low, high] of 100 %" in out


def test_python_takes_a_path_and_a_class(folder):
    (folder / "good.py").write_text(GOOD.replace("('body', 'head')", "()"))
    by_path = fedtune.train(folder / "good.py", lam=0.5, **QUICK)
    registry.find(user_files.take("good.py")[0])
    by_class = fedtune.train(registry.find("good.py"), lam=0.5, **QUICK)
    clock = ["seconds", "eval_seconds"]
    pd.testing.assert_frame_equal(by_path.drop(columns=clock), by_class.drop(columns=clock))
    assert fedtune.Search(registry.find("fedprox")).options.algo == "fedprox"
    with pytest.raises(UserError, match="must be a subclass of fedtune.Algorithm, but int is the class int"):
        fedtune.Search(int)


def test_a_class_without_a_file_is_carried_as_a_pickle(folder):
    names: dict = {"__name__": "__main__"}
    exec("from __future__ import annotations\n" + HEAD + BODY, names)
    searched = fedtune.Search(names["Mine"], **QUICK)
    experiment = searched.options.experiment()
    assert experiment.algorithm == "Mine.pickle" and experiment.own[0].content
    user_files._files.clear(), user_files._code.clear()
    there = pickle.loads(pickle.dumps(experiment))
    assert there.resolve({"lam": 0.5})[0].lam == 0.5


# ---- packages


def test_a_package_offers_an_algorithm_beside_the_built_ins(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    (folder / "offering_package.py").write_text(GOOD)
    offered(monkeypatch, mine="offering_package:Mine", broken="offering_package:Nobody", gfpl="offering_package:Mine")
    assert "mine" in registry.names() and registry.find("mine").__name__ == "Mine"
    assert Experiment(algorithm="mine", scenario=Scenario()).resolve({"lam": 0.5})[0].lam == 0.5
    with pytest.raises(UserError, match="'gfpl' is offered by fedtune and offering_package:Mine; rename"):
        registry.find("gfpl")
    with pytest.raises(UserError, match="the algorithm 'broken' of .* cannot be loaded: AttributeError"):
        registry.find("broken")
    with pytest.raises(UserError, match="did you mean 'mine'"):
        registry.find("mien")


def offered(monkeypatch, **points: str) -> None:
    """Entry points of an installed package."""
    group = "fedtune.algorithms"
    found = [EntryPoint(name, value, group) for name, value in points.items()]
    monkeypatch.setattr(entry_points, "entry_points", lambda group: found if group == "fedtune.algorithms" else [])
    entry_points._points.cache_clear()
    monkeypatch.setattr(entry_points, "_points", entry_points._points.__wrapped__)


# ---- what a run keeps


@pytest.fixture
def kept(folder) -> tuple[Path, dict]:
    """A study's folder and record, whose algorithm imports a module of its folder."""
    (folder / "good.py").write_text("import beside\n" + GOOD)
    (folder / "beside.py").write_text("y = 1")
    own = ExperimentOptions(algo="good.py").experiment().own
    user_copies.keep(own, folder / "run")
    record = json.loads(json.dumps({"own": user_copies.to_record(own)}))
    user_files._files.clear()
    return folder / "run", record


def test_a_run_has_copies_and_goes_on_from_them_when_the_files_are_gone(kept, folder):
    run_folder, record = kept
    assert {str(f.relative_to(run_folder)) for f in run_folder.rglob("*.py")} == {"own/good.py", "own/beside.py"}
    for name in ("good.py", "beside.py"):
        (folder / name).unlink()
    user_copies.restore(run_folder, record)
    options = ExperimentOptions(algo=user_files.reference("good.py"))
    assert options.algo == str(folder / "good.py") and options.experiment().algorithm == "good.py"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("good.py", "another version of {}/good.py, which has changed since; restore it, or rename"),
        ("beside.py", "another version of {}/beside.py, which has changed since; restore it, or rename"),
        ("run/own/beside.py", "is the copy of {}/beside.py that the run was made with, but it was changed"),
        ("", "belongs to another user; give --trust"),
    ],
)
def test_what_has_changed_since_and_what_another_user_wrote_is_refused(kept, folder, changed, said, monkeypatch):
    if changed:
        (folder / changed).write_text("# another")
    else:
        monkeypatch.setattr("os.getuid", lambda: kept[0].stat().st_uid + 1)
    with pytest.raises(UserError) as refused:
        user_copies.restore(*kept)
    assert said.format(folder) in str(refused.value)
    if changed in ("good.py", "beside.py"):
        assert user_copies.known(*kept)[0].name == "good.py"  # who only reads the run takes the copies
    if not changed:
        assert user_copies.known(*kept) == () and user_copies.restore(*kept, trust=True)


@pytest.mark.parametrize("main", [resume.main, replay.main])
def test_resume_and_replay_refuse_a_changed_file_before_anything_else(kept, folder, main, capsys):
    run_folder, record = kept
    options = SearchOptions(algo=str(folder / "good.py"), name="run").to_record()
    about = {"format": FORMAT, "state": "running", "options": options, "scheduler": "none"}
    about |= {"scenario": {}, "defaults": {}}
    (run_folder / "run.json").write_text(json.dumps(about | record))
    (folder / "beside.py").write_text("# another")
    assert "beside.py, which has changed since" in refused(main, str(run_folder), folder, capsys)


def test_run_takes_a_best_configuration_with_its_code(kept, folder, capsys):
    run_folder, record = kept
    best = {"algorithm": "good.py", "scenario": "digits-w4", "overrides": QUICK, "hyperparameters": {"lam": 0.3}}
    (run_folder / "best.yaml").write_text(yaml.safe_dump(best | record | {"executor": "loop"}))
    (folder / "good.py").unlink()
    assert run.main(["--config", str(run_folder / "best.yaml"), "--output", "rows.jsonl", "--save", "m.pt"]) == 0
    assert "good.py, 4 clients" in capsys.readouterr().out
    experiment, config, state = model_file.read(folder / "m.pt")
    assert experiment.executor == "loop"  # as the search found
    assert experiment.pinned["lam"] == 0.3 and {f.name for f in experiment.own} == {"good.py", "beside.py"}
    data = partitioning.make(experiment.scenario, experiment.seed)
    simulation.Simulation(experiment, config, data).load_state_dict(state)
    (folder / "beside.py").write_text("# another")
    said = refused(run.main, f"--config {run_folder}/best.yaml", folder, capsys)
    assert "beside.py, which has changed since" in said
    with pytest.raises(UserError, match="the model in .*m.pt was made with another version of .*beside.py"):
        model_file.read(folder / "m.pt")


def test_a_space_file_and_what_it_imports_are_kept_with_their_hashes(folder, monkeypatch):
    (folder / "ranges.py").write_text("LAM = [0.1, 1.0]")
    grid = "from ray import tune\nfrom ranges import LAM\nSPACE = {'lam': tune.grid_search(LAM)}"
    (folder / "grid.py").write_text(grid)
    options = SearchOptions(algo="fedproto", space="grid.py", storage_path=str(folder), name="run")
    with terminal.silent():
        planned = plan.make(options)
    record = json.loads(json.dumps(planned.to_record()))
    assert [entry["name"] for entry in record["own"]] == ["grid.py", "ranges.py"]
    user_copies.keep(planned.own, folder / "run")
    for name in ("grid.py", "ranges.py"):
        (folder / name).unlink()
    user_files._files.clear()
    user_copies.restore(folder / "run", record)
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    with terminal.silent():
        again = plan.make(SearchOptions.from_record(record), resumed=True)
    assert again.space == planned.space and again.own == planned.own
    (folder / "ranges.py").write_text("LAM = [0.1, 10.0]")
    with pytest.raises(UserError, match=f"another version of {folder}/ranges.py, which has changed since"):
        user_copies.restore(folder / "run", record)
    (folder / "space.py").write_text("from ranges import LAM\nSPACE = {'lam': LAM.nothing}")
    with pytest.raises(UserError, match=f"the search space cannot be loaded: {folder}/space.py:2: AttributeError"):
        spaces.load(str(folder / "space.py"), SearchOptions(algo="fedproto").experiment())
