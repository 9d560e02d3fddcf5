"""What accuracy costs in bytes: the megabytes with which each codec reaches a share of the best accuracy of all.

    python -m fedtune.analysis.price runs/price-bytes [--share 0.9] [--write analysis/results]

The folder is that of a grid over `compress` and other hyperparameters.  Of each codec the trial counts whose last
validation accuracy is best.  Expected, before the runs: sign and topk need the fewest bytes up, and as the server's
messages are not compressed, no codec halves those both ways.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from fedtune.analysis import frames
from fedtune.analysis.frames import CONFIG
from fedtune.core.metrics import METRIC
from fedtune.runs.files import RunFiles
from fedtune.runs.provenance import provenance_line
from fedtune.runs.reading import commits_of
from fedtune.studies.comparison.text import markdown
from fedtune.user_code.command import Parser, guarded


def reached(trials: pd.DataFrame, rounds: pd.DataFrame, share: float) -> pd.DataFrame:
    """A row per codec, the fewest megabytes up first: its best trial, and the round and megabytes of that share.

    NaN where it never does.  trials, rounds: as `frames.load` has them.
    """
    aim, rows = share * rounds[METRIC].max(), []
    searched = [c for c in trials if c.startswith(CONFIG) and trials[c].nunique() > 1]
    for _, of in trials.groupby(f"{CONFIG}compress"):
        best = of.loc[of[f"last_{METRIC}"].idxmax()]
        mine = rounds[rounds["trial"] == best["trial"]].sort_values("round")
        mine = mine.assign(up_mb=mine["up_bytes"].cumsum() / 1e6)
        there = mine.loc[mine[METRIC] >= aim, ["round", "up_mb", "comm_mb"]]
        row = {c.removeprefix(CONFIG): best[c] for c in searched} | {METRIC: best[f"last_{METRIC}"]}
        rows.append(row | (there.iloc[0].to_dict() if len(there) else {}))
    names = [*(c.removeprefix(CONFIG) for c in searched), METRIC, "round", "up_mb", "comm_mb"]
    return pd.DataFrame(rows, columns=names).sort_values("up_mb", ignore_index=True)


@guarded
def main(argv: list[str] | None = None) -> int:
    """The command; see the module."""
    parser = Parser(prog="python -m fedtune.analysis.price", description="Megabytes to a share of the best accuracy.")
    parser.add_argument("folder", type=Path, help="of a grid over compress")
    parser.add_argument("--share", type=float, default=0.9, metavar="X", help="of the best accuracy")
    parser.add_argument("--write", type=Path, metavar="DIR", help="write NAME.md and .csv there, too")
    args = parser.parse_args(argv)
    table = reached(*frames.load(args.folder), args.share)
    record = RunFiles(args.folder).record
    page = f"{provenance_line(record, commits_of(record))}\n\n{markdown(table.round(4))}\n"
    print(page)
    if args.write:
        table.to_csv(args.write / f"{args.folder.name}.csv", index=False)
        (args.write / f"{args.folder.name}.md").write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
