"""The tables of a reproduction as text: our figures next to the published ones, with their known defects."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from fedtune.analysis.reproduction.paper_grid import BESIDE, MEASURES, RULES, PaperGrid
from fedtune.analysis.reproduction.plan import Spot
from fedtune.analysis.reproduction.table import frame
from fedtune.core.statistics import UNBOUNDED, interval
from fedtune.core.terminal import several
from fedtune.runs.files import RunFiles, write_whole
from fedtune.runs.provenance import provenance_line
from fedtune.studies import published
from fedtune.studies.comparison import text as comparison_text
from fedtune.studies.ray_tasks import Outcome

LEFT = ("setting", "row", "preset", "known")  # aligned columns


def texts(figures: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """A table per part and measure, as text, with its heading; measures BESIDE are columns of the accuracy's.

    figures: of `reproduction_table.frame`, or a table.csv.
    """
    marks = _marks(figures)
    beside = figures["measure"].isin(BESIDE)
    for (part, measure), rows in figures[~beside].groupby(["part", "measure"], sort=False):
        lengths = dict.fromkeys(zip(rows["rounds"], rows["whole"], strict=True))
        rounds = ", ".join(f"{n} of {of}" if n < of else str(n) for n, of in lengths)
        more = figures[beside & (figures["part"] == part)] if measure == "accuracy" else figures[:0]
        of = "round" if rounds == "1" else "rounds"
        yield f"{part}: {MEASURES[measure]} ({rounds} {of})", _text(rows, marks, more)


def footnotes(figures: pd.DataFrame) -> list[str]:
    """The printed figures' defects with their sources, each behind its mark."""
    defects = {d.short: d for cell in published.every() for d in cell.defects}
    return [
        f"{mark}: {d.short}: {d.what} ({d.source})" for short, mark in _marks(figures).items() for d in [defects[short]]
    ]


def markdown(figures: pd.DataFrame) -> str:
    """All tables and their footnotes, in Markdown."""
    lines = []
    for heading, table in texts(figures):
        lines += [f"## {heading}", "", comparison_text.markdown(table).rstrip(), ""]
    if notes := footnotes(figures):
        lines += ["## Known defects of the published figures", "", *(f"- {n}" for n in notes), ""]
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a reproduction shows and writes: its tables under a title, with how they were made."""

    grid: PaperGrid
    spots: Sequence[Spot]
    outcomes: Mapping[str, Outcome]  # by the runs' labels
    origin: Mapping[str, Any]  # command, versions and commit, as in the record
    presets: str
    quick: bool

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The figures of every part."""
        return frame(self.grid, self.spots, self.outcomes)

    def write(self, folder: Path) -> None:
        """Write table.csv and table.md into the folder."""
        write_whole(RunFiles(folder).table_file, self.frame.to_csv(index=False))
        head = "\n".join([f"# {self.title}", "", *(f"{line}  " for line in self.about())])
        write_whole(RunFiles(folder).markdown_file, f"{head}\n\n{markdown(self.frame)}")

    def show(self, console: Console) -> None:
        """Print the tables and their footnotes on a terminal."""
        console.print(self.title, style="bold")
        console.print("\n".join(self.about()))
        for heading, table in texts(self.frame):
            shown = Table()
            for name in table:
                shown.add_column(name, justify="left" if name in LEFT else "right")
            for row in table.itertuples(index=False):
                shown.add_row(*row)
            console.print(f"\n{heading}", style="bold")
            console.print(shown)
        console.print("\n".join(footnotes(self.frame)))

    @property
    def title(self) -> str:
        """Paper, table, and whether it is a small version or of other data."""
        instead = dict.fromkeys(s.column.stands_in for s in self.spots if s.column.stands_in)
        kind = ["quick version"] * self.quick + list(instead)
        return f"{self.grid.paper}, {self.grid.table}, measured" + (f" ({'; '.join(kind)})" if kind else "")

    def about(self) -> list[str]:
        """What was varied, and how it was measured."""
        grid, seeds = self.grid, self.grid.seeds
        spent = sum(o.seconds for o in self.outcomes.values())
        lines = [
            f"Varied: {grid.varied}." + (f"  Note: {grid.note}." if grid.note else ""),
            f"Ours: mean ± 95 % interval over {several(seeds, 'seed')}, each with its own partition, start and "
            f"draws; nothing tuned, preset{'s' * (',' in self.presets)} {' and '.join(self.presets.split(','))}.",
        ]
        if self.quick:
            longest = max(p.rounds for p in grid.panels)
            few = " and three columns a part" * all(len(p.columns) <= 3 for p in grid.panels)
            lines.append(f"A quick version: at most {several(longest, 'round')}, {several(seeds, 'seed')}{few}.")
        if (self.frame["published"].notna() & (self.frame["stands_in"] != "")).any():
            lines.append("In brackets: published for another data set, not comparable.")
        if grid.paper in RULES:
            lines.append(
                f"The paper's rule is the {RULES[grid.paper][0]}. It selects on test rows, so it is not a valid "
                "result; it is shown only so that its figures can be compared with the paper's."
            )
        made = provenance_line(self.origin, (o.commit for o in self.outcomes.values()))
        return [*lines, f"{made}, {spent:.0f} s of runs."]


