"""The table of a reproduction: our figures beside the printed ones and what is known of these."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from fedtune.core import statistics
from fedtune.core.statistics import interval
from fedtune.federated.scenario import Scenario
from fedtune.runs import tables as results
from fedtune.studies import comparison_tables, published
from fedtune.studies.fresh_seeds import seconds, summed
from fedtune.studies.paper_tables import MEASURES, Grid
from fedtune.studies.ray_tasks import Outcome
from fedtune.studies.reproduction_plan import Spot

# how a paper takes an accuracy from a run's rounds, where it is not the last round's; both choose on test rows
RULES: dict[str, tuple[str, Callable[[list[float]], float]]] = {
    "FedPA": ("mean of the five best rounds", lambda acc: sum(sorted(acc)[-5:]) / len(acc[-5:])),
    "FedSA": ("best round", max),
}

# column of table.csv -> what it is
COLUMNS = {
    "part": "of the table or figure",
    "setting": "the column: data set first",
    "row": "as the paper names it",
    "algorithm": "ours",
    "configuration": "hyperparameters that are not the defaults",
    "rounds": "of every run",
    "whole": "rounds that a run has in the paper's setting",
    "measure": "one of the measures of a run",
    "seeds": "runs",
    "diverged": "of them",
    "ours": "mean over seeds",
    "half": "half the width of its 95 % interval",
    "by_paper_rule": "the mean by the paper's own rule, which chooses rounds on test rows: no result",
    "published": "the printed figure",
    "published_spread": "what stands behind its ±",
    "stands_in": "what stands for what: then the printed figure is of other data and no target",
    "known": "what is known of the printed figure",
}


def printed(grid: Grid, spot: Spot, measure: str) -> published.Cell | None:
    """The figure that the paper prints there."""
    tables = (grid.table, grid.table + spot.panel.label[0])  # parts of a figure have a letter
    wanted = (measure, spot.row.label, spot.column.paper_column(measure))
    for cell in published.every():
        if cell.paper == grid.paper and cell.table in tables and (cell.measure, cell.printed, cell.column) == wanted:
            return cell
    return None


def measured(measure: str, outcome: Outcome, scenario: Scenario) -> float:
    """One of MEASURES of a run; not a number if it diverged."""
    if outcome.reason:
        return math.nan
    rows = outcome.rounds
    return {
        "accuracy": lambda: 100 * rows[-1]["test_acc"],
        "rounds": lambda: summed(outcome)["rounds_to_95"],
        "parameters": lambda: sum(r["up_floats"] for r in rows) / len(rows) / 1000,
        "mb": lambda: rows[-1]["comm_mb"] / len(rows) / scenario.clients,
    }[measure]()


class Report:
    """A grid that has been played."""

    def __init__(
        self, grid: Grid, spots: Sequence[Spot], outcomes: Mapping[str, Outcome], origin: Mapping[str, Any],
        preset: str, quick: bool,
    ) -> None:  # fmt: skip
        """outcomes: by the runs' labels.  origin: command, versions and commit, as in the record."""
        self.grid, self.spots, self.outcomes, self.origin = grid, spots, outcomes, origin
        self.preset, self.quick = preset, quick
        self.marks: dict[published.Defect, str] = {}  # footnotes, in the order in which they are needed
        self.frame = pd.DataFrame(
            [self._cell(spot, m) for spot in spots for m in spot.panel.measures if self._shown(spot, m)],
            columns=list(COLUMNS),
        )

    def write(self, folder: Path) -> None:
        """table.csv and table.md."""
        self.frame.to_csv(folder / "table.csv", index=False)
        lines = [f"# {self.title}", "", *(f"{line}  " for line in self.about())]
        for heading, table in self.tables():
            lines += ["", f"## {heading}", "", comparison_tables.markdown(table).rstrip()]
        notes = self.footnotes()
        lines += ["", "## What is known of the printed figures", "", *(f"- {n}" for n in notes)] if notes else []
        (folder / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def show(self, console: Console) -> None:
        """The same for a terminal."""
        console.print(f"[bold]{self.title}[/bold]")
        console.print("\n".join(self.about()), markup=False, highlight=False)
        for heading, frame in self.tables():
            table = Table()
            for name in frame:
                table.add_column(name, justify="left" if name in ("setting", "row", "known") else "right")
            for row in frame.itertuples(index=False):
                table.add_row(*row)
            console.print(f"\n[bold]{heading}[/bold]", table)
        console.print("\n".join(self.footnotes()), markup=False, highlight=False)

    @property
    def title(self) -> str:
        """Paper, table, and whether it is a small version or of other data."""
        instead = dict.fromkeys(s.column.stands_in for s in self.spots if s.column.stands_in)
        kind = ["quick version"] * self.quick + list(instead)
        return f"{self.grid.paper}, {self.grid.table}, measured" + (f" ({'; '.join(kind)})" if kind else "")

    def about(self) -> list[str]:
        """What was varied and how it was measured."""
        grid, seeds = self.grid, self.grid.seeds
        spent = sum(seconds(o) for o in self.outcomes.values())
        lines = [
            f"Varied: {grid.varied}." + (f"  Note: {grid.note}." if grid.note else ""),
            f"Ours: mean ± 95 % interval over {seeds} seed{'s' * (seeds > 1)}, each with its own partition, start and "
            f"draws; nothing tuned, preset {self.preset}.",
        ]
        if self.quick:
            longest = max(p.rounds for p in grid.panels)
            few = " and three columns a part" * all(len(p.columns) <= 3 for p in grid.panels)
            lines.append(f"A quick version: at most {longest} rounds, {seeds} seeds{few}.")
        if (self.frame["published"].notna() & (self.frame["stands_in"] != "")).any():
            lines.append("In brackets: printed for other data, so no target.")
        if grid.paper in RULES:
            lines.append(
                f"The paper's rule is the {RULES[grid.paper][0]}; over our rounds it stands beside ours only so that "
                "like is held against like: it chooses on test rows and is no result."
            )
        made = results.told(self.origin, (o.commit for o in self.outcomes.values()))
        return [*lines, f"{made}, {spent:.0f} s of runs."]

    def tables(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """A table per part and measure, as text, with its heading."""
        for (part, measure), rows in self.frame.groupby(["part", "measure"], sort=False):
            played = dict.fromkeys(zip(rows["rounds"], rows["whole"], strict=True))
            rounds = ", ".join(f"{n} of {of}" if n < of else str(n) for n, of in played)
            yield f"{part}: {MEASURES[measure]} ({rounds} rounds)", self._text(rows, measure == "accuracy")

    def footnotes(self) -> list[str]:
        """The printed figures' defects with their sources, each behind its mark."""
        return [f"{mark}: {d.short}: {d.what} ({d.source})" for d, mark in self.marks.items()]

    def _shown(self, spot: Spot, measure: str) -> bool:
        """A measure that the paper prints for some columns is shown for those."""
        return measure in ("accuracy", "mb") or bool(spot.column.paper_column(measure))

    def _cell(self, spot: Spot, measure: str) -> dict[str, Any]:
        played = [self.outcomes[run.label] for run in spot.runs]
        scenario = spot.runs[0].experiment.scenario
        ours = statistics.mean([measured(measure, o, scenario) for o in played])
        cell, rule = printed(self.grid, spot, measure), math.nan
        diverged = sum(bool(o.reason) for o in played)
        if self.grid.paper in RULES and measure == "accuracy" and not diverged:
            of_run = RULES[self.grid.paper][1]
            rule = sum(100 * of_run([r["test_acc"] for r in o.rounds]) for o in played) / len(played)
        for defect in cell.defects if cell else ():
            self.marks.setdefault(defect, _mark(len(self.marks)))
        config = spot.runs[0].config
        return {
            "part": spot.panel.label, "setting": spot.column.label, "row": spot.row.label,
            "algorithm": spot.row.algorithm, "configuration": ", ".join(f"{n} = {v}" for n, v in config.items()),
            "rounds": scenario.rounds, "whole": spot.column.whole or scenario.rounds, "measure": measure,
            "seeds": len(played), "diverged": diverged,
            "ours": ours.mean, "half": ours.half, "by_paper_rule": rule,
            "published": cell.mean if cell else math.nan,
            "published_spread": math.nan if cell is None or cell.spread is None else cell.spread,
            "stands_in": spot.column.stands_in, "known": "; ".join(d.short for d in cell.defects) if cell else "",
        }  # fmt: skip

    def _text(self, rows: pd.DataFrame, accuracy: bool) -> pd.DataFrame:
        forms = (".2f", ".2f") if accuracy else (".4g", ".2g")
        marks = {d.short: mark for d, mark in self.marks.items()}
        out = pd.DataFrame({"setting": rows["setting"], "row": rows["row"]})
        out["ours"] = [
            f"diverged in {r.diverged} of {r.seeds}" if r.diverged else _figure(r.ours, r.half, *forms)
            for r in rows.itertuples()
        ]
        if rows["by_paper_rule"].notna().any():
            out["by the paper's rule"] = [_figure(v, math.nan, *forms) for v in rows["by_paper_rule"]]
        if not rows["published"].notna().any():
            return out
        out["printed"] = [
            f"({text})" if r.stands_in and text else text
            for r in rows.itertuples()
            for text in [_figure(r.published, r.published_spread, *(forms if accuracy else (",.0f",)))]
        ]
        out["known"] = [" ".join(marks[d] for d in known.split("; ") if d) for known in rows["known"]]
        return out


def _figure(mean: float, spread: float, *forms: str) -> str:
    """A mean, with its ± if there is one; empty if there is none."""
    return "" if math.isnan(mean) else interval(mean, spread, *forms)


def _mark(number: int) -> str:
    """a, b, …, z, aa, ab, …"""
    first, second = divmod(number, 26)
    return (ascii_lowercase[first - 1] if first else "") + ascii_lowercase[second]
