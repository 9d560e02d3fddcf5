"""A budget study: a comparison at each level, one correction for all, the first sentence, and every reader of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.levels import MARGIN, runs, study

from fedtune.analysis import plots
from fedtune.commands import compare, report, resume, status
from fedtune.core import statistics
from fedtune.core.errors import Unfit, UserError
from fedtune.core.objectives import ACCURACY
from fedtune.reporting import sections
from fedtune.reporting.watch import pages
from fedtune.reporting.watch.history import StudyFolders, rows
from fedtune.runs.files import LEVELS, RunFiles, resumed_as, write_json
from fedtune.runs.overview import Reader
from fedtune.studies.comparison import comparison, levels, tables
from fedtune.studies.comparison import plan as comparison_plan
from fedtune.studies.comparison.level_results import LevelResults
from fedtune.studies.options import ComparisonOptions
from fedtune.studies.options import levels as parsed
from fedtune.tuning.options import arguments

WORDS = (
    "--scenario digits-w4 --clients 4 --rounds 2 --trials 2 --searches 2 --seeds 2 --choose-seeds 1 --no-control "
    "--borrow none --baselines local --no-dashboard --max-concurrent 1 --name study"
).split()
WORTH = {"local": [0.6] * 3, "fedavg": [0.5, 0.605, 0.7], "moon": [0.5, 0.7, 0.7]}


def options(folder: Path, *words: str) -> ComparisonOptions:
    args = compare.parser().parse_args([*WORDS, *words, "--storage-path", str(folder)])
    return ComparisonOptions(**arguments.given(args, ComparisonOptions))


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("epsilon=8,1,2.50,1", "epsilon=1,2.5,8"),
        ("epsilon=inf,4", "epsilon=4,inf"),
        ("comm_mb=1234567", "comm_mb=1234567"),
        ("", ""),
    ],
)
def test_levels_rise_and_are_each_there_once(text: str, want: str) -> None:
    assert parsed(text) == want == parsed(want)


def test_a_dry_run_counts_all_levels_and_says_who_takes_part_at_which(tmp_path: Path, capsys: Any) -> None:
    line = ["--algos", "fedavg,scaffold", *WORDS, "--at", "epsilon=4,inf", "--vary", "update_clip=0.1..1 log"]
    assert compare.main([*line, "--dry-run", "--storage-path", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "scaffold is left out: privacy=client" in err and "scaffold takes part at epsilon=inf" in err
    told = [text.partition(": ")[0] for text in out.splitlines()]
    assert told[:4] == ["epsilon=4"] * 2 + ["epsilon=inf"] * 2 and out.splitlines()[4].startswith("about ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ("--at lr=1,2", "with a NAME of epsilon"),
        ("--at epsilon", "with a NAME of epsilon"),
        ("--at epsilon=0", "levels above 0"),
        ("--at epsilon=nan", "levels above 0"),
        ("--at epsilon=1,,2", "levels above 0"),
        ("--at comm_mb=inf", "levels above 0"),
        ("--at epsilon=1,2 --epsilon 8", "sets --epsilon and --privacy, but got --epsilon 8, too; leave it out"),
        ("--at epsilon=1,2 --privacy none", "sets --epsilon and --privacy, but got --privacy none, too"),
        ("--at comm_mb=1,2 --budget 3", "sets --budget"),
        ("--at comm_mb=1,2 --budget-unit seconds", "sets --budget"),
        ("--at epsilon=1,2 --strict", "one plain mean"),
    ],
)
def test_what_cannot_be_compared_at_levels_is_refused(words: str, rule: str, tmp_path: Path, capsys: Any) -> None:
    line = ["--algos", "fedavg,fedproto", *WORDS, *words.split(), "--storage-path", str(tmp_path / "s")]
    try:
        status = compare.main(line)
    except SystemExit as ended:
        status = int(ended.code or 0)
    assert status == 2 and rule in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def test_a_level_sets_its_budget_and_nothing_else(tmp_path: Path) -> None:
    of_bytes = levels.plans(options(tmp_path, "--algos", "fedavg", "--at", "comm_mb=0.5,1"))
    assert [c.first.budget[:2] for c in of_bytes] == [("mb", 0.5), ("mb", 1.0)]
    private = levels.plans(
        options(tmp_path, "--algos", "fedavg,fedproto", "--at", "epsilon=1,inf", "--vary", "update_clip")
    )
    fields = [c.first.workload.scenario for c in private]
    assert [(s.privacy, s.epsilon) for s in fields] == [("client", 1.0), ("none", 0.0)]
    assert ["update_clip" in c.plans["fedavg"].space.names for c in private] == [True, False]
    assert [c.folder.name for c in private] == ["epsilon=1", "epsilon=inf"]
    for c in (*of_bytes, *private):
        assert [p.selecting for p in c.every] == [p.selecting for p in of_bytes[0].every[:1]] * len(c.plans) + [
            p.selecting for p in of_bytes[0].every[-1:]
        ] * len(c.plans)
    # who releases what has no bounded sensitivity takes part only without privacy; local always does
    assert [[*c.plans] for c in private] == [["fedavg", "local"], ["fedavg", "fedproto", "local"]]
    # and searches nothing of privacy, so its figures are the same at every level
    assert len({str(c.plans["local"].space.text()) for c in private}) == 1
    assert "statistics of rows per class" in private[0].left_out["fedproto"] and not private[1].left_out
    with pytest.raises(Unfit):
        levels.plans(options(tmp_path, "--algos", "fedproto", "--at", "epsilon=1"))


def test_a_program_takes_no_part_with_privacy(tmp_path: Path) -> None:
    given = options(tmp_path, "--algos", "fedavg", "--privacy", "client")
    mine: Any = SimpleNamespace(algo="python train.py --lr {lr}")
    plans, left_out = comparison_plan._taking_part({"fedavg": given.of_search("fedavg", tmp_path), "mine": mine}, given)
    assert [*plans] == ["fedavg"] and "mine is a program" in left_out["mine"]


def test_one_correction_for_all_pairs_and_levels() -> None:
    """Holm's by hand; and what one level alone shows need not stand among many."""
    each = {str(i): runs({"local": 0.6, "fedavg": 0.6 + d, "moon": 0.6}) for i, d in enumerate((0.012, 0, 0.001, 0.1))}
    found = tables.against_at(each, ["local"], ACCURACY, MARGIN)
    alone = [
        tables._tests(of, ACCURACY, MARGIN, lambda o: [(n, "local") for n in o if n != "local"]) for of in each.values()
    ]
    tests = pd.concat(alone, ignore_index=True)
    assert found["p_holm"].tolist() == statistics.holm(tests["p"].tolist())
    claims = statistics.holm([float(np.min(p)) for p in tests[[*tables.CLAIMS]].to_numpy()])
    assert [v in (tables.LARGER, tables.WITHIN) for v in found["verdict"]] == [p < 0.05 for p in claims]
    assert found["level"].tolist() == ["0", "0", "1", "1", "2", "2", "3", "3"] and len(found) == 8
    one = tables.against_at({"0": each["0"]}, ["local"], ACCURACY, MARGIN)
    pd.testing.assert_frame_equal(one.drop(columns="level"), tables.against(each["0"], ["local"], ACCURACY, MARGIN))
    both = tables.against_at({"0": each["0"]}, ["local", "fedavg"], ACCURACY, MARGIN)
    assert {*zip(both["algorithm"], both["other"], strict=True)} == {
        ("fedavg", "local"),
        ("moon", "local"),
        ("moon", "fedavg"),
    }