def _text(rows: pd.DataFrame, marks: Mapping[str, str], beside: pd.DataFrame) -> pd.DataFrame:
    """One table as text.  beside: rows of the measures that stand as columns on its right."""
    accuracy = (rows["measure"] == "accuracy").all()
    forms, within = ((".2f", ".2f"), (0, 100)) if accuracy else ((".4g", ".2g"), UNBOUNDED)
    out = pd.DataFrame({name: rows[name] for name in _named(rows)})
    out["ours"] = [
        f"diverged in {r.diverged} of {r.seeds}" if r.diverged else _figure(r.ours, r.half, *forms, within)
        for r in rows.itertuples()
    ]
    if rows["by_paper_rule"].notna().any():
        out["by the paper's rule"] = [_figure(v, math.nan, *forms) for v in rows["by_paper_rule"]]
    if rows["published"].notna().any():
        out["printed"] = [
            f"({text})" if text and _listed(r.stands_in) else text
            for r in rows.itertuples()
            for text in [_figure(r.published, r.published_spread, *(forms if accuracy else (",.0f",)))]
        ]
        out["known"] = [" ".join(marks[d] for d in _listed(defects)) for defects in rows["known"]]
    for measure, of in beside.groupby("measure", sort=False):
        means = of.set_index(_named(rows))["ours"]
        form = ".1f" if measure == "total_mb" else ".2f"
        out[BESIDE[str(measure)]] = [_figure(means[tuple(key)], math.nan, form) for key in rows[_named(rows)].values]
    return out


def _named(rows: pd.DataFrame) -> list[str]:
    """The columns that say whose a row is; the preset only where there are several."""
    return ["setting", "row", *(["preset"] if "preset" in rows and rows["preset"].nunique() > 1 else [])]


def _marks(figures: pd.DataFrame) -> dict[str, str]:
    """Footnote marks of the printed figures' defects by their short names, in the order in which they are needed."""
    shorts = dict.fromkeys(d for defects in figures["known"] for d in _listed(defects))
    return {short: _letters(i) for i, short in enumerate(shorts)}


def _listed(cell: Any) -> list[str]:
    """What a cell of the columns `known` and `stands_in` lists; an empty one is not a number in a table.csv."""
    return cell.split("; ") if isinstance(cell, str) and cell else []


def _figure(mean: float, spread: float, form: str, half_form: str = "", within: tuple[float, float] = UNBOUNDED) -> str:
    return "" if math.isnan(mean) else interval(mean, spread, form, half_form, within)


def _letters(number: int) -> str:
    """Letters for footnotes: a, b, …, z, aa, ab, …"""
    first, second = divmod(number, 26)
    return (ascii_lowercase[first - 1] if first else "") + ascii_lowercase[second]
