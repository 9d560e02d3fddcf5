"""The examples in docstrings of public names give what they say; `runs/NAME` and its like are our example runs."""

import doctest
import importlib
import inspect
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = (
    "fedtune.analysis.comparison_plots",
    "fedtune.analysis.cost_plots",
    "fedtune.analysis.curve_plots",
    "fedtune.analysis.hyperparameter_plots",
    "fedtune.analysis.model_plots",
    "fedtune.analysis.models",
    "fedtune.analysis.regret_plots",
    "fedtune.analysis.rung_plots",
    "fedtune.analysis.importances",
    "fedtune.analysis.study_plots",
    "fedtune.api",
    "fedtune.training",
    "fedtune.core.hyper",
    "fedtune.core.pure",
    "fedtune.core.trees",
    "fedtune.experiment.algorithm",
    "fedtune.experiment.phase",
    "fedtune.experiment.terms",
    "fedtune.programs.report",
    "fedtune.runs.folder",
    "fedtune.runs.frames",
    "fedtune.studies.checking",
    "fedtune.studies.comparison.results",
    "fedtune.studies.published",
    "fedtune.tuning.shared",
    "fedtune.tuning.space",
    "fedtune.tuning.space_types",
)
FOUND = {
    test.name: test
    for name in MODULES
    for test in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name))
    if test.examples
}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_starts: None) -> None:
    for name, example in {"NAME": "search", "GRID": "grid", "COMPARISON": "compare"}.items():
        shutil.copytree(ROOT / "analysis" / "example" / example, tmp_path / "runs" / name)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", FOUND)
def test_an_example_gives_what_it_says(name: str, runs: None, capsys: pytest.CaptureFixture[str]) -> None:
    test = FOUND[name]
    test.globs = {"__name__": "example"}
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(test, clear_globs=False)
    assert not runner.failures, capsys.readouterr().out


def test_every_public_name_has_an_example() -> None:
    import fedtune
    from fedtune.analysis import plots

    values = [getattr(fedtune, n) for n in fedtune.__all__] + [getattr(plots, n) for n in plots.__all__]
    public = [v for v in values if inspect.isclass(v) or inspect.isfunction(v)]
    missing = [v.__name__ for v in public if ">>> " not in (inspect.getdoc(v) or "")]
    assert missing == ["Importance"]  # what `mattered` gives
    assert len(FOUND) >= 30
