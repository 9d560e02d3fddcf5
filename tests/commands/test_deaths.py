"""A disk that dies between two writes: a sample of the moments of a search; and how losses are counted."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from fuzz import crashes, recording
from fuzz.crashes import difference

from fedtune.commands import resume, search

MOMENTS = 12  # that are looked at


@pytest.mark.parametrize(
    ("found", "want"),
    [
        ({"a": ["1"], "b": ["2"]}, (0, 0, 0)),
        ({"a": ["1"]}, (1, 0, 0)),
        ({"a": ["1", "1"], "b": ["2"]}, (0, 1, 0)),
        ({"a": ["3"], "b": ["2"]}, (0, 0, 1)),
        ({"a": ["1"], "b": ["2"], "c": ["1"]}, (0, 0, 1)),
    ],
)
def test_what_is_lost_doubled_and_different_is_counted(found: dict, want: tuple[int, ...]) -> None:
    whole = {("a",): ["1"], ("b",): ["2"]}
    assert difference({(k,): v for k, v in found.items()}, whole) == want


@pytest.mark.long
@pytest.mark.usefixtures("one_ray")
@pytest.mark.filterwarnings("ignore")
def test_a_search_whose_disk_dies_before_any_change_is_told_of_and_resumed(tmp_path: Path) -> None:
    """A sample of the moments of a search that is recorded here, of which two are resumed to the end."""
    words = crashes.SEARCH.replace("--rounds 4", "--rounds 3") + " --trials 3 --final-seeds 0"
    with recording.before_each_change(tmp_path / "run") as found:
        assert search.main(crashes.words(words, tmp_path)) == 0
    assert len(found) > 100
    whole = crashes.rows(tmp_path / "run")
    assert len(whole) == 9
    goes_on = []
    for i, files in enumerate(found[:: len(found) // MOMENTS]):
        run = tmp_path / f"dead{i}" / "run"
        recording.put(files, run)
        again = crashes.RESUME if crashes.begun(run) else f"search {words}"
        wrong, said = crashes.judged(run, again, whole)
        assert not wrong
        assert said == "accepted" or "is finished; --trials +N" in said
        goes_on += [run] if said == "accepted" and crashes.begun(run) else []
    assert len(goes_on) >= 3
    for i, run in enumerate(random.Random(0).sample(goes_on, 2)):
        again = run.rename(run.with_name(f"{run.name}{i}"))  # see copy_to
        assert resume.main([str(again), "--no-dashboard"]) == 0
        assert difference(crashes.rows(again), whole) == (0, 0, 0)
