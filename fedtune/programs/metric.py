"""The metrics of a program: where each figure comes from, on which rows it was measured, and which way is better."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

import regex

from fedtune.core.metrics import METRICS, limits
from fedtune.core.metrics import Metric as Declared
from fedtune.programs.entries import Entry

KEYS = ("pattern", "column", "split", "skip", "every", "divide", "mode", "worst")
NAME = r"[A-Za-z_]\w{0,59}"
# names that a row has for something else
TAKEN = {
    "round",
    "seconds",
    "eval_seconds",
    "spent",
    "judged",
    "reported",
    "excesses",
    "done",
    "complete",
    "timestamp",
} | {
    *("config", "reason", "diverged", "broken", "stack", "trouble", "trial", "trial_id", "state", "seed", "rounds"),
    *("training_iteration", "time_total_s", "time_this_iter_s", "date", "pid", "hostname", "node_ip", "error"),
    *("iterations_since_restore", "time_since_restore", "should_checkpoint", "experiment_tag", "checkpoint_dir_name"),
}
FUZZY = re.compile(r"(?<!\\)(?<!\\N)\{(?!\d*,?\d*\})")  # a brace that is one for `re`; regex would allow errors there
NEEDLE = re.compile(r"(?<![A-Za-z])[Tt]est|TEST|(?<=[a-z])Test")  # the word test, but not contest or latest


class ProgramMetric(NamedTuple):
    """A metric's declaration; without pattern and column it comes by its name, in rows that the program reports."""

    name: str
    pattern: str | None = None  # of a line; its group holds the number, a group `round` the round
    column: str | None = None  # of the program file's `file`
    split: str | None = None  # train, validation or test: the rows that it was measured on
    skip: int = 0  # rounds at the start that do not count
    every: int = 1  # of so many figures in a round the last counts
    divide: float = 1.0
    mode: str = ""  # max or min; "" if it was not said
    worst: float | None = None

    @property
    def tests(self) -> bool:
        """Whether it was measured on test rows, or may have been, by its name."""
        said = " ".join(filter(None, (self.name, self.pattern, self.column)))
        return self.split == "test" or (self.split is None and bool(NEEDLE.search(said)))


def read(name: str, entry: Entry, file: bool) -> ProgramMetric:
    """A metric from its table.  file: whether the program writes a file, from which it then comes by column."""
    if not re.fullmatch(NAME, name) or name in TAKEN:
        rule = "be letters, digits and _" if name not in TAKEN else "not be one that fedtune uses itself"
        raise entry.source.error(entry.key, f"a metric's name must {rule}, but got {name!r}; for example val_acc")
    given = entry.table(KEYS, "for example pattern = 'acc: ([0-9.]+)'")
    pattern = _pattern(given["pattern"]) if "pattern" in given else None
    column = given["column"].text('"val_acc"') if "column" in given else None
    if pattern and column:
        raise given["column"].refuse("left out where there is a pattern", "a metric comes from one place")
    if column and not file:
        raise given["column"].refuse(
            "of a file", 'name it at the top of the file, for example file = "results/{trial}.csv"'
        )
    found = ProgramMetric(
        name=name,
        pattern=pattern,
        column=column or (name if file and not pattern else None),
        split=given["split"].one_of("train", "validation", "test") if "split" in given else None,
        skip=given["skip"].whole(0) if "skip" in given else 0,
        every=given["every"].whole(1) if "every" in given else 1,
        divide=given["divide"].number() if "divide" in given else 1.0,
        mode=given["mode"].one_of("max", "min") if "mode" in given else "",
        worst=given["worst"].number() if "worst" in given else None,
    )
    _require_sense(found, entry, given)
    known = _declared(name)
    if known is None:
        return found
    worst = known.worst if found.worst is None and known.goal == "max" else found.worst
    return found._replace(mode=found.mode or known.goal, worst=worst)


def _declared(name: str) -> Declared | None:
    """fedtune's own metric of this name; of one on test rows, its counterpart on validation rows, which has a goal."""
    return METRICS.get(name.replace("test_", "val_", 1) if name.startswith("test_") else name)


def bounds(name: str) -> tuple[float, float]:
    """The smallest and largest value that a metric of this name can have; infinite but for shares.

    A loss of the program's may be another than ours, which is bounded.
    """
    low, high = limits(name)
    return (low, high) if high == 1.0 else (-math.inf, math.inf)


def _require_sense(found: ProgramMetric, entry: Entry, given: dict[str, Entry]) -> None:
    """UserError for what contradicts the metric's name."""
    name, known = found.name, _declared(found.name)
    if not found.divide:
        raise given["divide"].refuse("a number other than 0", "100 makes a share of a percentage")
    if name.startswith("test_") and found.split in ("train", "validation"):
        raise given["split"].refuse(f"'test' for {name}", f"call it val_{name.removeprefix('test_')}")
    if name.startswith("val_") and found.split == "test":
        raise given["split"].refuse(f"'validation' for {name}", f"call it test_{name.removeprefix('val_')}")
    if known and known.goal and found.mode and found.mode != known.goal:
        raise given["mode"].refuse(f"{known.goal!r} for {name}", "choose another name if it is something else")
    low, high = bounds(name)
    if found.worst is not None and not low <= found.worst <= high:
        raise given["worst"].refuse(f"within {low:g} to {high:g} for {name}")


def _pattern(entry: Entry) -> str:
    """A regular expression with one group around the number, and perhaps a group of name `round`."""
    example = "for example 'acc: ([0-9.]+)'"
    text = entry.text("'acc: ([0-9.]+)'")
    try:
        re.compile(text)  # what is one for Python only: regex knows more
        found = compiled(text)
    except (re.error, regex.error, RecursionError, OverflowError) as error:
        raise entry.refuse("a regular expression", f"{error}; {example}") from None
    numbers = found.groups - ("round" in found.groupindex)
    if numbers != 1:
        raise entry.refuse(
            f"a regular expression with one group (…), around the number, but it has {numbers}",
            f"write (?:…) for a group that only groups; {example}",
        )
    return text


def compiled(pattern: str) -> regex.Pattern[str]:
    """A pattern of the user's, whose search of a line can be ended, unlike one of `re`."""
    return regex.compile(FUZZY.sub(r"\{", pattern), regex.VERSION0)


def group(pattern: regex.Pattern[str]) -> int:
    """The number of the group that holds the metric's value."""
    return 2 if pattern.groupindex.get("round") == 1 else 1
