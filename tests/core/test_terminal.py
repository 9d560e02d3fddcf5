"""What a person at a terminal sees of long work, and what a log keeps of it."""

from __future__ import annotations

import io
import shlex
from pathlib import Path
from typing import Any

import pytest

from fedtune.core import terminal
from fedtune.core.terminal import command_line, near, progress


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (["resume", "runs/a"], "resume runs/a"),
        (["report", "my runs/a b"], "report 'my runs/a b'"),
        (["run", "--config", "it's $x/best.yaml"], """run --config 'it'"'"'s $x/best.yaml'"""),
    ],
)
def test_a_command_can_be_pasted_with_and_without_the_environment(
    words: list[str], written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "my env" / "bin" / "fedtune"
    monkeypatch.setattr("sys.executable", str(script.with_name("python")))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert command_line(*words) == f"'{script.with_name('python')}' -m fedtune {written}", "there is no script"
    script.parent.mkdir(parents=True)
    script.touch(mode=0o755)
    assert command_line(*words) == f"'./my env/bin/fedtune' {written}"
    monkeypatch.chdir("/")
    (tmp_path / "fedtune").touch(mode=0o755)  # of another environment
    assert "my env/bin/fedtune' " in command_line(*words)
    monkeypatch.setenv("PATH", str(script.parent))
    assert command_line(*words) == f"fedtune {written}"


def test_a_path_is_shown_from_the_working_directory_where_it_leads_into_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here, beside = tmp_path / "here", tmp_path / "beside"
    here.mkdir()
    monkeypatch.chdir(here)
    for path, shown in (
        (here / "runs" / "a b", "runs/a b"),
        (Path("runs/c"), "runs/c"),
        (beside, str(beside)),
        (here, "."),
        (Path("../beside"), "../beside"),
    ):
        assert str(near(path)) == shown
        assert command_line("report", path).endswith(f" report {shlex.quote(shown)}")


@pytest.mark.parametrize("watched", [True, False])
def test_a_bar_counts_and_names_the_latest_in_a_terminal_and_leaves_logs_alone(
    watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: watched)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with progress("searches") as bar:
        task = bar.add_task("", total=4)
        bar.update(task, advance=3, description="tpe, asha")
    assert ("searches" in screen.getvalue() and "3/4" in screen.getvalue()) == watched
    assert ("tpe, asha" in screen.getvalue()) == bool(screen.getvalue()) == watched


COLUMNS = ["trial", "status", "mean ± 95 % interval", *(f"hyperparameter_{i}" for i in range(5))]
ROWS = [[f"c7d8827{i}", "finished", "94.00 ± 4.97 (≤ 100)", *(f"0.00{i}{k}123" for k in range(5))] for i in range(2)]


def at(width: int, **how: Any) -> str:
    shown = terminal.console(width=width, file=io.StringIO(), record=True)
    shown.print(terminal.AnyWidth(columns=COLUMNS, rows=ROWS, words=COLUMNS[:2], **how))
    return shown.export_text()


@pytest.mark.parametrize("boxed", [True, False])
@pytest.mark.parametrize("width", [20, 40, 80, 100, 140, 200])
def test_no_number_is_cut_in_a_terminal_of_any_width(width: int, boxed: bool) -> None:
    text = at(width, box=boxed)
    assert all(len(line) <= width for line in text.splitlines()) and "…" not in text
    for cell in (c for row in ROWS for c in row):
        assert cell in (text if width >= 80 else " ".join(text.split()))


def test_columns_that_may_go_do_so_before_rows_stand_under_each_other() -> None:
    text = at(80, optional=COLUMNS[3:])
    assert text.count("94.00 ± 4.97 (≤ 100)") == 2 and "0.0001123" in text and "0.0002123" not in text
    assert "3 columns more in a wider terminal" in text
    assert at(50).splitlines()[:2] == ["c7d88270  status finished", "  mean ± 95 % interval 94.00 ± 4.97 (≤ 100)"]


def test_names_are_shortened_so_that_they_differ() -> None:
    assert terminal.shortened(["lr", "momentum"]) == ["lr", "momentum"]
    names = ["model.layers.first.lr", "model.layers.second.lr", "model.layers.third.lr"]
    short = terminal.shortened(names)
    assert len({*short}) == 3 and all(len(s) < len(n) for s, n in zip(short, names, strict=True))
