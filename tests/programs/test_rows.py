"""Rows of rounds from lines: what is understood, and what is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.programs import made

from fedtune.core.errors import Diverged, UserError
from fedtune.programs.rows import SEARCHED, RowMaker

ONE = "[metrics.val_acc]\npattern = 'acc: (\\S+)'\n"
TWO = f"{ONE}[metrics.loss]\npattern = 'loss: (\\S+)'\nmode = 'min'\n"
NUMBERED = "[metrics.val_acc]\npattern = 'round (?P<round>\\S+) acc: (\\S+)'\n"
NAMED = "[metrics.val_acc]\n[metrics.test_acc]\n"


def rows(folder: Path, metrics: str, lines: str, rounds: int = 3) -> list[dict[str, float]]:
    """The rows of a program that prints these lines."""
    program = made(folder, "true", metrics, rounds)
    taker = RowMaker(program, program.selectable())
    for line in lines.split("\n"):
        taker.line(line)
    return [{"round": number} | row for number, row in taker.complete]


def accuracies(found: list[dict[str, float]]) -> list[float]:
    assert [row["round"] for row in found] == list(range(1, len(found) + 1))
    return [row["val_acc"] for row in found]


EIGHT = "\n".join(f"acc: 0.{i}" for i in range(1, 9))
FROM_0 = "round 0 acc: 0.1\nround 1 acc: 0.2\nround 2 acc: 0.3"
READ = {
    "each match": (ONE, "start\nacc: 0.5\nacc: .25 and more\nacc: 1e-1", [0.5, 0.25, 0.1]),
    "the first does not count": (f"{ONE}skip = 1\n", "acc: 0.1\nacc: 0.2\nacc: 0.3", [0.2, 0.3]),
    "the last of two counts": (f"{ONE}every = 2\n", EIGHT[:-9], [0.2, 0.4, 0.6]),
    "but not of the first two": (f"{ONE}skip = 1\nevery = 2\n", EIGHT, [0.4, 0.6, 0.8]),
    "percentages": (f"{ONE}divide = 100\n", "acc: 87.5", [0.875]),
    "rounds from 0": (f"first_round = 0\n{NUMBERED}", FROM_0, [0.1, 0.2, 0.3]),
    "round 0 does not count": (f"{NUMBERED}skip = 1\n", FROM_0, [0.2, 0.3]),
}


@pytest.mark.parametrize(("metrics", "lines", "expected"), READ.values(), ids=READ)
def test_each_match_is_a_round(tmp_path: Path, metrics: str, lines: str, expected: list[float]) -> None:
    assert accuracies(rows(tmp_path, metrics, lines)) == expected


def test_a_round_is_complete_when_all_its_metrics_came(tmp_path: Path) -> None:
    found = rows(tmp_path, TWO, "acc: 0.5\nloss: 2\nloss: 1\nacc: 0.6\nacc: 0.7")
    assert found == [{"round": 1, "val_acc": 0.5, "loss": 2.0}, {"round": 2, "val_acc": 0.6, "loss": 1.0}]


def test_rows_are_reported_behind_a_mark_wherever_it_stands(tmp_path: Path) -> None:
    lines = (
        'fedtune {"round": 1, "val_acc": 0.5, "test_acc": 0.4, "other": "x"}\n'
        '12:00 INFO:fedtune {"val_acc": 0.6, "test_acc": null} (best)\n'
        'fedtune {"test_acc": 0.5}\nunfedtune {"val_acc": 0.7}'
    )
    found = rows(tmp_path, NAMED, lines)
    assert found == [{"round": 1, "val_acc": 0.5, "test_acc": 0.4}, {"round": 2, "val_acc": 0.6, "test_acc": 0.5}]


def test_a_very_long_line_takes_no_time_and_no_number_is_cut(tmp_path: Path) -> None:
    pattern = "[metrics.val_acc]\npattern = '.*x acc: (\\S+)'\n"
    assert rows(tmp_path, pattern, "x" * 60_000 + " acc: 0.5\n" + "x" * (SEARCHED - 7) + " acc: 0.51") == []
    assert accuracies(rows(tmp_path, pattern, "x acc: 0.5 " + "y" * 60_000)) == [0.5]


WRONG = {
    "figures twice before the other": (TWO, "acc: 0.5\nacc: 0.6 x", "came twice before loss.*'acc: 0.6 x'.*`every`"),
    "no number": (ONE, "acc: 0.5.", r"val_acc must be a number, but got '0.5.', in 'acc: 0.5.'"),
    "a number in Python's way": (ONE, "acc: 1_0", "must be a number"),
    "a percentage": (ONE, "acc: 87.5", "val_acc must be within 0 and 1, but is 87.5.*divide = 100"),
    "a part of a number": ("[metrics.val_acc]\npattern = 'acc: ([0-9.]+)'\n", "acc: 1e-05", "takes '1' only"),
    "a number cut": ("[metrics.val_acc]\npattern = 'acc: ([0-9.]{3})'\n", "acc: 0.52", "takes '0.5' only"),
    "a sign left out": ("[metrics.val_acc]\npattern = 'acc:.*?([0-9.]+)'\n", "acc: -0.5", "takes '0.5' only"),
    "the number again": (NUMBERED, "round 1 acc: 0.5\nround 1 acc: 0.5", "of round 2 must come next"),
    "a falling number": (
        NUMBERED,
        "round 1 acc: 0.5\nround 2 acc: 0.5\nround 1 acc: 0.6",
        "val_acc of round 3 must come next, but val_acc of round 1 came, in .*acc: 0.6",
    ),
    "a gap": (NUMBERED, "round 1 acc: 0.5\nround 3 acc: 0.5", "of round 2 must come next, but"),
    "round 0": (NUMBERED, "round 0 acc: 0.5", "of round 1 must come next, but val_acc of round 0 came.*`first_round`"),
    "no whole round": (NUMBERED, "round 1.5 acc: 0.5", "a round's number must be whole, but got '1.5'"),
    "a dict of Python's": (NAMED, "fedtune {'val_acc': 0.5}", "must be JSON"),
    "a text": (NAMED, 'fedtune {"val_acc": "good"}', "must be a number, but got 'good'"),
    "true": (NAMED, 'fedtune {"val_acc": true}', "must be a number, but got True"),
    "a list": (NAMED, 'fedtune {"val_acc": [0.5]}', "must be a number"),
    "digits": (NAMED, f'fedtune {{"val_acc": {"9" * 5000}}}', "JSON|within"),
}


@pytest.mark.parametrize(("metrics", "lines", "said"), WRONG.values(), ids=WRONG)
def test_what_contradicts_itself_is_refused_with_its_line(tmp_path: Path, metrics: str, lines: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        rows(tmp_path, metrics, lines)


@pytest.mark.parametrize("value", ["nan", "NaN", "inf", "-inf", "Infinity"])
@pytest.mark.parametrize(
    "pattern", [r"acc: (\S+)", "acc: ([0-9.]+)", "(?:x|acc: )([0-9.()]+)", r"acc[:(] (?P<v>[^a-z)]+)"]
)
def test_a_figure_that_is_not_finite_is_divergence(tmp_path: Path, value: str, pattern: str) -> None:
    """Also where the pattern takes digits only: the line would be passed over, and the rounds miscounted."""
    with pytest.raises(Diverged, match="val_acc is -?(nan|inf) in round 2: 'acc: "):
        rows(tmp_path, f"[metrics.val_acc]\npattern = '{pattern}'\n", f"acc: 0.5\nacc: {value}")


def test_a_figure_of_test_rows_may_be_anything(tmp_path: Path) -> None:
    found = rows(tmp_path, NAMED, 'fedtune {"val_acc": 0.5, "test_acc": NaN}')
    assert str(found[0]["test_acc"]) == "nan"


@pytest.mark.parametrize("pattern", ["(?:val_acc |(?:a|aa)+$)([0-9.]+)", "(?:val_acc |(?:a|a)+b)([0-9.]+)"])
def test_a_line_that_a_pattern_cannot_be_done_with_is_refused(tmp_path: Path, pattern: str) -> None:
    program = made(tmp_path, "true", f"[metrics.val_acc]\npattern = '{pattern}'\n")
    maker = RowMaker(program, program.selectable())
    maker.line("val_acc 0.5")
    with pytest.raises(UserError, match="val_acc must find its figure within 1 second, but did not in 'aaaaaa"):
        maker.line("a" * 80)
    assert maker.complete == [(1, {"val_acc": 0.5})]


def test_a_pattern_means_what_it_means_to_python(tmp_path: Path) -> None:
    braces = "[metrics.val_acc]\npattern = 'a{e} \\{x{2} [{]i} acc: ([0-9.]{1,4})'\n"
    assert accuracies(rows(tmp_path, braces, "a{e} {xx {i} acc: 0.51")) == [0.51]
    assert rows(tmp_path, braces, "b {xx {i} acc: 0.51") == []
    fast = "[metrics.val_acc]\npattern = '(?:val_acc |(?:a+)+$)([0-9.]+)'\n"
    assert accuracies(rows(tmp_path, fast, "val_acc 0.5\n" + "a" * 60 + "\nval_acc 0.6")) == [0.5, 0.6]


EVERY = f"report_every = 5\n{ONE}"


def test_a_report_stands_for_several_rounds(tmp_path: Path) -> None:
    lines = "\n".join(f"round {5 * i}: acc: 0.{i}" for i in range(1, 5))
    expected = [{"round": 5 * i, "val_acc": i / 10} for i in range(1, 5)]
    numbered = "[metrics.val_acc]\npattern = 'round (?P<round>[0-9]+): acc: (\\S+)'\n"
    by_name = "\n".join(f'fedtune {{"round": {5 * i}, "val_acc": 0.{i}}}' for i in range(1, 5))
    for metrics, printed in [(ONE, lines), (numbered, lines), ("[metrics.val_acc]\n", by_name)]:
        assert rows(tmp_path, f"report_every = 5\n{metrics}", printed, rounds=20) == expected
    from_0 = "\n".join(f"round {5 * i - 1}: acc: 0.{i}" for i in range(1, 5))
    assert rows(tmp_path, f"report_every = 5\nfirst_round = 0\n{numbered}", from_0, rounds=20) == expected


@pytest.mark.parametrize(
    ("metrics", "lines", "says"),
    [
        (f"report_every = 5\n{NUMBERED}", "round 1 acc: 0.1", "of round 5 must come next, but val_acc of round 1 came"),
        (f"report_every = 5\n{NUMBERED}", "round 5 acc: 0.1\nround 15 acc: 0.2", "of round 10 must come next"),
        (NUMBERED, "round 5 acc: 0.1", "val_acc of round 5 came.*`report_every`"),
        (ONE, "Round 5: acc: 0.1\nRound 10: acc: 0.2", "tells of round 5 and 10, .* report_every = 5"),
        (ONE, "[round number: 2] acc: 0.1\n[round number: 4] acc: 0.2", "write report_every = 2"),
        (EVERY, "round 1: acc: 0.1\nround 2: acc: 0.2", "a report stands for 5 rounds, but .* of round 1 and 2"),
        (EVERY, "acc: 0.1\nacc: 0.2\nacc: 0.3\nacc: 0.4\nacc: 0.5", "a run has 20 rounds, but another val_acc came"),
    ],
)
def test_reports_that_are_farther_apart_are_refused(tmp_path: Path, metrics: str, lines: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        rows(tmp_path, metrics, lines, rounds=20)


@pytest.mark.parametrize(
    ("more", "lines"),
    [
        ("", "round 1: acc: 0.1\nround 2: acc: 0.2"),
        ("", "round 1 of 30: acc: 0.1\nround 2 of 30: acc: 0.2"),
        ("", "acc: 0.1 (best round 3)\nacc: 0.2 (best round 7)"),
        ("", "acc: 0.1 | best 0.3 at round 3\nacc: 0.2 | best 0.4 at round 7"),
        ("", "Best so far: round 3; acc: 0.1\nBest so far: round 7; acc: 0.2"),
        ("", "round 1: acc: 0.1 (best: round 1)\nround 2: acc: 0.2 (best: round 7)"),
        ("", "rounds of clients: 5 acc: 0.1\nrounds of clients: 10 acc: 0.2"),
        ("", "round 5: acc: 0.1\nround 5: acc: 0.2"),
        ("report_every = 1\n", "round 100: acc: 0.1\nround 200: acc: 0.2"),
    ],
)
def test_other_numbers_in_a_line_are_no_rounds(tmp_path: Path, more: str, lines: str) -> None:
    assert accuracies(rows(tmp_path, more + ONE, lines)) == [0.1, 0.2]
