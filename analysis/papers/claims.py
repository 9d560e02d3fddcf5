"""GFPL's claims (spec of the papers, section 7), each with a verdict from the runs that `fedtune reproduce` left.

    for t in gfpl-table2 gfpl-fig4 gfpl-fig6 gfpl-fig7; do
      fedtune reproduce $t --dataset fashion-mnist --quick --seeds 5
    done
    fedtune reproduce gfpl-fig3 --dataset fashion-mnist --parts a,b --quick --all-columns --seeds 5
    python -m analysis.claims runs/gfpl-*-fashion-mnist-* [--write analysis/results]

Any number of seeds, columns and rounds will do: the folders say what was run (analysis/results: three seeds of
figures 4 and 6).

A claim that one setting is better than another holds if the 95 % interval of the difference, paired by seed, lies above
0; it does not hold if it lies below; otherwise, or where runs are missing, it cannot be told.
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

from fedtune.core import statistics
from fedtune.core.command import Parser, guarded
from fedtune.core.errors import UserError
from fedtune.core.statistics import interval
from fedtune.runs.provenance import provenance_line
from fedtune.studies import comparison_text, ray_tasks, reproduction, reproduction_plan, reproduction_table
from fedtune.studies.options import ReproductionOptions

HOLDS, FAILS, UNTOLD = "holds", "does not hold", "cannot be told here"
FORMS = {"points": ".2f", "MB": ".2g"}  # by unit: how a difference is written
LINEAR = 0.05  # of the largest value: how far points between the ends may lie from the straight line through those

Values = dict[str, np.ndarray]  # a setting's label -> a figure per seed
Read = Callable[[str, str, str, str], Values]  # table, part's letter, algorithm's row, measure -> values


class Verdict(NamedTuple):
    """What became of a claim, and why."""

    verdict: str
    why: str


def better(values: Values, one: str, other: str, sign: int = 1, unit: str = "points", where: str = "") -> Verdict:
    """Whether one setting has more than another (sign -1: less).  where: what else tells it from other differences."""
    if one not in values or other not in values:
        return Verdict(UNTOLD, f"{one if one not in values else other} was not run")
    d = statistics.paired(values[one], values[other])
    form = FORMS[unit]
    text = f"{where}{one} − {other}: {interval(d.mean, d.half, f'+z{form}')} {unit}"
    if math.isnan(d.mean) or math.isnan(d.half) or abs(d.mean) <= d.half:
        return Verdict(UNTOLD, text)
    return Verdict(HOLDS if sign * d.mean > 0 else FAILS, text)


def all_of(*verdicts: Verdict) -> Verdict:
    """A claim of several parts: it fails with any of them, and holds with all."""
    said = "; ".join(v.why for v in verdicts) or "not run"
    if any(v.verdict == FAILS for v in verdicts):
        return Verdict(FAILS, said)
    return Verdict(HOLDS if verdicts and all(v.verdict == HOLDS for v in verdicts) else UNTOLD, said)


def peak(values: Values, among: Sequence[str]) -> Verdict:
    """Whether the best setting is one of these: better than all others, by paired differences."""
    here = [s for s in among if s in values]
    if not here or len(values) == len(here):
        return Verdict(UNTOLD, f"{' or '.join(among)} was not run, or nothing else")
    means = {s: v.mean() for s, v in values.items()}
    best = max(here, key=lambda s: means[s])
    return all_of(*(better(values, best, other) for other in values if other not in among))


def linear(values: Values) -> Verdict:
    """Whether figures lie on a straight line over the numbers in their labels, whatever the seeds' chance.

    Each point between the ends is held against the line through these, by seed: it holds if every 95 % interval of how
    far it is off lies within ± LINEAR, and does not if one lies outside.
    """
    if len(values) < 3:
        return Verdict(UNTOLD, "fewer than three settings were run")
    x = {label: float(label.rpartition("= ")[2]) for label in values}
    first, *between, last = sorted(values, key=lambda label: x[label])
    largest = max(v.mean() for v in values.values())
    verdicts, said = [], [f"{first} {values[first].mean():.4g}"]
    for label in between:
        share = (x[label] - x[first]) / (x[last] - x[first])
        off = statistics.mean((values[label] - (1 - share) * values[first] - share * values[last]) / largest)
        said.append(f"{label} {values[label].mean():.4g} ({interval(*off, '+z.1%')} off the line)")
        inside, outside = abs(off.mean) + off.half <= LINEAR, abs(off.mean) - off.half > LINEAR
        verdicts.append(HOLDS if inside else FAILS if outside else UNTOLD)
    said.append(f"{last} {values[last].mean():.4g}")
    return all_of(*(Verdict(v, "") for v in verdicts))._replace(why=", ".join(said))


def within(values: Values, low: float, high: float) -> Verdict:
    """Whether every figure's mean lies between two bounds."""
    means = {label: v.mean() for label, v in values.items()}
    if not means or any(math.isnan(m) for m in means.values()):
        return Verdict(UNTOLD, "not run")
    said = ", ".join(f"{label} {m:.2f}" for label, m in means.items())
    return Verdict(HOLDS if all(low <= m <= high for m in means.values()) else FAILS, said)


def ablation(read: Read) -> Verdict:
    """C3: each part adds, in every column."""
    rows = ["GFPL w/o DCS and PFG", "GFPL w/o DCS", "GFPL w/o PFG", "GFPL"]
    by_row = {row: read("gfpl-table2", "", row, "accuracy") for row in rows}
    steps = []
    for column in by_row["GFPL"]:
        of = {row: values[column] for row, values in by_row.items() if column in values}
        steps += [better(of, more, less, where=f"{column}: ") for less, more in itertools.pairwise(rows)]
    return all_of(*steps)


