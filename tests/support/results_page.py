"""Sections of the page of results, and the kept tables that their figures come from."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from fedtune.core.statistics import interval, number

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "analysis" / "results"
PAGE = ROOT / "docs" / "background" / "results.md"
NUMBER = re.compile(r"(?<![\w.-])\d[\d.,]*\b")  # no part of a name such as CIFAR10 or Apache-2.0
SERIES = r"[\d.]+\w?(?:, [\d.]+\w?)*(?:,? (?:and|or|to) [\d.]+\w?)*"
NAMED = re.compile(
    rf"95 % interval|\b(?:doses?|tables?|figures?|classes) {SERIES}|(?:\b[mnλα]|[wsŵŝ]̄?|S_[TC]|\bt1) ?= {SERIES}"
)
UNSAID = r"```.*?```|(?<=\])\([^)]*\)|<picture>.*?alt=|src=.*?</picture>"


def section(heading: str, page: Path = PAGE) -> str:
    """The prose under a heading, on one line, and what pictures are said to show; no code, nor where links lead."""
    marks, _, title = heading.partition(" ")
    found = re.search(rf"^{marks} {re.escape(title)}\n(.*?)(?=^#{{1,{len(marks)}}} |\Z)", page.read_text(), re.M | re.S)
    assert found, f"no section {heading}"
    return " ".join(re.sub(UNSAID, "", found[1], flags=re.S).split())


def require(text: str, fragments: Iterable[str]) -> None:
    """Every fragment stands in a text, each once, and every number of the text in one of them, or in a row's name."""
    asked = list(fragments)
    wrong = {f: text.count(f) for f in asked if text.count(f) != 1}
    assert not wrong, f"of the tables, but not once on the page: {wrong}"
    held = [range(at := text.index(f), at + len(f)) for f in asked] + [range(*m.span()) for m in NAMED.finditer(text)]
    free = [m for m in NUMBER.finditer(text) if not any(m.start() in span and m.end() - 1 in span for span in held)]
    assert not free, f"figures that no test recomputes: {[text[max(m.start() - 40, 0) : m.end() + 20] for m in free]}"


def contrasts(name: str) -> pd.DataFrame:
    """Differences in points, by what is compared and where."""
    table = pd.read_csv(RESULTS / f"{name}-contrasts.csv")
    return table.set_index(["one", "other", "setting", "metric"]).sort_index()


def measured(name: str, measure: str = "accuracy", preset: str = "ours") -> pd.DataFrame:
    """What `python -m fedtune.analysis.reproduce` kept of a measure under a preset, by setting and row."""
    table = pd.read_csv(RESULTS / f"{name}.csv").query("measure == @measure and preset == @preset")
    return table.set_index([table["setting"].str.rpartition(", ")[2], "row"])


def told(rows: pd.DataFrame, form: str = "+.2f", sign: int = 1) -> str:
    """a ± b, c ± d and e ± f of some contrasts; sign: -1 if the page says the second one's lead."""
    return listed(interval(sign * x.difference, x.half, form) for x in rows.itertuples())


def significant(rows: pd.DataFrame) -> int:
    """How many contrasts differ from 0."""
    return int(rows["verdict"].isin(["above", "below"]).sum())


def listed(items: Iterable[str]) -> str:
    """a, b and c."""
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last


def span(values: Iterable[float], form: str = ".1f") -> str:
    """From the smallest to the largest."""
    found = list(values)
    return f"{number(min(found), form)} to {number(max(found), form)}"
