"""A study's folder: its record whole or not at all, one driver at a time, and what it shows of itself."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from fedtune.core.about import FORMAT
from fedtune.core.errors import UserError
from fedtune.runs.files import COMPARISON, KINDS, RECORDS, RunFiles, kind_of, write_json
from fedtune.runs.folder import StudyFolder
from fedtune.tuning.plan import require_folder

KEPT = Path(__file__).parent / "kept"


def test_record_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFiles(tmp_path / "run")
    run.add(trials=3)
    run.write("failed", reason="disk")  # what is said in writing holds for that time only
    run.write("running")
    assert run.record == {"format": FORMAT, "trials": 3, "state": "running"}

    def torn(self: Path, target: Path) -> None:
        raise OSError("the power went")

    monkeypatch.setattr(Path, "replace", torn)
    with pytest.raises(OSError, match="the power went"):
        run.write("finished")
    assert run.record == {"format": FORMAT, "trials": 3, "state": "running"}


@pytest.mark.parametrize(
    ("text", "why"), [("{", "Expecting"), ("[]", "not a mapping"), ("", "Expecting"), ("\xff", "")]
)
def test_a_damaged_record_is_one_line(text: str, why: str, tmp_path: Path) -> None:
    run = RunFiles(tmp_path)
    run.record_file.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError) as caught:
        run.record  # noqa: B018
    assert str(caught.value).startswith(f"{tmp_path} is not a study folder: run.json is missing or damaged (")
    assert why in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("mine", RECORDS)
@pytest.mark.parametrize("theirs", RECORDS)
def test_a_folder_of_another_kind_of_run_is_told(mine: str, theirs: str, tmp_path: Path) -> None:
    (tmp_path / theirs).write_text(json.dumps({"format": FORMAT, "state": "finished"}))
    assert kind_of(tmp_path) == theirs
    if mine == theirs:
        assert RunFiles(tmp_path, mine).record == {"format": FORMAT, "state": "finished"}
        return
    with pytest.raises(UserError) as caught:
        RunFiles(tmp_path, mine).record  # noqa: B018
    said = f"this takes the folder of {KINDS[mine]}, but {tmp_path} is {KINDS[theirs]}'s"
    assert str(caught.value).partition(";")[0] == said


def test_a_record_says_what_it_lacks(tmp_path: Path) -> None:
    run = RunFiles(tmp_path, COMPARISON)
    run.write("finished")
    with pytest.raises(UserError, match=r"compare.json is missing or damaged \(it lacks trials, space\)"):
        run.record_with("state", "trials", "space")


OF_OTHERS = {  # what a record says of itself -> what is said of it
    "a later one": ({"format": FORMAT + 1, "versions": {"fedtune": "9.0"}}, f"9.0 and has {FORMAT + 1}; update"),
    "an earlier one": ({"format": FORMAT - 1, "versions": {"fedtune": "0.3.0"}}, f"has {FORMAT - 1}; run it again"),
    "without a number": ({"versions": {"fedtune": "0.1.0"}}, "fedtune 0.1.0 and has none; run it again, or use the "),
    "before the first release": ({"format": FORMAT, "versions": {"fedtune": "0.2.0"}}, "fedtune 0.2.0; run it"),
    "that says nothing": ({}, "another fedtune and has none; run it again"),
}


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("whose", OF_OTHERS)
def test_a_record_of_another_format_is_refused_in_a_line_that_says_what_would_do(
    whose: str, name: str, tmp_path: Path
) -> None:
    content, says = OF_OTHERS[whose]
    write_json(tmp_path / name, content | {"state": "finished"})
    with pytest.raises(UserError) as refused:
        RunFiles(tmp_path, name).record  # noqa: B018
    assert f"{tmp_path / name} is of" in str(refused.value) and says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_folder_has_one_driver(tmp_path: Path) -> None:
    run, other = RunFiles(tmp_path), RunFiles(tmp_path)
    assert not run.driven and not run.lock_file.exists()  # asking leaves nothing behind
    with run.lock():
        assert other.driven
        with pytest.raises(UserError, match="another is running"), other.lock():
            pass
    assert not other.driven
    with other.lock():
        assert run.driven


def hold(run: str, held: multiprocessing.synchronize.Event) -> None:
    """Lock a run and never give it back."""
    with RunFiles(run).lock():
        held.set()
        multiprocessing.Event().wait()


def test_a_dead_driver_holds_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held = context.Event()
    driver = context.Process(target=hold, args=(str(tmp_path), held), daemon=True)
    driver.start()
    assert held.wait(300) and RunFiles(tmp_path).driven
    driver.kill()
    driver.join()
    assert not RunFiles(tmp_path).driven
    with RunFiles(tmp_path).lock():
        pass


def test_a_folder_is_new_or_of_a_driver_that_died_early(tmp_path: Path) -> None:
    run = RunFiles(tmp_path / "run")
    assert run.fresh
    run.make()
    run.lock_file.touch()
    (run.path / "compare.json.part").touch()
    assert run.fresh
    require_folder(tmp_path, "run", "run")
    run.make()
    run.write("running")
    assert not run.fresh
    for name in ("file", "link"):
        (tmp_path / name).symlink_to("nowhere") if name == "link" else (tmp_path / name).touch()
        with pytest.raises(UserError, match="needs a new folder"):
            require_folder(tmp_path, name, name)
    with pytest.raises(UserError, match="another run just created .*; give another --name"):
        run.make()


def test_a_run_without_a_driver_is_abandoned(tmp_path: Path) -> None:
    run = StudyFolder(tmp_path)
    run.write("running")
    assert run.state == "abandoned"
    with RunFiles(tmp_path).lock():
        assert run.state == "running"
    run.write("finished")
    assert run.state == "finished"


def test_a_run_shows_what_it_found() -> None:
    run = StudyFolder(KEPT)
    assert (run.state, run.scenario.clients, run.scenario.rounds) == ("finished", 4, 3)
    assert len(run.trials) == 3 and len(run.rounds) == 9
    best = run.trials.sort_values("last_val_acc").iloc[-1]
    assert run.best["found"]["trial"] == best["trial"] and run.best["hyperparameters"]["lam"] == best["config/lam"]
    assert run.study is not None and {t.user_attrs["trial"] for t in run.study.trials} == set(run.trials["trial"])
    page = run._repr_html_()
    assert "gfpl, finished, 3 trials" in page and page.index(best["trial"]) == min(map(page.index, run.trials["trial"]))


def test_a_run_without_a_best_configuration_or_study(tmp_path: Path) -> None:
    run = StudyFolder(tmp_path)
    assert run.study is None
    with pytest.raises(UserError, match="has no best configuration"):
        run.best  # noqa: B018
    run.best_file.write_text("- 1\n")
    with pytest.raises(UserError, match="it is not a mapping"):
        run.best  # noqa: B018


def test_a_scenario_that_cannot_be_is_a_damaged_record(tmp_path: Path) -> None:
    run = StudyFolder(tmp_path)
    for scenario in ({"no-such-field": 1}, 3):
        run.record_file.write_text(json.dumps({"format": FORMAT, "scenario": scenario}))
        with pytest.raises(UserError, match="missing or damaged"):
            run.scenario  # noqa: B018