def ratio(read: Read) -> Values:
    """C8: numbers sent up by GFPL over those by FedProto, in the same setting."""
    ours, theirs = (read("gfpl-fig4", "a", row, "parameters") for row in ("GFPL", "FedProto"))
    return {c: ours[c] / theirs[c] for c in ours if c in theirs}


CLAIMS: dict[str, tuple[str, Callable[[Read], Verdict]]] = {
    "C1": ("λ 0 → 2 raises accuracy (94.05 → 98.91)",
           lambda r: better(r("gfpl-fig3", "a", "GFPL", "accuracy"), "λ = 2", "λ = 0")),
    "C2": ("accuracy peaks at n = 8", lambda r: peak(r("gfpl-fig3", "b", "GFPL", "accuracy"), ["n = 8"])),
    "C3": ("neither part < PFG alone < DCS alone < both", ablation),
    "C4": ("a small S_C costs communication, a large one accuracy", lambda r: all_of(
        better(r("gfpl-fig6", "S", "GFPL", "mb"), "S_C = 0.1", "S_C = 300", unit="MB"),
        better(r("gfpl-fig6", "S", "GFPL", "accuracy"), "S_C = 0.1", "S_C = 300"))),
    "C5": ("a moderate S_T beats a small one",
           lambda r: better(r("gfpl-fig4", "b", "GFPL", "accuracy"), "S_T = 5", "S_T = 1")),
    "C6": ("the best t1 lies inside its range", lambda r: all_of(
        better(r("gfpl-fig4", "c", "GFPL", "accuracy"), "t1 = 20", "t1 = 5"),
        better(r("gfpl-fig4", "c", "GFPL", "accuracy"), "t1 = 20", "t1 = 40"))),
    "C7, n": ("a client's cost is linear in n (ŵ = 0)", lambda r: linear(r("gfpl-fig7", "a", "GFPL", "mb"))),
    "C7, m": ("a client's cost is linear in m (ŵ = 0)", lambda r: linear(r("gfpl-fig7", "b", "GFPL", "mb"))),
    "C7, w̄": ("a client's cost is linear in w̄ (ŵ = 0)", lambda r: linear(r("gfpl-fig7", "c", "GFPL", "mb"))),
    "C8": ("GFPL sends up 0.5 to 0.8 of what FedProto does", lambda r: within(ratio(r), 0.5, 0.8)),
}  # fmt: skip


@guarded
def main(argv: list[str] | None = None) -> int:
    """Run `python -m analysis.claims` and return its exit status."""
    parser = Parser(prog="python -m analysis.claims", description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="what `fedtune reproduce` left")
    parser.add_argument("--write", type=Path, metavar="DIR", help="folder of the table (default: show it only)")
    parser.add_argument("--debug", action="store_true", help="show the stack of an error")
    args = parser.parse_args(argv)
    tables: dict[str, Reproduced] = {}
    for folder in args.folders:
        found = Reproduced.read(folder)
        if found.table in tables:
            raise UserError(f"a table's runs are judged of one folder, but {folder} is {found.table}, too; give one")
        tables[found.table] = found
    table = judged(lambda name, *what: tables[name].values(*what) if name in tables else {})
    lines = ["# GFPL's claims", "", comparison_text.markdown(table), "From the runs of", ""]
    lines += [f"- {provenance_line(t.record, (o.commit for o in t.outcomes.values()))}" for t in tables.values()]
    text = "\n".join(lines) + "\n"
    print(text)
    if args.write:
        args.write.mkdir(parents=True, exist_ok=True)
        table.to_csv(args.write / "gfpl-claims.csv", index=False)
        (args.write / "gfpl-claims.md").write_text(text, encoding="utf-8")
    return 0


class Reproduced(NamedTuple):
    """What `fedtune reproduce` left of a table."""

    table: str
    record: dict[str, Any]
    spots: list[reproduction_plan.Spot]
    outcomes: dict[str, ray_tasks.Outcome]

    @classmethod
    def read(cls, folder: Path) -> Reproduced:
        """A folder's; UserError if it is none of `fedtune reproduce`."""
        record = reproduction.read(folder)
        options = ReproductionOptions.from_record(record)
        grid = reproduction_plan.requested(options)
        spots = list(reproduction_plan.planned(grid, options.presets, record["device"]))
        runs = {run.label: run for spot in spots for run in spot.runs}
        return cls(options.table, record, spots, ray_tasks.finished(list(runs.values()), folder / "runs"))

    def values(self, part: str, row: str, measure: str) -> Values:
        """A row's figures, where all of a setting's runs are there: by its label, which names the data set if several.

        part: the first letters of the panels that are wanted.
        """
        there = [s for s in self.spots if s.row.label == row and s.panel.label.startswith(part)]
        several = len({s.column.label.partition(", ")[0] for s in there}) > 1
        found: Values = {}
        for spot in there:
            if all(run.label in self.outcomes for run in spot.runs):
                scenario = spot.runs[0].experiment.scenario
                of_runs = [reproduction_table.measured(measure, self.outcomes[r.label], scenario) for r in spot.runs]
                data, _, label = spot.column.label.partition(", ")
                found |= {f"{data}, {x}" if several else x: np.array(of_runs) for x in label.split(" / ")}
        return found


def judged(read: Read) -> pd.DataFrame:
    """A row per claim: what is claimed, the verdict, and what was seen."""
    rows = [(name, claim, *check(read)) for name, (claim, check) in CLAIMS.items()]
    return pd.DataFrame(rows, columns=["claim", "what", "verdict", "measured"])


if __name__ == "__main__":
    sys.exit(main())
