"""Two algorithms side by side: what is the same in their states and rows, and what is not."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.testing import assert_close

from fedtune.engine.simulation import Simulation
from support.helpers import BATCHNORM, DIGITS, play, random_federation, simulate
from support.numbers import copied, numbers

SCENARIOS = {name: s.override(participation=0.7) for name, s in (("few rows", DIGITS), ("batch norm", BATCHNORM))}
SENDS = ("up_", "down_", "comm_mb")
SCORES = ("val_", "test_")


@dataclass(frozen=True)
class Limit:
    """An algorithm that under these values is another one.

    All of the other's numbers and columns are compared, but for what a row names.  Numbers that the other has not are
    named too: nothing is left out by accident.
    """

    name: str
    says: str  # the limit, in words
    values: Mapping[str, Any]
    other: str
    of_other: Mapping[str, Any] = field(default_factory=dict)  # the other's values
    work: Mapping[str, Any] = field(default_factory=dict)  # both have them
    rows: Sequence[int] = (5, 9, 7)  # of each client
    held: Sequence[Sequence[int]] | None = None  # the classes of each
    rounds: int = 3
    only: tuple[str, ...] = ("few rows", "batch norm")
    exact: bool = True  # bit for bit; else to 1e-12
    names: tuple[str, str] = ("", "")  # a part of its numbers' names, and what the other calls it
    more: tuple[str, ...] = ()  # how the names of numbers begin that it has besides the other's
    less: tuple[str, ...] = ()  # those of the other's that are not compared
    still: tuple[str, ...] = ()  # those that stay as they began
    apart: tuple[str, ...] = ()  # how the columns begin that may differ
    differs: tuple[str, ...] = ()  # the columns that do
    scored_as: str = ""  # its way of predicting whose accuracy is the other's
    constant: Mapping[str, Any] = field(default_factory=dict)  # columns of its own
    also: Callable[[Simulation], bool] | None = None  # what holds at the end

    def __str__(self) -> str:
        """As tests are called."""
        return f"{self.name}, {self.says}"

    def check(self, scenario: str, executor: str) -> None:
        """Train both, and compare."""
        data = random_federation(self.rows, self.held)
        mine, other = (
            simulate(name, SCENARIOS[scenario], data, executor=executor, **{**values, **self.work})
            for name, values in ((self.name, self.values), (self.other, self.of_other))
        )
        start = copied(numbers(mine.state))
        rows, wanted = play(mine, self.rounds), play(other, self.rounds)
        self._same_numbers(self._named(numbers(mine.state)), numbers(other.state))
        for n, t in numbers(mine.state).items():
            assert not (self.still and n.startswith(self.still)) or torch.equal(t, start[n]), f"{n} moved"
        for row, one in zip(rows, wanted, strict=True):
            self._same_columns(row, one)
        assert all(rows[-1][n] != wanted[-1][n] for n in self.differs)
        if not {"comm_mb", "up_", "up_bytes"} & {*self.apart}:
            assert mine.state.bytes == other.state.bytes
        assert self.also is None or self.also(mine)

    def _named(self, own: dict[str, Tensor]) -> dict[str, Tensor]:
        return {n.replace(*self.names) if self.names[0] else n: t for n, t in own.items()}

    def _same_numbers(self, own: dict[str, Tensor], others: dict[str, Tensor]) -> None:
        for n, t in others.items():
            if not (self.less and n.startswith(self.less)):
                assert_close(own[n], t, rtol=0, atol=0 if self.exact else 1e-12, msg=lambda m, n=n: f"{n}: {m}")
        besides = {n.partition("client ")[2].partition("/")[2] or n for n in own.keys() - others.keys()}
        unnamed = {n for n in besides if not (self.more and n.startswith(self.more))}
        assert not unnamed, f"numbers that the other has not: {unnamed}"

    def _same_columns(self, row: dict[str, Any], one: dict[str, Any]) -> None:
        for n, v in one.items():
            if not (self.apart and n.startswith(self.apart)):
                assert row[n] == v or (not self.exact and abs(row[n] - v) <= 1e-12), f"{n}: {row[n]}, not {v}"
        for n in ("val_acc", "test_acc") if self.scored_as else ():
            assert row[f"{n}_{self.scored_as}"] == one[n]
        assert {n: row[n] for n in self.constant} == self.constant