@pytest.mark.parametrize(
    ("worth", "more", "want"),
    [
        (
            WORTH,
            {},
            "Shown to beat local: moon at ε = 2 and ∞, fedavg at ε = ∞; local beats moon and fedavg at ε = 1.",
        ),
        (
            {"local": [0.6] * 3, "fedavg": [0.7] * 3, "moon": [0.6] * 3},
            {"name": "comm_mb"},
            "Shown to beat local: fedavg at 1, 2 and ∞ MB; no other is.",
        ),
        (
            {"local": [0.6] * 3, "fedavg": [0.5] * 3},
            {},
            "No federated method is shown to beat local at ε = 1, 2 and ∞; local beats fedavg at ε = 1, 2 and ∞.",
        ),
        ({"moon": [0.6] * 3, "fedavg": [0.5] * 3}, {}, "Nothing is known of who beats local: it took no part."),
        (WORTH, {"searches": 1}, "Who beats local at which level is not known. Each algorithm was searched once"),
        (WORTH, {"done": 1}, "No federated method is shown to beat local at ε = 1; local beats moon and fedavg at"),
        (WORTH, {"done": 0}, ""),
    ],
)
def test_the_first_sentence_says_who_beats_local_where(worth: Any, more: Any, want: str, tmp_path: Path) -> None:
    found = LevelResults.read(study(tmp_path / "s", worth, ("1", "2", "inf"), **more))
    assert found.outcome.startswith(want) and bool(found.outcome) == bool(want)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return study(tmp_path / "runs" / "s", WORTH, ("1", "2", "inf"), done=2, fedproto="it sends prototypes")


