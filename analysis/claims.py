"""GFPL's claims (spec of the papers, section 7), each with a verdict from the runs of fedtune.analysis.reproduce.

    for t in gfpl-table2 gfpl-fig4 gfpl-fig6 gfpl-fig7; do
      python -m fedtune.analysis.reproduce $t --dataset fashion-mnist --quick --seeds 5
    done
    python -m fedtune.analysis.reproduce gfpl-fig3 --dataset fashion-mnist --parts a,b,c --quick --all-columns \\
      --seeds 5
    python -m fedtune.analysis.reproduce gfpl-table1 --dataset fashion-mnist --algos gfpl,fedproto,local --quick \\
      --seeds 5
    python -m fedtune.analysis.claims runs/gfpl-*-fashion-mnist-* [--write analysis/results]

and so with mnist-5k in its place.  Any of these tables, and any number of seeds, columns and rounds, will do: the
folders say what was run, and each verdict repeats it.  Claims without any run are listed, not judged.

A claim that one setting is better than another holds if the 95 % interval of the difference, paired by seed, lies above
0; it does not hold if the interval lies below.  Otherwise the effect is smaller than claimed if the paper's figure lies
beyond the interval.  If the paper prints no figure, two one-sided tests may show that there is no effect above half a
point.  In all other cases, or where runs are missing, the claim is undecided.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedtune.analysis.reproduction import plan as reproduction_plan
from fedtune.analysis.reproduction import reproduction
from fedtune.analysis.reproduction import table as reproduction_table
from fedtune.analysis.reproduction.options import ReproductionOptions
from fedtune.analysis.reproduction.paper_tables import GRIDS
from fedtune.analysis.verdicts import ClaimVerdict, Values, all_of, as_printed, better, linear, near, peak, within
from fedtune.core.errors import UserError
from fedtune.experiment.experiment import built_in
from fedtune.runs.provenance import provenance_line
from fedtune.studies import ray_tasks
from fedtune.studies.comparison import text as comparison_text
from fedtune.user_code.command import Parser, guarded

Read = Callable[[str, str, str, str], Values]  # table, part's letter, algorithm's row, measure -> values
HEADS = {"": "", ", frame": "_etf", ", sum": "_sum"}  # GFPL's: of a claim's name, and of the measure


def ablation(read: Read, head: str) -> ClaimVerdict:
    """C3: each part adds, in every column, as much as the paper prints for it."""
    rows = ["GFPL w/o DCS and PFG", "GFPL w/o DCS", "GFPL w/o PFG", "GFPL"]
    by_row = {row: read("gfpl-table2", "", row, f"accuracy{head}") for row in rows}
    printed = {row: read("gfpl-table2", "", row, "printed") for row in rows}
    steps = []
    for column in by_row["GFPL"]:
        of = {row: values[column] for row, values in by_row.items() if column in values}
        for less, more in itertools.pairwise(rows):
            claimed = [float(printed[row][column][0]) if column in printed[row] else math.nan for row in (more, less)]
            steps.append(better(of, more, less, where=f"{column}: ", claimed=claimed[0] - claimed[1]))
    return all_of(*steps)


def above(
    read: Read, table: str, part: str, one: str, other: str, only: str = "", claimed: float = math.nan
) -> ClaimVerdict:
    """Whether one algorithm is above another in every column of a part, or in those whose label ends so."""
    ones, others = (read(table, part, row, "accuracy") for row in (one, other))
    labels = [label for label in ones if label in others and label.endswith(only)]
    return all_of(
        *(better({one: ones[x], other: others[x]}, one, other, where=f"{x}: ", claimed=claimed) for x in labels)
    )


def ratio(read: Read, measure: str) -> Values:
    """What GFPL has of a measure over what FedProto has, in the same column."""
    gfpl, fedproto = (read("gfpl-fig4", "a", row, measure) for row in ("GFPL", "FedProto"))
    return {c: gfpl[c] / fedproto[c] for c in gfpl if c in fedproto}


def _by_heads(name: str, what: str, judge: Callable[[Read, str], ClaimVerdict]) -> dict[str, Any]:
    """A claim on GFPL's accuracy under each of its heads, as the paper does not say which predicts."""

    def under(head: str) -> Callable[[Read], ClaimVerdict]:
        return lambda read: judge(read, head)

    return {name + more: (what, under(head)) for more, head in HEADS.items()}


def _fig3(part: str, judge: Callable[[Values], ClaimVerdict]) -> Callable[..., ClaimVerdict]:
    return lambda read, head: judge(read("gfpl-fig3", part, "GFPL", f"accuracy{head}"))


def _gfpl(
    table: str, part: str, one: str, other: str, measure: str = "accuracy", unit: str = "points"
) -> Callable[[Read], ClaimVerdict]:
    return lambda read: better(read(table, part, "GFPL", measure), one, other, unit=unit)


