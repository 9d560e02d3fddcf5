"""A disk that dies between two writes: a sample of what `python -m tests.fuzz.deaths` looks at; what it rests on."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from fuzz import crashes, recording
from fuzz.crashes import difference
from fuzz.recording import Change, Disk, changes, torn

from fedtune.commands import resume, search

MOMENTS = 12  # that are looked at


def hexed(text: str) -> str:
    return "".join(f"\\x{ord(letter):02x}" for letter in text)


def test_a_log_of_strace_is_read_as_the_changes_it_tells(tmp_path: Path) -> None:
    """Two processes at once, a file added to, one that is replaced, what lies elsewhere, and what failed."""
    at, name = str(tmp_path), lambda n: f'"{hexed(f"{tmp_path}/{n}")}"'
    lines = [
        f"1 mkdir({name('a')}, 0777) = 0",
        f"1 mkdir({name('a')}, 0777) = -1 EEXIST (File exists)",
        f"1 openat(AT_FDCWD</>, {name('a/x')}, O_WRONLY|O_CREAT|O_TRUNC, 0666 <unfinished ...>",
        f"2 openat(AT_FDCWD</>, {name('y')}, O_WRONLY|O_CREAT|O_APPEND, 0666) = 4<{at}/y>",
        f"1 <... openat resumed>) = 3<{at}/a/x>",
        f'1 write(3<{at}/a/x>, "{hexed("one, ")}", 5) = 5',
        f'2 write(4<{at}/y>, "{hexed("end")}", 3 <unfinished ...>',
        f'1 write(3<{at}/a/x>, "{hexed("two")}", 3) = 3',
        "2 <... write resumed>) = 3",
        f'1 write(9</elsewhere>, "{hexed("no")}", 2) = 2',
        f"1 rename({name('a/x')}, {name('a/z')}) = 0",
        f"1 unlink({name('y')}) = 0",
    ]
    found = list(changes(iter(lines), tmp_path))
    assert found == [
        Change("make", "a"),
        Change("touch", "y"),
        Change("open", "a/x"),
        Change("write", "a/x", b"one, ", 0),
        Change("write", "a/x", b"two", 5),
        Change("write", "y", b"end", -1),
        Change("move", "a/x", target="a/z"),
        Change("remove", "y"),
    ]
    disk = Disk()
    for change in found:
        disk.apply(change)
    assert disk.files == {"a": None, "a/z": bytearray(b"one, two")}
    disk.put(tmp_path / "made")
    assert (tmp_path / "made" / "a" / "z").read_bytes() == b"one, two" and not disk.differs(tmp_path / "made")
    (tmp_path / "made" / "a" / "z").write_bytes(b"one, tw0")
    assert disk.differs(tmp_path / "made") == ["a/z"]
    assert torn(found[3], 0.5).data == b"on"


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
    for i, disk in enumerate(found[:: len(found) // MOMENTS]):
        run = tmp_path / f"dead{i}" / "run"
        disk.put(run, crashes.HOLLOW)
        again = "resume {at}/run --no-dashboard" if crashes.begun(run) else f"search {words}"
        wrong, said = crashes.judged(run, again, whole, report=False)
        assert not wrong
        assert said == "accepted" or "is finished; --trials +N" in said
        goes_on += [run] if said == "accepted" and crashes.begun(run) else []
    assert len(goes_on) >= 3
    for i, run in enumerate(random.Random(0).sample(goes_on, 2)):
        again = run.rename(run.with_name(f"{run.name}{i}"))  # see copy_to
        assert resume.main([str(again), "--no-dashboard"]) == 0
        assert difference(crashes.rows(again), whole) == (0, 0, 0)
