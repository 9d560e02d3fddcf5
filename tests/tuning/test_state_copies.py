"""Ray's files come into a study's folder whole and together, wherever the one that copies them dies."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedtune.runs import files, logs
from fedtune.tuning.saved_state import StateCopies, commit_states

STATES = ("experiment_state-1.json", "search_gen_state-1.json", "searcher-state-1.pkl", "callback-states-1.pkl")


class Death(BaseException):
    """The machine dies here."""


def generation(source: Path, n: int) -> None:
    """What Ray has made when each of two trials has reported n rounds."""
    for name in STATES:
        (source / name).write_text(f"{n} " * 2000)
    for trial in "ab":
        (source / f"fedavg-{trial}").mkdir(parents=True, exist_ok=True)
        rows = [{"trial_id": trial, "training_iteration": i, "timestamp": i} for i in range(1, n + 1)]
        (source / f"fedavg-{trial}" / "result.json").write_text("".join(json.dumps(row) + "\n" for row in rows))


def told(run: Path) -> tuple[set[str], list[int]]:
    """The generations of the states, and how many rounds each trial's log has."""
    found = {(run / name).read_text().split()[0] for name in STATES if (run / name).exists()}
    assert all(len(set((run / n).read_text().split())) == 1 for n in STATES if (run / n).exists()), "cut off"
    return found, [len(rows) for rows in logs.logged(run).values()]


def dying(monkeypatch: pytest.MonkeyPatch, after: int) -> Callable[[], bool]:
    """Whatever writes dies after so many steps: half of a copy or of a list is there then, or a name not yet changed.

    Returns whether it has died.
    """
    steps = iter(range(10**6))
    dead: list[bool] = []

    def step(act: Callable[[], Any], half: Callable[[], Any]) -> Any:
        if next(steps) >= after:
            half()
            dead.append(True)
            raise Death
        return act()

    copyfile, write_text, replace, unlink = shutil.copyfile, Path.write_text, Path.replace, Path.unlink
    cut = lambda a, b: Path(b).write_bytes(Path(a).read_bytes()[:100])  # noqa: E731
    monkeypatch.setattr(shutil, "copyfile", lambda a, b: step(lambda: copyfile(a, b), lambda: cut(a, b)))
    monkeypatch.setattr(
        Path, "write_text", lambda f, t, **how: step(lambda: write_text(f, t, **how), lambda: write_text(f, t[:9]))
    )
    monkeypatch.setattr(Path, "replace", lambda f, to: step(lambda: replace(f, to), lambda: None))
    monkeypatch.setattr(Path, "unlink", lambda f, **how: step(lambda: unlink(f, **how), lambda: None))
    return lambda: bool(dead)


def test_wherever_it_dies_the_states_are_of_one_generation_and_no_log_is_behind_them(tmp_path: Path) -> None:
    source, run = tmp_path / "ray", tmp_path / "run"
    deaths = 0
    while True:
        for folder in (source, run):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        copies = StateCopies()
        generation(source, 1)
        copies.copy(source, run)
        assert told(run) == ({"1"}, [1, 1])
        generation(source, 2)
        with pytest.MonkeyPatch.context() as patch:
            died = dying(patch, deaths)
            try:
                copies.copy(source, run)
            except Death:
                pass
        commit_states(run)
        states, rounds = told(run)
        assert states in ({"1"}, {"2"})
        assert all(n in (int(min(states)), 2) for n in rounds), (deaths, states, rounds)
        commit_states(run)  # once more: nothing is left to do
        assert told(run) == (states, rounds) and not (run / ".states").exists()
        StateCopies().copy(source, run)  # the next driver's
        assert told(run) == ({"2"}, [2, 2]) and not (run / ".states").exists()
        if not died():
            break
        deaths += 1
    assert deaths == 2 * 2 + 4 + 2 + 4 + 1  # two logs, four states, the list, four states again, the list's end


def test_only_what_has_changed_is_copied_and_nothing_but_logs_and_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, run = tmp_path / "ray", tmp_path / "run"
    source.mkdir(), run.mkdir()
    generation(source, 1)
    for name in (
        "run.json",
        "tuner.pkl",
        "mlflow.pkl",
        "a_state-1.json.part",
    ):  # what Ray has taken from the folder when it went on
        (source / name).write_text("old")
    copied: list[str] = []
    copyfile = shutil.copyfile
    monkeypatch.setattr(shutil, "copyfile", lambda a, b: (copied.append(Path(a).name), copyfile(a, b)))
    copies = StateCopies()
    copies.copy(source, run)
    assert sorted(copied) == sorted([*STATES, "result.json", "result.json"]) and not (run / "run.json").exists()
    copied.clear()
    copies.copy(source, run)
    StateCopies().copy(source, run)  # another driver's finds the same there
    assert not copied
    with (source / "fedavg-a" / "result.json").open("a") as file:
        file.write("\n")
    (run / STATES[0]).unlink()
    copies.copy(source, run)
    assert copied == ["result.json", STATES[0]]


@pytest.mark.parametrize("listed", ["", "{", "[", "[1]", '["../run.json"]', '["run.json"]', '{"a": 1}', "3"])
def test_a_list_that_is_none_moves_nothing(listed: str, tmp_path: Path) -> None:
    (tmp_path / ".states").write_text(listed)
    (tmp_path / "run.json.part").write_text("x")
    commit_states(tmp_path)
    assert [f.name for f in tmp_path.iterdir()] == ["run.json.part"]


@pytest.mark.parametrize(
    ("before", "after"),
    [(None, b"new\n"), (b"", b"new\n"), (b"old\n", b"old\nnew\n"), (b'{"cut', b'{"cut\nnew\n')],
)
def test_a_line_is_added_to_whole_lines(before: bytes | None, after: bytes, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    if before is not None:
        file.write_bytes(before)
    files.append_line(file, "new")
    assert file.read_bytes() == after