def _rounds(read: Read) -> Values:
    """GFPL's rounds until it converged, at the four classes a client that one printed number is taken to be of."""
    return {x: v for x, v in read("gfpl-table1", "", "GFPL", "rounds").items() if x.endswith("w̄ = 4")}


def _both(*judges: Callable[[Read], ClaimVerdict]) -> Callable[[Read], ClaimVerdict]:
    return lambda read: all_of(*(judge(read) for judge in judges))


CLAIMS: dict[str, tuple[str, Callable[[Read], ClaimVerdict]]] = {
    **_by_heads(
        "C1", "λ 0 → 2 raises accuracy (94.05 → 98.91)", _fig3("a", lambda v: better(v, "λ = 2", "λ = 0", claimed=4.86))
    ),
    **_by_heads("C2", "accuracy peaks at n = 8", _fig3("b", lambda v: peak(v, ["n = 8"]))),
    **_by_heads("C3", "neither part < PFG alone < DCS alone < both", ablation),
    "fig. 3c": ("GFPL is above FedProto at every s̄", lambda r: above(r, "gfpl-fig3", "c", "GFPL", "FedProto")),
    "fig. 4a": ("GFPL is above FedProto at every ŵ", lambda r: above(r, "gfpl-fig4", "a", "GFPL", "FedProto")),
    "C4": (
        "a small S_C costs communication, a large one accuracy",
        _both(
            _gfpl("gfpl-fig6", "S", "S_C = 0.1", "S_C = 300", measure="mb", unit="MB"),
            _gfpl("gfpl-fig6", "S", "S_C = 0.1", "S_C = 300"),
        ),
    ),
    "C5": ("a moderate S_T beats a small one", _gfpl("gfpl-fig4", "b", "S_T = 5", "S_T = 1")),
    "C6": (
        "the best t1 lies inside its range",
        _both(_gfpl("gfpl-fig4", "c", "t1 = 20", "t1 = 5"), _gfpl("gfpl-fig4", "c", "t1 = 20", "t1 = 40")),
    ),
    "C7, n": ("a client's cost is linear in n (ŵ = 0)", lambda r: linear(r("gfpl-fig7", "a", "GFPL", "mb"))),
    "C7, m": ("a client's cost is linear in m (ŵ = 0)", lambda r: linear(r("gfpl-fig7", "b", "GFPL", "mb"))),
    "C7, w̄": ("a client's cost is linear in w̄ (ŵ = 0)", lambda r: linear(r("gfpl-fig7", "c", "GFPL", "mb"))),
    "C8": (
        "GFPL sends up 2/4 (MNIST), 33/41 (CIFAR10), 20/41 (CIFAR100) of what FedProto does",
        lambda r: as_printed(ratio(r, "parameters"), {"MNIST": (2, 4), "CIFAR10": (33, 41), "CIFAR100": (20, 41)}),
    ),
    "C8b": ("counting what comes down too, GFPL moves no more than FedProto", lambda r: within(ratio(r, "mb"), 0, 1)),
    "C9": (
        "GFPL gains up to 3.64 points on FedProto (CIFAR10, w̄ = 5)",
        lambda r: above(r, "gfpl-table1", "", "GFPL", "FedProto", "w̄ = 5", 3.64),
    ),
    "C10": (
        "no exchange at all beats FedProto (CIFAR10, w̄ = 3: 73.2 against 72.5)",
        lambda r: above(r, "gfpl-table1", "", "Local", "FedProto", "w̄ = 3", 0.7),
    ),
    "C11": ("GFPL converges in 80 rounds (MNIST, w̄ = 4)", lambda r: near(_rounds(r), 80)),
}


@guarded
def main(argv: list[str] | None = None) -> int:
    """Run `python -m fedtune.analysis.claims` and return its exit status."""
    parser = Parser(prog="python -m fedtune.analysis.claims", description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="what a reproduction left")
    parser.add_argument("--write", type=Path, metavar="DIR", help="folder of the table (default: show it only)")
    parser.add_argument("--debug", action="store_true", help="show the stack of an error")
    args = parser.parse_args(argv)
    tables = [Reproduced.read(folder) for folder in args.folders]
    _require_each_once(tables, args.folders)

    def values(name: str, *what: str) -> Values:
        return {label: v for t in tables if t.table == name for label, v in t.values(*what).items()}

    def where(name: str, part: str) -> str:
        return "; ".join(dict.fromkeys(filter(None, (t.where(part) for t in tables if t.table == name))))

    every = judged(values, where)
    was_run = every["where"] != ""
    table, not_judged = every[was_run], "; ".join(every.loc[~was_run, "claim"])
    if table.empty:
        names = ", ".join(dict.fromkeys(t.table for t in tables))
        raise UserError(f"claims are judged by tables 1 and 2 and figures 3, 4, 6 and 7 of GFPL, but got {names}")
    lines = ["# GFPL's claims", "", comparison_text.markdown(table)]
    lines += [f"Not judged, because their settings were not run: {not_judged}.", ""] if not_judged else []
    lines += ["From the runs of", ""]
    lines += [f"- {provenance_line(t.record, (o.commit for o in t.outcomes.values()))}" for t in tables]
    text = "\n".join(lines) + "\n"
    print(text)
    if args.write:
        args.write.mkdir(parents=True, exist_ok=True)
        name = "-".join(filter(None, ("gfpl-claims", tables[0].dataset)))
        table.to_csv(args.write / f"{name}.csv", index=False)
        (args.write / f"{name}.md").write_text(text, encoding="utf-8")
    return 0


