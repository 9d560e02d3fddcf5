"""Every notebook of analysis/ on the runs that come with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.rows import first

from fedtune import analysis
from fedtune.analysis import notebook

nbformat = pytest.importorskip("nbformat", reason="notebooks need nbformat: pip install -e .[dev]")
nbclient = pytest.importorskip("nbclient", reason="notebooks need nbclient: pip install -e .[dev]")
pytest.importorskip("ipykernel", reason="notebooks need ipykernel: pip install -e .[dev]")

HERE = Path(analysis.__file__).parent
NOTEBOOKS = sorted(HERE.glob("*.ipynb"))
PLOTLY = "application/vnd.plotly.v1+json"


def figures(cell: Any) -> list[dict]:
    return [o["data"][PLOTLY] for o in cell.get("outputs", []) if PLOTLY in o.get("data", {})]


def pages(cell: Any) -> list[str]:
    return [o["data"].get("text/html", "") for o in cell.outputs if PLOTLY in o.get("data", {})]


@pytest.mark.parametrize(
    "path", [HERE / f"{n}.ipynb" for n in ("communication", "compare", "gfpl", "program", "search")]
)
def test_a_notebook_is_checked_in_without_outputs_and_ends_with_what_to_do_next(path: Path) -> None:
    assert path in NOTEBOOKS
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    code = [c for c in book.cells if c.cell_type == "code"]
    assert not any(c.outputs or c.execution_count for c in code)
    assert len(book.cells) > len(code) > 3  # told in words
    said = [c.source for c in book.cells if c.cell_type == "markdown"][-1]
    assert said.startswith("## What to do next\n")
    assert "`fedtune " in said or "next_steps." in book.cells[-1].source


@pytest.fixture
def executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[Any]]:
    """What runs a notebook in a kernel of its own, in an empty folder, and gives its cells of code."""
    for name in ("PLOTLY_RENDERER", "VSCODE_PID", notebook.RUN_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # threads of tiny tensors wait for one another on a busy machine
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))

    def run(book: Any) -> list[Any]:
        place = {"metadata": {"path": str(tmp_path)}}  # a notebook finds its example from anywhere
        client = nbclient.NotebookClient(book, timeout=300, startup_timeout=300, kernel_name="python3", resources=place)
        client.execute()
        return [c for c in book.cells if c.cell_type == "code"]

    return run


@pytest.mark.parametrize("path", first(reversed(NOTEBOOKS), 1), ids=lambda p: p.stem)
def test_a_notebook_draws_its_figures(path: Path, executed: Callable[[Any], list[Any]]) -> None:
    code = executed(nbformat.read(path, as_version=4))
    for cell in code:
        wanted = cell.source.splitlines()[-1].startswith("plots.")
        assert len(figures(cell)) == wanted, cell.source
        complaints = [o.text for o in cell.outputs if o.output_type == "stream" and o.name == "stderr"]
        assert not any(str(HERE) in text or "ipywidgets" in text for text in complaints), complaints
        for figure in figures(cell):
            assert figure["data"], f"nothing drawn by {cell.source}: {figure['layout']['annotations'][0]['text']}"
        assert all("Plotly.newPlot" in page for page in pages(cell)), "nbconvert shows a figure by its page"
    assert sum(len(figures(c)) for c in code) >= 3
    if "next_steps." in code[-1].source:
        assert "fedtune " in code[-1].outputs[0].text


SEARCHED = f"""
import runpy
from fedtune.core import terminal
test = runpy.run_path({str(Path(__file__).parents[1] / "tuning" / "test_live_view.py")!r})
terminal.PERIOD = 0.0
view = test["made"]("gfpl on [digits]")
with view.window:
    test["follow"](view)
"""
PRINTED = """
import io, rich.table
from fedtune.core.terminal import console, progress
table = rich.table.Table("[head]")
table.add_row("[bold] $x$")
console().print(table)
console(file=(file := io.StringIO())).print("into a file")
with progress("[runs] {of} two") as bar:
    bar.update(bar.add_task("", total=2), advance=1, description="[/a]")
print(file.getvalue())
"""
DRAWN = """
from fedtune.analysis import frames, notebook, plots
trials, rounds = frames.load(notebook.EXAMPLE / "search")
plots.found(trials)
"""


def test_a_notebook_of_ones_own_has_one_table_plain_text_and_figures_that_stay(
    executed: Callable[[Any], list[Any]],
) -> None:
    cells = [nbformat.v4.new_code_cell(source) for source in (SEARCHED, PRINTED, DRAWN)]
    searched, printed, drawn = executed(nbformat.v4.new_notebook(cells=cells))
    tables = [o["data"]["text/html"] for o in searched.outputs if "text/html" in o.get("data", {})]
    assert len(tables) == 1, "a table is replaced, not repeated"
    assert "gfpl on [digits]   4/6 trials (2 finished, 1 diverged, 1 failed)" in tables[0]
    said = "".join(o.text for o in printed.outputs)  # all of it is text
    assert "[head]" in said and "[bold] $x$" in said and said.count("into a file") == 1
    assert len(figures(drawn)) == 1 and all("Plotly.newPlot" in page for page in pages(drawn))


def test_the_environment_names_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PWD", str(tmp_path))  # the shell's folder; nbconvert works in the notebook's
    for given, want in (
        ("", HERE / "example" / "search"),
        ("runs/mine", tmp_path / "runs" / "mine"),
        (str(HERE), HERE),
    ):
        monkeypatch.setenv(notebook.RUN_VARIABLE, given)
        assert notebook.chosen_run("search") == want


def test_the_runs_that_come_with_them_are_small_and_of_no_machine() -> None:
    files = [f for f in (HERE / "example").rglob("*") if f.is_file() and "__pycache__" not in f.parts]
    assert sum(f.stat().st_size for f in files) < 500_000
    for file in files:
        if file.suffix in (".json", ".yaml", ".jsonl", ".py", ".md", ".journal", ".csv"):
            assert not any(home in file.read_text() for home in ("/home/", "/root/", "/work/", "/tmp/")), file
    for record in (HERE / "example").rglob("*.json"):
        told = json.loads(record.read_text())
        assert told["state"] == "finished"
        assert " ".join(told["command"]) in (HERE / "example" / "README.md").read_text()
