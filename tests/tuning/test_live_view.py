"""A search is shown where it is watched, and can go unshown."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from ray.tune.logger import TBXLoggerCallback

from fedtune.core import terminal
from fedtune.core.budget import Budget
from fedtune.core.objectives import BY_ACCURACY, EXCESSES, Goal, parse
from fedtune.core.terminal import console
from fedtune.runs.trial_states import BROKEN
from fedtune.tuning import driver
from fedtune.tuning.callbacks.live_view import LiveView

LOSS = Goal(parse("val_loss"))
OF_LOSS = (("a", 0.5, -0.1), ("b", 0.1, 0.3), ("c", 0.4, -0.2))  # trial, loss, by how much it breaks a constraint


def trial(name: str, status: str = "RUNNING", last: dict | None = None, **config: Any) -> SimpleNamespace:
    over = status in ("TERMINATED", "ERROR")
    return SimpleNamespace(trial_id=name, status=status, config=config, last_result=last, is_finished=lambda: over)


def made(
    title: str = "t",
    trials: int = 6,
    rounds: int = 5,
    name: str = "lam",
    before: Any = (),
    goal: Goal = BY_ACCURACY,
    extended: Path | None = None,
) -> LiveView:
    workload, space = SimpleNamespace(rounds=rounds), SimpleNamespace(names=[name])
    planned = {"workload": workload, "space": space, "goal": goal, "budget": Budget("rounds", rounds)}
    plan: Any = SimpleNamespace(title=title, trials=trials, extended=extended, continued=[], **planned)
    return LiveView(plan, dict(before))


def row(round: int, value: float, **more: Any) -> dict[str, Any]:
    return {"training_iteration": round, "val_acc": value, **more}


def follow(view: LiveView) -> None:
    """A search of four: one is over before, one finishes, one diverges, one fails; one still runs."""
    before = trial("old", "TERMINATED", row(5, 0.4, complete=True), lam=9.0)
    a, b, c, d = (trial(name, lam=lam) for name, lam in (("a", 0.5), ("b", 2.0), ("c", 3.0), ("d", 4.0)))
    trials = [before, a, b, c, d]
    for one in (a, b, c, d):
        view.on_trial_start(0, trials, one)
    view.on_trial_result(0, trials, a, row(1, 0.7))
    view.on_trial_result(0, trials, a, row(2, 0.6, complete=True))
    view.on_trial_complete(0, trials, a)
    view.on_trial_result(0, trials, b, row(1, 0.65))
    view.on_trial_result(0, trials, b, row(2, 0.1, diverged=True))  # chance, which it is judged by, and no round
    view.on_trial_complete(0, trials, b)
    view.on_trial_error(0, trials, c)
    view.on_trial_result(0, trials, d, row(3, 0.65))


def text(view: LiveView) -> str:
    shown = console(width=120, file=io.StringIO(), record=True)
    shown.print(view.picture())
    return shown.export_text()


def test_a_picture_counts_ended_trials_and_shows_running_ones_and_the_best_so_far() -> None:
    view = made("gfpl on digits")
    follow(view)
    got = text(view)
    assert "gfpl on digits   4/6 trials (2 finished, 1 diverged, 1 failed)" in got
    best, running, mark = (line.split() for line in got.splitlines()[2:])
    assert running == ["d", "3/5", "65.00", "4"] and best == "* a 2/5 60.00 0.5".split()
    assert mark == "* the best of those that finished".split()


def test_a_trial_that_diverges_or_breaks_keeps_the_figures_of_its_last_round(capsys: pytest.CaptureFixture) -> None:
    before = {"c": [row(1, 0.5, val_loss=0.7), row(2, 0.1, val_loss=27.6, diverged=True)]}
    view = made(trials=3, rounds=9, before=before, goal=LOSS)
    for name, how in (("a", {"diverged": True}), ("b", {"diverged": True, BROKEN: True}), ("c", {})):
        one = trial(name, lam=1.0)
        view.on_trial_start(0, [], one)
        if how:
            view.on_trial_result(0, [], one, row(1, 0.5, val_loss=0.8))
            view.on_trial_result(0, [], one, row(2, 0.1, val_loss=27.6, **how))
        view.on_trial_complete(0, [], one)
    assert [line.split("; ")[0] for line in capsys.readouterr().err.splitlines()] == [
        "[0:00] 1/3 a diverged after 1 round, val_loss 0.8000 in the last",
        "[0:00] 2/3 b failed after 1 round, val_loss 0.8000 in the last",
        "[0:00] 3/3 c diverged after 1 round, val_loss 0.7000 in the last",
    ]


@pytest.mark.parametrize(
    ("goal", "before", "best"),
    [
        (BY_ACCURACY, [("x", row(2, 0.4)), ("y", row(2, 0.6)), ("z", row(1, 0.8))], "y"),  # z has trained less
        (BY_ACCURACY, [("x", row(2, 0.6)), ("y", row(2, 0.6, val_loss=0.1))], "y"),
        (BY_ACCURACY, [("x", row(2, 0.6, complete=True)), ("y", row(2, 0.7)), ("z", row(2, 0.8, diverged=True))], "x"),
        (LOSS, [(n, row(1, 0.0, val_loss=loss, **{EXCESSES: [by]})) for n, loss, by in OF_LOSS], "c"),
        (LOSS, [("b", row(1, 0.0, val_loss=0.1, **{EXCESSES: [0.3]}))], ""),
    ],
)
def test_the_best_so_far_is_what_would_be_chosen_now(goal: Goal, before: list[tuple[str, dict]], best: str) -> None:
    assert made(before={name: [result] for name, result in before}, goal=goal).best == best


def test_a_search_that_goes_on_knows_the_best_of_the_trials_before(tmp_path: Path, capsys: Any) -> None:
    """Of those that finished; it is not one of the trials that are counted."""
    earlier = {"trial": ["x", "y", "z"], "status": ["finished", "finished", "stopped"], "rounds": [5, 5, 1]}
    values = {"last_val_acc": [0.7, 0.4, 0.9], "last_val_loss": 1.0, "config/lam": 3.0}
    pd.DataFrame(earlier | values).to_parquet(tmp_path / "trials.parquet")
    view = made(extended=tmp_path)
    follow(view)
    assert "* x" in text(view) and view.line("a").endswith("; best of those that finished 70.00 % (x)")
    assert "2/6 a finished" in capsys.readouterr().err


def test_tensorboard_has_the_rounds_that_a_trial_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[float] = []
    monkeypatch.setattr(TBXLoggerCallback, "log_trial_result", lambda self, at, of, result: written.append(result))
    for result in (row(1, 0.6), row(2, 0.1, diverged=True)):
        driver.TensorBoard().log_trial_result(0, trial("a"), result)
    assert written == [row(1, 0.6)]


def test_without_a_terminal_an_ended_trial_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    follow(made())
    assert capsys.readouterr().err.splitlines() == [
        "[0:00] 2/6 a finished after 2 rounds, val_acc 60.00 % in the last; best of those that finished 60.00 % (a)",
        "[0:00] 3/6 b diverged after 1 round, val_acc 65.00 % in the last; best of those that finished 60.00 % (a)",
        "[0:00] 4/6 c failed before its first round ended; best of those that finished 60.00 % (a)",
    ]


def test_what_was_known_to_break_a_bound_is_no_divergence(capsys: pytest.CaptureFixture[str]) -> None:
    view, a = made(), trial("a", "TERMINATED", lr=0.1)
    with view.window:
        view.on_trial_result(0, [a], a, {"val_acc": 0.1, "diverged": True, "reason": "not trained: epsilon would be 9"})
        view.on_trial_complete(0, [a], a)
    assert "1/6 a not trained as it would break a bound" in capsys.readouterr().err


def test_a_notebooks_cell_is_replaced_as_the_search_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[str] = []
    handle = SimpleNamespace(update=lambda html: pages.append(html.data))
    monkeypatch.setattr("IPython.display.display", lambda display_id: handle)
    monkeypatch.setattr(terminal, "in_notebook", lambda: True)
    monkeypatch.setattr(terminal, "PERIOD", 0.0)
    view = made("<gfpl> own[/x].py")
    with view.window:
        follow(view)
    assert "0/6 trials" in pages[0] and "4/6 trials" in pages[-1] and "65.00" in pages[-1] and len(pages) > 4
    assert pages[0].startswith("<pre>") and "&lt;gfpl&gt; own[/x].py" in pages[0]


def test_where_a_search_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: True))
    assert terminal.watched()
    monkeypatch.setenv("JPY_PARENT_PID", "1")  # `!fedtune search` in a cell, whose output has no cursor
    assert not terminal.watched()
    monkeypatch.delenv("JPY_PARENT_PID")
    monkeypatch.setenv("FORCE_COLOR", "1")  # colours in a log do not make it a terminal
    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: False))
    assert not terminal.watched()
    for shell, notebook in ((SimpleNamespace(kernel=1), True), (None, False)):
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda shell=shell: shell))
        assert terminal.in_notebook() == notebook


def test_names_and_values_of_the_users_are_shown_as_they_are() -> None:
    view, chosen = made("own[/x].py on [pad].npz", name="mode"), trial("a", mode="[min] :fire:")
    view.on_trial_start(0, [chosen], chosen)
    view.on_trial_result(0, [chosen], chosen, row(1, 0.7))
    assert "own[/x].py on [pad].npz" in text(view) and text(view).count("[min] :fire:") == 1


def test_before_the_first_trial_workers_are_starting() -> None:
    assert text(made()).splitlines()[1] == "starting workers"


def test_what_goes_wrong_in_showing_does_not_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise BrokenPipeError

    view = made()
    monkeypatch.setattr(view.window, "update", broken)
    with view.window:
        follow(view)
    assert len(view.ended) == 4
