"""Searches whose best trials are trained on more seeds before one is named."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import yaml
from support.searches import searched, started

from fedtune.commands import report, resume, search, status
from fedtune.core.objectives import Goal, constraints, parse
from fedtune.runs import frames, tables
from fedtune.studies import choosing, ray_tasks
from fedtune.studies.options import ComparisonOptions
from fedtune.studies.ray_tasks import Outcome
from fedtune.tuning import plan
from fedtune.tuning.options.search import SearchOptions

COSTS = {"seconds": 1.0, "eval_seconds": 0.5}


def judged(trial: dict[str, float], more: dict[int, Outcome], goal: Goal, seeds: int = 1) -> dict[str, Any]:
    p: Any = SimpleNamespace(goal=goal, seeds=seeds, run_word="seed")
    return choosing.judged(p, {"trial": "a"} | trial, more)


def rounds(**last: float) -> Outcome:
    return Outcome([{"round": 1} | COSTS | {n: 0.0 for n in last}, {"round": 2} | COSTS | last], "")


def test_a_trials_mean_is_that_of_all_its_seeds() -> None:
    more = {7: rounds(val_acc=0.6), 8: rounds(val_acc=0.9)}
    row = judged({"last_val_acc": 0.3}, more, Goal())
    assert row == {"trial": "a", "own": 0.3, "seed 7": 0.6, "seed 8": 0.9, "val_acc": pytest.approx(0.6), "reason": ""}
    # its own figure is a mean of four seeds, so it counts four times
    assert judged({"last_val_acc": 0.3}, more, Goal(), seeds=4)["val_acc"] == pytest.approx((4 * 0.3 + 0.6 + 0.9) / 6)
    goal = Goal(parse("seconds"))  # are those of whole runs
    assert judged({"seconds": 6.0}, {1: rounds(val_acc=0.5)}, goal)["seconds"] == (6 + 3) / 2


def test_what_diverges_or_breaks_a_constraint_in_the_mean_is_out() -> None:
    lost = Outcome([], "client 3's loss is not finite")
    row = judged({"last_val_acc": 0.3}, {7: rounds(val_acc=0.6), 8: lost}, Goal())
    assert row["reason"] == "client 3's loss is not finite (seed 8)" and math.isnan(row["val_acc"])
    assert judged({"last_val_acc": 0.3}, {7: rounds(test_acc=1.0)}, Goal())["reason"].startswith(
        "it reports no val_acc"
    )
    goal = Goal(parse("val_acc,val_loss"), constraints("comm_mb<=5,val_acc>=0.4"))
    own = {"last_val_acc": 0.3, "last_val_loss": 1.0, "comm_mb": 4.0}
    fine = judged(own, {7: rounds(val_acc=0.5, val_loss=3.0, comm_mb=6.0)}, goal)  # at the bound, in the mean
    assert (fine["val_loss"], fine["comm_mb"], fine["reason"]) == (2.0, 5.0, "")
    broken = judged(own, {7: rounds(val_acc=0.5, val_loss=3.0, comm_mb=6.5)}, goal)
    assert broken["reason"] == "it breaks comm_mb<=5 in the mean: 5.25"


# ---- what is planned


def planned(folder: Path, after: plan.EarlierSearch | None = None, **more: Any) -> plan.SearchPlan:
    options = SearchOptions(algo="fedavg", scenario="digits-w4", storage_path=str(folder), **more)
    return plan.make(options, after=after)


def test_the_seeds_that_choose_meet_neither_those_of_trials_nor_fresh_ones(tmp_path: Path) -> None:
    p = planned(tmp_path, seed=5, seeds_per_trial=2, choose_seeds=3)
    assert (p.selecting, p.choosing, p.fresh(2)) == ([5, 6], [7, 8], [9, 10])
    assert p.to_record()["choose_seeds"] == 3
    alone = planned(tmp_path, seed=5, choose_seeds=1)
    assert (alone.selecting, alone.choosing, alone.fresh(2)) == ([5], [], [6, 7])
    # a search that chooses by itself leaves no choice to fresh seeds
    candidates = [ComparisonOptions(choose_seeds=k, top_k=top).candidates for k, top in ((1, None), (1, 2), (3, None))]
    assert candidates == [3, 2, 1]


# ---- whole searches, of a program whose figures are in a table: x, then its figure on seeds 0, 1, 2

SCRIPT = """
import sys
x, seed, fresh = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
worth = {1: (0.1, 1.0, 1.0), 2: (0.2, 0.9, 0.25), 3: (0.3, 0.3, 0.3), 4: (0.4, "nan", 0.9), 5: ("nan",)}
open("ran", "a").write(f"{x} {seed} {len(fresh)}\\n")
for t in range(2):
    print("acc:", worth[x][seed] if not fresh else x / 10)
