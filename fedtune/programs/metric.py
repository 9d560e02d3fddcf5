"""The metrics of a program: where each figure comes from, on which rows it was measured, and which way is better."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

import regex
from pydantic import AfterValidator, ConfigDict, with_config

from fedtune.core.errors import UserError, unknown
from fedtune.core.metrics import METRICS, limits
from fedtune.programs.entries import Count, Flag, Number, Text, Whole, of_key, refused

# names that a row has for something else
TAKEN = {
    *("round", "seconds", "eval_seconds", "spent", "judged", "reported", "excesses", "done", "complete", "timestamp"),
    *("config", "reason", "diverged", "broken", "stack", "trouble", "trial", "trial_id", "state", "seed", "rounds"),
    *("training_iteration", "time_total_s", "time_this_iter_s", "date", "pid", "hostname", "node_ip", "error"),
    *("iterations_since_restore", "time_since_restore", "should_checkpoint", "experiment_tag", "checkpoint_dir_name"),
}
FUZZY = re.compile(r"(?<!\\)(?<!\\N)\{(?!\d*,?\d*\})")  # a brace that is one for `re`; regex would allow errors there
NEEDLE = re.compile(r"(?<![A-Za-z])[Tt]est|TEST|(?<=[a-z])Test")  # the word test, but not contest or latest


def _name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w{0,59}", name) or name in TAKEN:
        rule = "must be letters, digits and _, and not be one that fedtune uses itself"
        raise UserError(f"a metric's name {rule}, but got {name!r}; for example val_acc")
    return name


def _pattern(text: str) -> str:
    """A regular expression with one group around the number, and perhaps a group of name `round`."""
    example = "for example 'acc: ([0-9.]+)'"
    try:
        re.compile(text)  # what is one for Python only: regex knows more
        found = compiled(text)
    except (re.error, regex.error, RecursionError, OverflowError) as error:
        raise refused(text, "a regular expression", f"{error}; {example}") from None
    if (numbers := found.groups - ("round" in found.groupindex)) != 1:
        rule = f"a regular expression with one group (…), around the number, but it has {numbers}"
        raise refused(text, rule, f"write (?:…) for a group that only groups; {example}")
    return text


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True)
class ProgramMetric:
    """A metric's declaration; without pattern and column it comes by its name, in rows that the program reports."""

    name: str = ""  # that of its table
    pattern: Annotated[Text, AfterValidator(_pattern)] | None = None  # with a group for the number, and for the round
    column: Text | None = None  # of the program file's `file`
    split: Literal["train", "validation", "test"] | None = None  # the rows that it was measured on
    skip: Whole = 0  # rounds at the start that do not count
    every: Count = 1  # of so many figures in a round the last counts
    divide: Number = 1.0
    mode: Literal["max", "min"] | None = None
    worst: Number | None = None
    grows: Flag | None = None  # it adds up over rounds, so a trial is judged by where it is heading

    @property
    def tests(self) -> bool:
        """Whether it was measured on test rows, or may have been, by its name."""
        said = " ".join(filter(None, (self.name, self.pattern, self.column)))
        return self.split == "test" or (self.split is None and bool(NEEDLE.search(said)))

    @property
    def rows(self) -> str:
        """The rows that it is taken to be measured on, and by what."""
        if self.split:
            return f"of {self.split} rows, as split says"
        if self.tests:
            return "of test rows, by the word test in its name or pattern"
        by_name = self.name.startswith("val_")
        return "of validation rows, by its name alone" if by_name else "of rows that the file does not say"


KEYS = tuple(f.name for f in fields(ProgramMetric) if f.name != "name")
Name = Annotated[str, AfterValidator(_name)]


def settled(name: str, m: ProgramMetric, file: str | None, is_text: bool) -> ProgramMetric:
    """The metric with what follows from its name and from the program's file; UserError for what contradicts these.

    is_text: that file is a text, in whose lines patterns are searched, and no table
    """
    key = f"metrics.{name}"
    if m.name:
        raise unknown(f"key of {key}", "name", KEYS)
    if not m.divide:
        raise of_key(f"{key}.divide", refused(m.divide, "a number other than 0", "100 makes a share of a percentage"))
    if m.column and (m.pattern or not file or is_text):
        raise of_key(f"{key}.column", refused(m.column, "of a file with columns, and without a pattern"))
    if is_text and not m.pattern:
        raise of_key(key, f"must have a pattern, because {file} is read as a text; or give a `reader` of it")
    tests, (low, high) = name.startswith("test_"), limits(name)
    if m.split and (name.startswith("val_") and m.split == "test" or tests and m.split != "test"):
        right = "test" if tests else "validation"
        raise of_key(f"{key}.split", refused(m.split, f"{right!r} for {name}", "or give it another name"))
    if m.worst is not None and high == 1.0 and not low <= m.worst <= high:  # or what diverged would be the best
        raise of_key(f"{key}.worst", refused(m.worst, f"within {low:g} to {high:g} for {name}"))
    known = METRICS.get(name.replace("test_", "val_", 1) if tests else name)
    if known and known.goal and m.mode and m.mode != known.goal:
        raise of_key(f"{key}.mode", refused(m.mode, f"{known.goal!r} for {name}", "or give it another name"))
    if known and m.grows not in (None, known.grows):
        raise of_key(f"{key}.grows", refused(m.grows, f"{known.grows} for {name}", "or give it another name"))
    worst = known.worst if known and known.goal == "max" and m.worst is None else m.worst
    mode: Any = m.mode or (known and known.goal) or None
    column, grows = m.column or (name if file and not m.pattern else None), known.grows if known else m.grows
    return replace(m, name=name, column=column, mode=mode, worst=worst, grows=grows)


def compiled(pattern: str) -> regex.Pattern[str]:
    """A pattern of the user's, whose search of a line can be ended, unlike one of `re`."""
    return regex.compile(FUZZY.sub(r"\{", pattern), regex.VERSION0)
