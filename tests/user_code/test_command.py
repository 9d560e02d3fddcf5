"""The last line of defence: whatever goes wrong in a command is one line with a status."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from fedtune.core.errors import Diverged, UserError, shown, unknown
from fedtune.core.terminal import one_line, printable
from fedtune.user_code.command import BUG, Parser, guarded, require_new


def told(error: BaseException, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...] = ()) -> tuple[int, str]:
    """The status and the line of a command in which this goes wrong."""

    @guarded
    def main(argv: list[str] | None = None) -> int:
        raise error

    status, (out, err) = main(list(argv)), capsys.readouterr()
    assert not out
    return status, err.strip()


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UserError("a\n b"), 2, "error: a b"),
        (UserError("\x1b[2Jred \u202e"), 2, r"error: \\x1b\[2Jred \\u202e"),
        (Diverged("in round 3"), 1, "stopped: in round 3"),
        (KeyboardInterrupt(), 130, "interrupted$"),
        (KeyboardInterrupt("fedtune resume x continues it"), 130, "interrupted; fedtune resume x continues it$"),
        (
            FileNotFoundError(errno.ENOENT, "No such file", "a.x"),
            2,
            "error: a.x cannot be used: No such file; fix it",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "error: No space left on device; fix it"),
        (OSError("odd"), BUG, "error: this is a bug in fedtune, OSError: odd; please report it"),
        (KeyError("x"), BUG, "error: this is a bug in fedtune, KeyError: 'x'; please report it"),
    ],
)
def test_every_error_is_a_line_and_a_bugs_stack_stands_below(
    error: BaseException, status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    got, text = told(error, capsys)
    assert got == status and re.match(line, text), text
    assert ("Traceback (most recent call last)" in text) == (text.count("\n") > 0) == (status == BUG)


@pytest.mark.parametrize("gone", ["before", "meanwhile"])
def test_a_folder_that_is_gone_is_told(
    gone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here, begun = tmp_path / "here", []
    here.mkdir()
    monkeypatch.chdir(here)

    @guarded
    def main(argv: list[str] | None = None) -> int:
        begun.append(True)
        here.rmdir()
        os.getcwd()
        return 0

    if gone == "before":
        here.rmdir()
    assert main([]) == 2
    assert begun == [True] * (gone == "meanwhile")
    assert capsys.readouterr().err.startswith("error: No such file or directory; fix it, or give another")


@pytest.mark.parametrize("error", [KeyError("x"), UserError("x"), OSError(errno.ENOENT, "gone", "f")])
def test_debug_shows_the_stack_of_each(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(type(error)):
        told(error, capsys, ("--debug",))


def test_empty_values_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    p = Parser(prog="p")
    p.add_argument("--name")
    p.add_argument("run", nargs="?")
    for argv in (["--name", ""], ["--name="], [""], ["--name", "x", ""]):
        with pytest.raises(SystemExit) as end:
            p.parse_args(argv)
        assert end.value.code == 2 and "must not be empty; leave it out for the default" in capsys.readouterr().err
    assert p.parse_args(["--name", "x", "y"]).name == "x"
    with pytest.raises(SystemExit) as end:  # argparse makes an empty list of it
        p.parse_args(["--name=--"])
    assert end.value.code == 2 and "argument --name must be a value, but got --" in capsys.readouterr().err
    assert p.parse_args(["--name=x", "--", "y"]).run == "y"


@pytest.mark.parametrize(
    ("words", "said"),
    {
        "--seed 2": "unknown option '--seed': did you mean '--seeds-per-trial'?",  # not taken for it
        "--seed=2": "unknown option '--seed': did you mean '--seeds-per-trial'?",
        "-seeds-per-trial 2": "unknown option '-seeds-per-trial': did you mean '--seeds-per-trial'?",
        "--ful": "unknown option '--ful': did you mean '--full'?",
        "look --ad here": "unknown option '--ad': did you mean '--address'?",  # of a command below
        "--full look --adress here": "unknown option '--adress': did you mean '--address'?",
        "--colour red": "unknown option '--colour': known are --address, --full, --help, --seeds-per-trial, -h",
    }.items(),
)
def test_no_option_is_abbreviated_and_an_unknown_one_is_told_the_nearest(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    p = Parser(prog="p")
    p.add_argument("--seeds-per-trial", type=int)
    p.add_argument("--full", action="store_true")
    p.add_subparsers().add_parser("look").add_argument("--address")
    with pytest.raises(SystemExit) as end:
        p.parse_args(words.split())
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and line.startswith(f"p: {said}") and line.endswith("; see p --help")


def test_words_that_only_look_like_options_stay_what_they_are() -> None:
    p = Parser(prog="p")
    p.add_argument("--program")
    p.add_argument("--low", type=float)
    p.add_argument("rest", nargs="*")
    got = p.parse_args(["--program", "--lr {lr} x.py", "--low", "-0.5", "--", "--unheard-of"])
    assert (got.program, got.low, got.rest) == ("--lr {lr} x.py", -0.5, ["--unheard-of"])


def test_many_names_are_up_to_three_similar_ones_and_where_to_see_all() -> None:
    names = [f"scenario-number-{i:03}" for i in range(300)]
    similar = str(unknown("scenario", "scenario-number-07", names, "fedtune list"))
    said = "did you mean 'scenario-number-070' or 'scenario-number-071' or 'scenario-number-072'?"
    assert similar == f"unknown scenario 'scenario-number-07': {said} all 300 are in fedtune list"
    assert str(unknown("scenario", "q", names, "fedtune list")) == "unknown scenario 'q': all 300 are in fedtune list"
    line = str(unknown("scenario", "q", names))
    assert line.startswith("unknown scenario 'q': known are scenario-number-000, scenario-number-001, ")
    assert line.endswith(", … (300 in all)") and len(line) < 250
    assert str(unknown("kind", "c", ["a", "b"])) == "unknown kind 'c': known are a, b"
    assert str(unknown("kind", "aa", {"b": 1, "a": 2})) == "unknown kind 'aa': did you mean 'a'? known are a, b"
    assert len(str(unknown("scenario", "x" * 10**6, names))) < 400


def test_what_is_shown_is_bounded_and_plain() -> None:
    assert (
        len(shown(list(range(10**5)))) < 130 and len(one_line("a" * 10**6)) < 300 and len(one_line("a " * 10**6)) < 700
    )
    assert printable("é\n\t ü 東") == "é\n\t ü 東" and printable("\x1b\x07\r\ud800") == r"\x1b\x07\r\ud800"


@pytest.mark.parametrize("characters", [1, 10**6])
def test_a_reader_that_has_gone_is_no_error(characters: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `fedtune list | head -1`."""
    read, write = os.pipe()
    os.close(read)
    monkeypatch.setattr("sys.stdout", os.fdopen(write, "w"))
    assert guarded(lambda argv=None: print("x" * characters, flush=True) or 0)([]) == 1


@pytest.mark.parametrize("place", ["loop", "nowhere", "there", "none/x", "x" * 300, "/proc/x", "x.csv"])
def test_a_new_file_is_tried_before_anything_is_made(place: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("gone/gone")
    (tmp_path / "there").touch()
    with pytest.raises((UserError, OSError)):
        require_new("--output", tmp_path / place, ".html" if place == "x.csv" else "")
    assert len(list(tmp_path.iterdir())) == 3
    require_new("--output", tmp_path / "new.html", ".html")
    assert len(list(tmp_path.iterdir())) == 3
