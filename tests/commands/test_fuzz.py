"""The rule of bad input, on a fixed two hundred of what `python -m tests.fuzz` throws at the commands for hours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz import cases, rule, world
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

EXAMPLES = {"lines": 50, "records": 30, "damage": 15, "spaces": 30, "partitions": 25, "code": 25, "files": 30}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    rule.warm()
    yield world.make(tmp_path_factory.mktemp("fuzz") / "world")


@pytest.mark.parametrize("kind", cases.KINDS)
@pytest.mark.filterwarnings("ignore")
def test_every_answer_keeps_the_rule(kind: str, place: Path) -> None:
    @settings(
        max_examples=EXAMPLES[kind],
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def one(data: st.DataObject) -> None:
        said, answer = cases.KINDS[kind](place, data)
        assert not answer.broken, f"{said}\n{answer.broken}"

    one()


@pytest.mark.parametrize(
    ("words", "broken"),
    [
        (["status", "run"], ""),
        (["report", "run", "-o", "folder"], ""),
    ],
)
def test_the_rule_holds_where_it_should(words: list[str], broken: str, place: Path) -> None:
    assert rule.ask(words, place).kind == broken


def test_the_rule_tells_what_breaks_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack, a bug's status, a second line, a long one, a control character, a file, five seconds, a gigabyte."""
    from fedtune.commands import status

    def stack() -> int:
        raise BaseException("x")

    def bug() -> int:
        raise KeyError("x")

    def said(text: str) -> int:
        import sys

        print(text, file=sys.stderr)
        return 2

    def left() -> int:
        Path("left.txt").touch()
        return said("error")

    def slow() -> int:
        while True:
            pass

    def large() -> int:
        return len(bytearray(2**31))

    for does, kind in (
        (stack, "stack: BaseException"),
        (bug, "status: 70"),
        (lambda: said("a\nb"), "lines: 2"),
        (left, "left"),
        (lambda: said("a" * 2000), "long"),
        (lambda: said("\x1b[2J"), "control"),
        (slow, "slow"),
        (large, "status: 70"),
    ):
        monkeypatch.setattr(status, "main", status.arguments.guarded(lambda argv, does=does: does()))
        assert rule.ask(["status", "run"], place, 0.5).kind.startswith(kind)
        (place / "left.txt").unlink(missing_ok=True)
