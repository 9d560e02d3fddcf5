"""What a person at a terminal sees of long work, and what a log keeps of it."""

from __future__ import annotations

import io
import shlex
from pathlib import Path

import pytest

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
