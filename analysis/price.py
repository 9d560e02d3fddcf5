"""What accuracy costs in bytes: the megabytes with which each variant of an algorithm reaches a share of the best one.

    python -m fedtune.analysis.price runs/price-bytes [--share 0.9] [--write analysis/results]

The folder is that of a comparison.  Of each search the chosen configuration counts, on fresh seeds: the first round in
which their mean validation accuracy is that share of the best last one, which is a mean over searches.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from fedtune.core import statistics
from fedtune.core.metrics import METRIC
from fedtune.runs.files import COMPARISON, RunFiles
from fedtune.runs.provenance import provenance_line
from fedtune.runs.reading import commits_of, table
from fedtune.studies.comparison.results import Results
from fedtune.studies.comparison.tables import UNIT, with_units
from fedtune.studies.comparison.text import markdown
from fedtune.user_code.command import Parser, guarded

COSTS = ["round", "up_mb", "comm_mb"]


def reached(runs: pd.DataFrame, rounds: pd.DataFrame, share: float) -> pd.DataFrame:
    """A row per algorithm, the fewest megabytes up first: its last accuracy, and what that share cost.

    Means over searches, with half a 95 % interval of the megabytes up in `half`; costs are not numbers where some
    search never gets so far, and `reached` counts those that do.  runs: evaluations of a comparison; rounds: of them.
    """
    chosen = with_units(runs[runs["chosen"]])
    keys = ["algorithm", "configuration", "seed"]
    of_searches = ["algorithm", UNIT]
    mine = rounds.merge(chosen[[*keys, UNIT]].astype({UNIT: int}), on=keys).sort_values("round")
    mine["up_mb"] = mine.groupby(keys)["up_bytes"].cumsum() / 1e6
    curves = mine.groupby([*of_searches, "round"], as_index=False)[[METRIC, "up_mb", "comm_mb"]].mean()
    # a run that diverged has no last accuracy, and then its search has neither that nor costs
    ends = chosen.astype({UNIT: int}).groupby(of_searches)[METRIC].agg(lambda v: v.mean(skipna=False))
    last = ends.groupby("algorithm").agg(lambda v: v.mean(skipna=False))
    curves = curves[curves.set_index(of_searches).index.isin(ends.dropna().index)]
    there = curves[curves[METRIC] >= share * last.max()].groupby(of_searches)[COSTS].first()
    rows = []
    for algorithm in last.index:
        costs = there.reindex(ends.loc[[algorithm]].index)
        row = {"algorithm": algorithm, METRIC: last[algorithm], "reached": int(costs["round"].notna().sum())}
        rows.append(row | costs.mean(skipna=False).to_dict() | {"half": statistics.mean(costs["up_mb"]).half})
    return pd.DataFrame(rows).sort_values("up_mb", ignore_index=True)


@guarded
def main(argv: list[str] | None = None) -> int:
    """The command; see the module."""
    parser = Parser(prog="python -m fedtune.analysis.price", description="Megabytes to a share of the best accuracy.")
    parser.add_argument("folder", type=Path, help="of a comparison")
    parser.add_argument("--share", type=float, default=0.9, metavar="X", help="of the best accuracy")
    parser.add_argument("--write", type=Path, metavar="DIR", help="write NAME.md and .csv there, too")
    args = parser.parse_args(argv)
    found, files = Results.read(args.folder), RunFiles(args.folder, COMPARISON)
    priced = reached(found.evaluations, table(files.evaluation_rounds_file), args.share)
    shown = priced.round(4).astype(object).fillna("–").map(str)
    page = f"{provenance_line(found.record, commits_of(found.record))}\n\n{markdown(shown)}\n"
    print(page)
    if args.write:
        priced.to_csv(args.write / f"{args.folder.name}.csv", index=False)
        (args.write / f"{args.folder.name}.md").write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
