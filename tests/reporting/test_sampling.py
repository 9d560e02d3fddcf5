"""A report on thousands of trials: bounded in size, with the best of them, and it says what it leaves out."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from fuzz import many

from fedtune.commands import report
from fedtune.reporting import findings, sampling
from fedtune.runs.folder import StudyFolder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return many.made_up(tmp_path_factory.mktemp("many") / "run", 300, log=False)


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the trials that a report draws, and few in its table."""
    monkeypatch.setattr(sampling, "DRAWN", 40)
    monkeypatch.setattr(sampling, "LISTED", 200)


def test_the_best_are_drawn_and_listed_and_others_at_random(run: Path, bounds: None) -> None:
    f, study = findings.read(run), StudyFolder(run).study
    some, table = sampling.drawn(f), sampling.listed(f)
    best = f.trials.sort_values("last_val_acc", ascending=False)["trial"]
    assert len(some.trials) == sampling.DRAWN and set(best[:20]) <= set(some.trials["trial"])
    assert not set(some.trials["trial"]) <= set(best[:60]), "none at random"
    assert set(some.rounds["trial"]) == set(some.trials["trial"]) and some.trials.index.is_monotonic_increasing
    assert list(table["trial"]) == list(best[: sampling.LISTED])
    pd.testing.assert_frame_equal(sampling.drawn(f).trials, some.trials)  # the same each time
    assert "this shows 40 of 300 trials, the best 20 and others drawn at random" in sampling.note(f)
    drawn = sampling.of_study(study, f)
    assert {t.user_attrs["trial"] for t in drawn.trials} == set(some.trials["trial"])
    assert drawn.directions == study.directions and drawn.best_value == study.best_value


def test_of_few_trials_nothing_is_left_out_and_nothing_said(bounds: None, tmp_path: Path) -> None:
    f = findings.read(many.made_up(tmp_path / "few", 20, log=False))
    assert sampling.drawn(f) is f and len(sampling.listed(f)) == 20 and sampling.note(f) == ""


@pytest.mark.long
def test_the_page_says_what_it_leaves_out(
    run: Path, bounds: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedtune.analysis.importances.RESAMPLES", 1)
    page = tmp_path / "r.html"
    assert report.main([str(run), "-o", str(page)]) == 0
    text = page.read_text()
    assert "this shows 40 of 300 trials, the best 20 and others drawn at random" in text
    assert "the table has the best 200; frames.load returns all of them" in text
