"""The examples in docstrings of public names give what they say; `runs/NAME` and its like are our example runs."""

import doctest
import importlib
import inspect
import shutil
from pathlib import Path

import pytest
from support.levels import study

from fedtune.studies.comparison.level_results import LevelResults

ROOT = Path(__file__).parents[2]
FILES = [file for top in ("fedtune", "analysis") for file in sorted((ROOT / top).rglob("*.py"))]
MODULES = [
    ".".join(["fedtune"] * (file.parts[0] != "fedtune") + [*file.parts])
    for path in FILES
    if ">>> " in path.read_text()
    for file in [path.relative_to(ROOT).with_suffix("")]
]
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
    made = study(tmp_path / "runs" / "STUDY", {"local": [0.6, 0.6], "fedavg": [0.5, 0.7]}, ("1", "8"))
    LevelResults.read(made).table.to_csv(made / "levels.csv", index=False)
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