def test_tables_have_each_algorithm_at_each_level_that_is_over(made: Path) -> None:
    found = LevelResults.read(made)
    kept = pd.concat([pd.read_csv(made / f"epsilon={n}" / "table.csv").assign(level=n) for n in "12"])
    want = kept.set_index(["level", "algorithm"])[["tuned", "tuned_half"]]
    got = found.table.set_index(["level", "algorithm"])[["tuned", "half"]].loc[want.index]
    np.testing.assert_allclose(got, want, rtol=1e-12)
    assert found.table.set_index(["level", "algorithm"])["against local"].dropna().to_dict() == {
        ("1", "fedavg"): "below",
        ("1", "moon"): "below",
        ("2", "fedavg"): "cannot be told",
        ("2", "moon"): "above",
    }
    (_, means, _), (_, pairs, _), (_, changes, _) = found.titled
    assert [*means] == ["algorithm", "ε = 1", "ε = 2"] and [*pairs["pair"]] == ["moon − local", "fedavg − local"]
    assert dict(changes.itertuples(index=False, name=None)) == {
        "fedavg − local": "below at ε = 1, cannot be told from ε = 2 on",
        "moon − local": "below at ε = 1, above from ε = 2 on",
    }
    assert found.notes == ["fedproto takes no part at ε = 1, 2 and ∞: it sends prototypes"]
    record = json.loads((made / "epsilon=2" / "compare.json").read_text())
    write_json(made / "epsilon=2" / "compare.json", record | {"unequal": ["a used 3 s of 2", "b", "c", "d"]})
    told = "budgets were not equal at ε = 2: a used 3 s of 2; b; c; …"
    assert LevelResults.read(made).notes == [*found.notes, told]


def test_the_figure_has_a_line_an_algorithm_and_fills_what_beats_local(made: Path) -> None:
    table = LevelResults.read(study(made.parent / "all", WORTH, ("1", "2", "inf"))).table
    file = made / "levels.csv"
    table.to_csv(file, index=False)
    for of in (table, pd.read_csv(file)):  # as it is made, and as a notebook reads it
        figure = plots.by_level(of, "epsilon")
        by = {trace.name: trace for trace in figure.data}
        assert [*by] == ["local (ε = 0)", "moon", "fedavg"] and by["local (ε = 0)"].mode == "lines"
        assert len({*np.round(by["local (ε = 0)"].y, 9)}) == 1
        assert by["moon"].marker.symbol == ("circle-open", "circle", "circle")
        assert [*figure.layout.xaxis.ticktext] == ["1", "2", "∞"]
        assert np.allclose(np.diff(np.log(by["moon"].x)), math.log(2))
    assert not plots.by_level(table[:0], "comm_mb").data


