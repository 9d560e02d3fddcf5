"""A disk that dies between two writes: a sample of what `python -m tests.fuzz.deaths` looks at; what it rests on."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz.crashes import difference
from fuzz.recording import Change, Disk, changes, torn


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
    ]  # fmt: skip
    found = list(changes(iter(lines), tmp_path))
    assert found == [
        Change("make", "a"), Change("touch", "y"), Change("open", "a/x"), Change("write", "a/x", b"one, ", 0),
        Change("write", "a/x", b"two", 5), Change("write", "y", b"end", -1), Change("move", "a/x", target="a/z"),
        Change("remove", "y"),
    ]  # fmt: skip
    disk = Disk()
    for change in found:
        disk.apply(change)
    assert disk.files == {"a": None, "a/z": bytearray(b"one, two")}
    disk.put(tmp_path / "made")
    assert (tmp_path / "made" / "a" / "z").read_bytes() == b"one, two" and not disk.differs(tmp_path / "made")
    (tmp_path / "made" / "a" / "z").write_bytes(b"one, tw0")
    assert disk.differs(tmp_path / "made") == ["a/z"]
    assert torn(found[3], 0.5).data == b"on"


@pytest.mark.parametrize(("found", "want"), [
    ({"a": ["1"], "b": ["2"]}, (0, 0, 0)), ({"a": ["1"]}, (1, 0, 0)), ({"a": ["1", "1"], "b": ["2"]}, (0, 1, 0)),
    ({"a": ["3"], "b": ["2"]}, (0, 0, 1)), ({"a": ["1"], "b": ["2"], "c": ["1"]}, (0, 0, 1)),
])  # fmt: skip
def test_what_is_lost_doubled_and_different_is_counted(found: dict, want: tuple[int, ...]) -> None:
    whole = {("a",): ["1"], ("b",): ["2"]}
    assert difference({(k,): v for k, v in found.items()}, whole) == want
