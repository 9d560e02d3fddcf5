"""What `fedtune check` shows of a metric: a line that it came in, with the figure marked, and on which rows by what."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace

from fedtune.core.errors import UserError
from fedtune.core.terminal import printable
from fedtune.programs.metric import NEEDLE, ProgramMetric
from fedtune.programs.rows import Figure, Pattern

BEFORE, AFTER = 120, 60  # characters of a line that are shown around a figure
GREEDY = re.compile(r"(?<!\\)\.([*+])(?![?+])")  # takes as much of a line as it can


def shown(figure: Figure) -> str:
    """The line of a figure, with the figure marked where its place is known."""
    line, (begin, end) = figure.said, figure.at or (len(figure.said), len(figure.said))
    first, last = max(0, begin - BEFORE), min(len(line), end + AFTER)
    marked = f">>{line[begin:end]}<<" if figure.at else ""
    text = f"{'…' * (first > 0)}{line[first:begin]}{marked}{line[end:last]}{'…' * (last < len(line))}"
    return printable(text.strip())


def rows_by(m: ProgramMetric) -> str:
    """The rows that a metric is taken to be measured on, and by what."""
    if m.split:
        return f"of {m.split} rows, as split says"
    if m.tests:
        return "of test rows, by the word test in its name or pattern"
    by_name = m.name.startswith("val_")
    return "of validation rows, by its name alone" if by_name else "of rows that the file does not say"


def doubts(figure: Figure) -> str:
    """Why a figure may be another than its metric says; "" if nothing says so."""
    m, at, found = figure.metric, figure.at, ""
    if at and not m.tests and m.split is None and (word := NEEDLE.search(figure.said[: at[0]])):
        advice = 'make the pattern find another figure, or say split = "test"; otherwise say split = "validation"'
        found = f"; the word {word[0]} stands before it: if it is of test rows, {advice}"
    if m.pattern and (lazy := GREEDY.sub(r".\1?", m.pattern)) != m.pattern:
        with suppress(UserError):  # it takes a part of a number only
            others = Pattern(replace(m, pattern=lazy)).found(figure.said)
            if others and others[0].at != at:
                found += f"; a shorter match reads {others[0].value}: write .*? for .* if that is meant"
    return found