def test_every_reader_shows_it(made: Path, capsys: Any) -> None:
    assert status.main([str(made)]) == 0
    told = capsys.readouterr().out
    assert "2 of 3 levels done" in told and "epsilon=inf: waiting" in told
    assert report.main([str(made)]) == 0
    page = (made / "report.html").read_text()
    assert all((made / f"epsilon={n}" / "report.html").is_file() for n in ("1", "2", "inf"))
    assert 'href="epsilon=1/report.html"' in page and "fedproto takes no part" in page
    part = sections.read(made, "x")
    assert isinstance(part, sections.Comparison) and part.lead == LevelResults.read(made).outcome
    assert part.figures["first"][0].spec and "continues it" in part.warnings[0]
    folders = StudyFolders(made.parent)
    (row,) = rows(folders, Reader())
    assert row.done == "2 of 3 levels done" and "epsilon=2" in row.what
    assert folders.folder("s/epsilon=2") == made / "epsilon=2"
    for name in ("s/x", "s/epsilon=2/fedavg", "x", "s/../s"):
        with pytest.raises(KeyError):
            folders.folder(name)
    assert 'href="/run/s/epsilon%3D1"' in pages.of_run("s", made, Reader()).top()
    assert pages.log_links("s", made)["epsilon=1"] == "/run/s/epsilon%3D1"
    assert resumed_as(made / "epsilon=1" / "fedavg", {}) == resumed_as(made / "epsilon=1", {}) == made


def test_resume_goes_on_at_the_level_where_it_was(made: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    began = []

    def interrupted(level: Path, changes: Any) -> int:
        began.append((level.name, changes))
        return 130

    monkeypatch.setattr(comparison, "resume", interrupted)
    assert resume.main([str(made), "--max-concurrent", "1"]) == 130
    assert began == [("epsilon=inf", {"max_concurrent": 1})]
    assert json.loads((made / "levels.json").read_text())["state"] == "interrupted"
    monkeypatch.setattr(comparison, "resume", lambda level, changes: 0)
    assert resume.main([str(made)]) == 0
    record = RunFiles(made, LEVELS).record
    assert (record["state"], record["outcome"]) == ("finished", LevelResults.read(made).outcome)
    assert len(record["resumed"]) == 2 and record["outcome"] in capsys.readouterr().out
    assert (made / "table.md").exists() and len(pd.read_csv(made / "levels.csv")) == 6
    with pytest.raises(UserError, match="budget study"):
        _ = RunFiles(made).record


def test_a_comparison_that_waits_begins_as_it_was_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, planned = options(tmp_path, "--algos", "fedavg,fedproto", "--at", "epsilon=1,4"), []
    monkeypatch.setattr(comparison, "run", lambda c, record: planned.append((c, record)) or 130)
    assert levels.run(given) == 130
    of_all = RunFiles(tmp_path / "study", LEVELS).record["scenario"]
    assert of_all["privacy"] == "client" and "epsilon" not in of_all  # what every level has is in the title
    first = levels.plans(options(tmp_path, "--algos", "fedavg", "--at", "epsilon=1", "--name", "b"))[0]
    ((c, record),) = planned
    assert "resumed" not in record and [*record["left_out"]] == ["fedproto"]
    for one, other in zip(c.every, first.every, strict=True):
        assert (one.space.text(), one.points, one.budget, one.grace) == (
            other.space.text(),
            other.points,
            other.budget,
            other.grace,
        )
        assert one.workload.configuration({}) == other.workload.configuration({}) and one.selecting == other.selecting
    assert json.loads((tmp_path / "study" / "epsilon=4" / "compare.json").read_text())["state"] == "waiting"


@pytest.mark.long  # searches of Ray's
def test_an_interrupted_study_has_the_figures_of_an_undisturbed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--algos", "fedavg", *WORDS, "--at", "epsilon=2,8", "--storage-path", str(tmp_path)]
    assert compare.main([*words[:-2], "--storage-path", str(tmp_path / "whole")]) == 0
    go_on = comparison.resume

    def once(level: Path, changes: Any) -> int:
        if level.name == "epsilon=8":
            raise KeyboardInterrupt
        return go_on(level, changes)

    with monkeypatch.context() as m:
        m.setattr(comparison, "resume", once)
        assert compare.main(words) == 130
    assert resume.main([str(tmp_path / "study")]) == 0
    for file in ("levels.csv", "against.csv"):
        assert (tmp_path / "study" / file).read_bytes() == (tmp_path / "whole" / "study" / file).read_bytes()
    table = pd.read_csv(tmp_path / "study" / "levels.csv")
    assert table[table["algorithm"] == "local"]["tuned"].nunique() == 1  # ε is nothing to it
