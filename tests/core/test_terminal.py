"""What a person at a terminal sees of long work, and what a log keeps of it."""

from __future__ import annotations

import io

import pytest

from fedtune.core.terminal import progress


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
