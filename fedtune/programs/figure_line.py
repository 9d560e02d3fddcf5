"""What `fedtune check` shows of a metric: a line that it came in, with the figure marked, and on which rows by what."""

from __future__ import annotations

from fedtune.core.terminal import printable
from fedtune.programs.metric import NEEDLE, ProgramMetric
from fedtune.programs.rows import Figure

BEFORE, AFTER = 120, 60  # characters of a line that are shown around a figure


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


def doubt(figure: Figure) -> str:
    """Why a figure may be of other rows than its metric says; "" if nothing says so."""
    m, at = figure.metric, figure.at
    word = NEEDLE.search(figure.said[: at[0]]) if at and not m.tests and m.split is None else None
    if not word:
        return ""
    advice = 'make the pattern find another figure, or say split = "test"; otherwise say split = "validation"'
    return f"; the word {word[0]} stands before it: if it is of test rows, {advice}"