def _require_each_once(tables: Sequence[Reproduced], folders: Sequence[Path]) -> None:
    """UserError for two folders with the same part of a table, or of several data sets."""
    seen: dict[tuple[str, str], Path] = {}
    for t, folder in zip(tables, folders, strict=True):
        if t.dataset != tables[0].dataset:
            of = [f"{f} ({x.dataset or 'as printed'})" for x, f in ((tables[0], folders[0]), (t, folder))]
            raise UserError(f"claims are judged on one data set at a time, but got {of[0]} and {of[1]}")
        for part in dict.fromkeys(s.panel.label for s in t.spots):
            if (t.table, part) in seen:
                first = seen[t.table, part]
                raise UserError(
                    f"a part of a table is judged from one folder, but {first} and {folder} both have "
                    f"{t.table}, {part}; give one"
                )
            seen[t.table, part] = folder


class Reproduced(NamedTuple):
    """The results in a folder of `python -m fedtune.analysis.reproduce`."""

    table: str
    dataset: str | None  # the data set that took the place of the table's own
    record: dict[str, Any]
    spots: list[reproduction_plan.Spot]
    outcomes: dict[str, ray_tasks.Outcome]

    @classmethod
    def read(cls, folder: Path) -> Reproduced:
        """The results in a folder; UserError if `python -m fedtune.analysis.reproduce` did not write it."""
        record = reproduction.read(folder)
        options = ReproductionOptions.from_record(record)
        grid = reproduction_plan.requested(options)
        scored = options.test_every, options.all_classes
        spots = list(reproduction_plan.planned(grid, options.presets, record["device"], *scored))
        runs = {run.label: run for spot in spots for run in spot.runs}
        outcomes = ray_tasks.finished(list(runs.values()), folder / "runs")
        return cls(options.table, options.dataset, record, spots, outcomes)

    def where(self, part: str) -> str:
        """On which data a part was run, for how many of the paper's rounds, on how many seeds."""
        columns = [s.column for s in self.spots if s.panel.label.startswith(part)]
        data = dict.fromkeys(c.to_scenario().dataset for c in columns)
        rounds = dict.fromkeys((c.to_scenario().rounds, c.paper_rounds or c.to_scenario().rounds) for c in columns)
        lengths = ", ".join(f"{n} of {of}" if n < of else f"{n}" for n, of in rounds)
        return f"{' and '.join(data)}, {lengths} rounds, {len(self.spots[0].runs)} seeds" if columns else ""

    def values(self, part: str, row: str, measure: str) -> Values:
        """A row's figures, by column, if all runs of the column are there; with several data sets labels name them.

        part: the first letters of the panels that are wanted.  measure: of a run, or `printed`, the paper's accuracy.
        """
        spots = [s for s in self.spots if s.row.label == row and s.panel.label.startswith(part)]
        several = len({s.column.label.partition(", ")[0] for s in spots}) > 1
        by_label: Values = {}
        for spot in spots:
            if measure == "printed":
                cell = reproduction_table.printed(GRIDS[self.table], spot, "accuracy")
                of_runs = [cell.mean if cell else math.nan]
            elif all(run.label in self.outcomes for run in spot.runs):
                scenario = built_in(spot.runs[0].workload, "a claim").scenario
                of_runs = [reproduction_table.measured(measure, self.outcomes[r.label], scenario) for r in spot.runs]
            else:
                continue
            data, _, label = spot.column.label.partition(", ")
            by_label |= {f"{data}, {x}" if several else x: np.array(of_runs) for x in label.split(" / ")}
        return by_label


def judged(read: Read, where: Callable[[str, str], str] = lambda table, part: "") -> pd.DataFrame:
    """A row per claim: the claim, the verdict, the data, rounds and seeds of the runs, and the measured figures."""
    rows = []
    for name, (claim, check) in CLAIMS.items():
        places: dict[tuple[str, str], None] = {}

        def read_and_note(
            table: str, part: str, row: str, measure: str, places: dict[tuple[str, str], None] = places
        ) -> Values:
            places[table, part] = None
            return read(table, part, row, measure)

        verdict = check(read_and_note)
        on = "; ".join(dict.fromkeys(filter(None, (where(*what) for what in places))))
        rows.append((name, claim, verdict.verdict, on, verdict.why))
    return pd.DataFrame(rows, columns=["claim", "what", "verdict", "where", "measured"])


if __name__ == "__main__":
    sys.exit(main())
