"""The figures that four papers printed, each with what is known to be wrong with it.

GFPL (Lu et al. 2026), FedPA (Jiang et al. 2024), FedGenP (Taghiyarrenani et al.) and FedSA (Zhou et al. 2025); the
figures are in published.yaml, copied from the papers' texts.  Illegible ones are left out; its last part lists them.
A figure is a target for our runs only if its scenario is the paper's and its defects allow it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import pandas as pd
import yaml


class Defect(NamedTuple):
    """A defect of a printed figure, or information that is missing about it."""

    short: str  # a few words
    what: str
    source: str  # how it is known: a paper and its table, or a released code


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One figure of a printed table."""

    paper: str  # GFPL, FedPA, FedGenP or FedSA
    table: str  # as the paper numbers it
    row: str  # our name of the algorithm, or the paper's name of what is no algorithm of ours at its defaults
    printed: str  # the paper's name of the row
    column: str  # data set and setting, in words; a restored header where the paper's is lost
    dataset: str  # our name of the data set, or the paper's where we do not have it
    # accuracy in % of test rows; rounds until it converged; parameters, thousands of numbers that all clients send in a
    # round; distance of generated features in a t-SNE; setting, a hyperparameter's value
    measure: str
    mean: float
    spread: float | None  # what stands behind ±; None where nothing does
    text: str  # the figure as printed
    defects: tuple[Defect, ...]  # what is known to be wrong with it
    scenario: str  # our scenario of the same setting, or empty
    instead: dict[str, str]  # our scenarios that stand in on other data, each with its "A for B"
    stands_in: str = ""  # "A for B" if our data set A replaces the paper's B, not comparable; empty: the same data


def cells() -> pd.DataFrame:
    """All printed figures, one row each; the columns are the fields of `Cell`.

    >>> from fedtune.studies import published
    >>> printed = published.cells()
    >>> sorted(printed["paper"].unique())
    ['FedGenP', 'FedPA', 'FedSA', 'GFPL']
    """
    frame = pd.DataFrame(map(vars, every())).drop(columns=["text", "stands_in"])
    defects = ["; ".join(d.short for d in of) for of in frame["defects"]]
    return frame.assign(defects=defects, instead=frame["instead"].map(", ".join)).astype({"spread": float})


def of(scenario: str, algorithm: str) -> list[Cell]:
    """Test accuracies that were published for a scenario; `stands_in` is set where they are of other data."""
    accuracies = (c for c in every() if scenario and c.measure == "accuracy" and c.row == algorithm)
    found = ((c, {c.scenario: ""} | c.instead if c.scenario == scenario else c.instead) for c in accuracies)
    return [replace(c, stands_in=of[scenario]) for c, of in found if scenario in of]


def note(cell: Cell) -> str:
    """One line on a figure: its paper and table, and its first three defects, the gravest first."""
    defects = [f"not comparable: {cell.stands_in}"] if cell.stands_in else []
    defects += [d.short for d in cell.defects[:3]]
    more = [f"{len(cell.defects) - 3} more"] if len(cell.defects) > 3 else []
    return "; ".join([f"{cell.paper}, {cell.table}", *defects, *more])


@cache
def every() -> tuple[Cell, ...]:
    """All printed figures, in the order of the papers."""
    content = _content()
    return tuple(cell for table in content["tables"] for cell in _cells(table, content))


@cache
def _content() -> dict[str, Any]:
    return dict(yaml.safe_load(resources.files("fedtune.studies").joinpath("published.yaml").read_text("utf-8")))


def _cells(table: dict[str, Any], content: dict[str, Any]) -> Iterator[Cell]:
    our_names = content["algorithms"] | table.get("algorithms", {})
    for line in table["rows"].splitlines():
        printed, figures = (part.strip() for part in line.split("|"))
        for column, text in zip(table["columns"], figures.split(), strict=True):
            mean, _, spread = text.partition("±")
            defects = [content["defects"][k["defect"]] for k in table["known"] if _fits(k, printed, column["name"])]
            yield Cell(
                paper=table["paper"],
                table=table["table"],
                row=our_names.get(printed, printed),
                printed=printed,
                column=column["name"],
                dataset=column["dataset"],
                measure=column.get("measure", "accuracy"),
                mean=float(mean.replace(",", "")),
                spread=float(spread) if spread else None,
                text=text.replace("±", " ± "),
                defects=tuple(Defect(**d) for d in defects),
                scenario=column.get("scenario", ""),
                instead=column.get("instead", {}),
            )


def _fits(defect: dict[str, Any], row: str, column: str) -> bool:
    patterns = ((defect.get("rows"), row), (defect.get("columns"), column))
    return all(not wanted or any(fnmatchcase(name, p) for p in wanted) for wanted, name in patterns)
