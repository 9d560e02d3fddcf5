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
    before, after = line[max(0, begin - BEFORE) : begin], line[end : end + AFTER]
    before = f"{'…' * (begin > BEFORE)}{before}"
    after = f"{after}{'…' * (len(line) > end + AFTER)}"
    marked = f">>{line[begin:end]}<<" if figure.at else ""
    return printable(f"{before}{marked}{after}".strip())


def rows_by(m: ProgramMetric) -> str:
    """The rows that a metric is taken to be measured on, and by what."""
    if m.split:
        return f"of {m.split} rows, as split says"
    if m.tests:
        return "of test rows, by the word test in its name or pattern"
    return (
        "of validation rows, by its name alone" if m.name.startswith("val_") else "of rows that the file does not say"
    )


def doubts(figure: Figure) -> list[str]:
    """Why a figure may be another than its metric says."""
    m, found = figure.metric, list[str]()
    if figure.at is None:
        return found
    if not m.tests and m.split is None and (word := NEEDLE.search(figure.said[: figure.at[0]])):
        found.append(
            f"the word {word[0]} stands before it: if it is of test rows, make the pattern find another figure, or say "
            'split = "test"; otherwise say split = "validation"'
        )
    lazy = GREEDY.sub(r".\1?", m.pattern or "")
    with suppress(UserError):  # it takes a part of a number only
        for other in Pattern(replace(m, pattern=lazy)).found(figure.said)[:1]:
            if other.at != figure.at:
                found.append(f"a shorter match reads {other.value}: write .*? for .* if that is meant")
    return found