"""
FILE = """
command = "{python} -S own.py {{x}} {{seed}}"
rounds = 2
[metrics.val_acc]
pattern = 'acc: (.*)'
[space]
x = [{values}]
[check]
command = "{python} -S own.py {{x}} {{seed}} fresh"
metrics.test_acc.pattern = 'acc: (.*)'
"""
WORDS = "--searcher grid --scheduler none --max-concurrent 1 --choose-seeds 3 --final-seeds 2 --no-dashboard"


def program(folder: Path, values: str = "3, 1, 2, 4") -> str:
    (folder / "own.py").write_text(SCRIPT)
    (folder / "own.toml").write_text(FILE.format(python=sys.executable, values=values))
    return f"{folder / 'own.toml'} {WORDS}"


def ran(folder: Path) -> list[str]:
    return (folder / "ran").read_text().splitlines()


@pytest.mark.long  # a search of Ray's
def test_the_best_three_decide_on_more_seeds_which_is_named_and_an_interrupted_choice_goes_on(
    tmp_path: Path, one_ray: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their own seed 4 is the best, then 3, 2, 1; 4 diverges on seed 1, and 2 has the best mean of the others."""
    written = ray_tasks.write_json

    def third_never_ends(path: Path, content: dict[str, Any]) -> None:
        if len(list(path.parent.glob("*.json"))) == 2:
            raise KeyboardInterrupt
        written(path, content)

    monkeypatch.setattr(ray_tasks, "write_json", third_never_ends)
    words = program(tmp_path)
    assert search.main([*words.split(), "--storage-path", str(tmp_path), "--name", "run"]) == 130
    run = tmp_path / "run"
    assert json.loads((run / "run.json").read_text())["state"] == "interrupted" and not (run / "best.yaml").exists()
    said, notes = capsys.readouterr()
    assert "then the best 3 finished trials are trained on 2 more seeds: 6 runs before one is named" in said
    assert "choice: 2 of 6 done" in notes and (said + notes).count("continues it") == 1
    kept = {file.name: file.stat().st_mtime_ns for file in (run / "choice").glob("*.json")}
    before = ran(tmp_path)
    monkeypatch.undo()

    assert resume.main([str(run)]) == 0
    assert len(kept) == 2 and all((run / "choice" / f).stat().st_mtime_ns == at for f, at in kept.items())
    trained = [line.split() for line in ran(tmp_path)]
    assert len(ran(tmp_path)) - len(before) == 4 + 4, "what was left of the choice, then the final check"
    assert {seed for x, seed, fresh in trained if fresh == "0"} == {"0", "1", "2"}
    assert {seed for x, seed, fresh in trained if fresh == "1"} == {"3", "4"}
    assert ("1", "1", "0") not in map(tuple, trained), "the fourth best is not asked"

    record, best = json.loads((run / "run.json").read_text()), yaml.safe_load((run / "best.yaml").read_text())
    four, three, two = record["choice"]
    assert [r["own"] for r in (four, three, two)] == [0.4, 0.3, 0.2]
    assert "seed 1" in four["reason"] and not three["reason"] and not two["reason"]
    assert (two["seed 1"], two["seed 2"]) == (0.9, 0.25) and two["val_acc"] == pytest.approx(0.45)
    assert best["hyperparameters"]["x"] == 2 and best["found"]["trial"] == two["trial"]
    assert (best["found"]["val_acc"], best["found"]["choose_seeds"]) == (0.2, 3)
    assert best["found"]["choice_mean"] == pytest.approx(0.45)
    by_x = frames.load(run)[0].set_index("config/x")["choice_mean"]
    assert by_x[2] == pytest.approx(0.45) and by_x[3] == pytest.approx(0.3) and by_x[[1, 4]].isna().all()
    said = capsys.readouterr()
    assert "Best configuration: x = 2." in said.out
    assert "Over 3 seeds its mean validation accuracy is 45.00 %." in said.out
    assert f"note: trial {four['trial']} cannot be chosen" in said.err
    assert {r["test_acc"] for r in record["final"] if r["configuration"] == "best"} == {0.2}
    assert report.main([str(run)]) == 0 and status.main([str(run)]) == 0
    page = (run / "report.html").read_text()
    assert "The best finished trials on more seeds" in page and f"Best configuration (trial {two['trial']})" in page
    assert "the best 3 on 2 more seeds" in page and "search on 0; the best 3 also on 1 to 2; check on 3, 4" in page


@pytest.mark.long  # a search of Ray's
def test_where_no_finished_trial_stands_nothing_is_named(
    tmp_path: Path, one_ray: None, capsys: pytest.CaptureFixture[str]
) -> None:
    found = searched(tmp_path, program(tmp_path, "4, 5"), status=1)
    assert found.record["state"] == "nothing found" and not (found.folder / "best.yaml").exists()
    said = capsys.readouterr().out
    assert found.record["reason"] in said and "none of 1 finished trial can be chosen on more seeds" in said
    assert len(ran(tmp_path)) == 2 + 2, "two trials, of which one finished, its runs, and no check"


def test_what_an_extended_search_trained_on_more_seeds_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[str]] = []

    def run_all(runs: Any, data: Any, folder: Path, *_: Any, **__: Any) -> dict[str, Outcome]:
        folder.mkdir(exist_ok=True)
        done = ray_tasks.finished(runs, folder, p.budget)
        asked.append({r.label for r in runs} - set(done))
        for r in runs:
            ray_tasks.write_json(ray_tasks.outcome_file(folder, r, p.budget), rounds(val_acc=0.5)._asdict())
        return {r.label: rounds(val_acc=0.5) for r in runs}

    monkeypatch.setattr(ray_tasks, "run_all", run_all)
    trials = pd.DataFrame({"trial": [*"ab"], "status": "finished", "rounds": 30, "last_val_acc": [0.9, 0.8]})
    trials[tables.CONFIG + "lr"], trials["reason"] = [0.1, 0.2], ""
    p = planned(tmp_path, choose_seeds=2, name="first")
    p.folder.mkdir()
    best, _ = choosing.choose(started(p), trials.copy())
    assert best is not None and best["trial"] == "a" and asked == [{"a, seed 1", "b, seed 1"}]
    more = pd.concat([trials, trials.assign(trial=[*"cd"], last_val_acc=[0.95, 0.1])], ignore_index=True)
    first, p = p, planned(tmp_path, plan.EarlierSearch(p.folder), choose_seeds=2, name="on", trials=2)
    p.folder.mkdir()
    best, _ = choosing.choose(started(p), more)
    assert best is not None and best["trial"] == "c" and asked[1] == {"c, seed 1"}
    assert (first.files.choice_folder).exists()
