"""Judge the preregistered contrasts of analysis/contrasts.yaml by their runs.

    python -m fedtune.analysis.contrasts runs/tuned-few runs/reproduce-gfpl-few … [--write analysis/results]

A folder is that of a comparison, alone or at the levels of a budget, whose name is the study's, or that of `python -m
fedtune.analysis.reproduce` of it. Each contrast is the mean of one − other, paired by fresh seed, in points, with a
95 % interval by Student's t; p is corrected by Holm over all contrasts of the study that could be tested. With
several searches of each algorithm they are paired by search, and variances are shrunk to those of all pairs in the
same metric, as in the comparison (`statistics.moderated`).
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from fedtune.analysis.claims import Reproduced
from fedtune.analysis.verdicts import LEAST, NOTHING, UNTOLD
from fedtune.core import statistics
from fedtune.core.errors import UserError, unknown
from fedtune.core.metrics import METRICS
from fedtune.runs.files import COMPARISON, RunFiles, levels_of
from fedtune.runs.provenance import provenance_line
from fedtune.runs.reading import commits_of
from fedtune.studies.comparison import tables as comparison_tables
from fedtune.studies.comparison import text as comparison_text
from fedtune.user_code.command import Parser, guarded

FILE = Path(__file__).parent / "contrasts.yaml"
# metric of a comparison -> measure of a reproduction
MEASURES = {"test_acc": "accuracy", "test_acc_all": "all_classes", "test_acc_foreign": "foreign"}
LEVEL = 0.05
ABOVE, BELOW, NOT_RUN, LOST = "above", "below", "not run", "diverged on a seed"

Values = dict[str, dict[str, np.ndarray]]  # scenario's label ("" if there is one) -> name -> percent, by seed


def studies() -> dict[str, dict[str, Any]]:
    """The studies of the file, by name."""
    content: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return content


def judged(contrasts: list[dict[str, str]], values: dict[str, Values], searches: bool = False) -> pd.DataFrame:
    """A row per contrast and setting: difference in points ± half its 95 % interval, p, p by Holm, and the verdict.

    values: by metric, what was found: in every setting each name's percent by seed, or by search if `searches`, in the
    same order.
    """
    settings = list(dict.fromkeys(s for by_name in values.values() for s in by_name))
    spreads = {(m, s): _spreads(by_name) for m in values for s, by_name in values[m].items()} if searches else {}
    rows: list[dict[str, Any]] = []
    for c in contrasts:
        for setting in settings:
            by_name = values.get(c["metric"], {}).get(setting, {})
            row: dict[str, Any] = {"one": c["one"], "other": c["other"], "setting": setting, "metric": c["metric"]}
            row["expected"] = c["expected"]
            if c["one"] not in by_name or c["other"] not in by_name:
                rows.append(row | {"verdict": NOT_RUN})
                continue
            differences = by_name[c["one"]] - by_name[c["other"]]
            spread = spreads[c["metric"], setting][frozenset((c["one"], c["other"]))] if searches else None
            d, narrow = statistics.paired_by(differences, spread), statistics.paired_by(differences, spread, 0.9)
            within = abs(narrow.mean) + narrow.half
            rows.append(row | {"difference": d.mean, "half": d.half, "p": d.p, "within": within})
    columns = ["one", "other", "setting", "metric", "expected", "difference", "half", "p", "within", "verdict"]
    table = pd.DataFrame(rows, columns=columns)
    table["p_holm"] = statistics.holm(table["p"].astype(float).tolist())
    table["verdict"] = [_verdict(row) for row in table.to_dict("records")]
    return table.drop(columns="within")


def _spreads(by_name: dict[str, np.ndarray]) -> dict[frozenset[str], statistics.Spread | None]:
    pairs = list(itertools.combinations(by_name, 2))
    spreads = statistics.moderated([by_name[a] - by_name[b] for a, b in pairs])
    return {frozenset(pair): spread for pair, spread in zip(pairs, spreads, strict=True)}


def _verdict(row: dict[Any, Any]) -> str:
    if row["verdict"] == NOT_RUN:
        return NOT_RUN
    if math.isnan(row["difference"]):
        return LOST
    if row["p_holm"] < LEVEL:
        return ABOVE if row["difference"] > 0 else BELOW
    return NOTHING if row["within"] < LEAST else UNTOLD


def of_comparison(folder: Path, reads: str) -> dict[str, Values]:
    """The results of a comparison on fresh seeds, of tuned or of default configurations: a number for each search,
    or for each seed where there is one search.
    """
    runs = comparison_tables.with_units(pd.read_parquet(RunFiles(folder, COMPARISON).evaluations_file))
    runs = runs[runs["chosen"]] if reads == "tuned" else runs[runs["configuration"] == reads]
    return {
        metric: {
            "": {
                str(name): 100 * comparison_tables.numbers(of, metric).to_numpy(float)
                for name, of in runs.groupby("algorithm")
            }
        }
        for metric in map(str, runs)
        if metric in METRICS and metric.startswith("test_")
    }


def of_reproduction(reproduced: Reproduced) -> dict[str, Values]:
    """The results of `python -m fedtune.analysis.reproduce`, by row and column."""
    values: dict[str, Values] = {}
    for metric, measure in MEASURES.items():
        by_scenario = values.setdefault(metric, {})
        for row in dict.fromkeys(spot.row.label for spot in reproduced.spots):
            for scenario, of in reproduced.values("", row, measure).items():
                by_scenario.setdefault(scenario, {})[row] = of
    return values


def read(folder: Path) -> tuple[str, str, pd.DataFrame]:
    """The study that a folder belongs to, what made it, and what became of its contrasts; UserError if it has none."""
    files, by_name, levels = RunFiles(folder, COMPARISON), studies(), levels_of(folder)
    if files.is_comparison or levels:
        study = folder.absolute().name
        if study not in by_name:
            raise unknown("study", study, by_name, str(FILE.name))
        record, values = (levels or [files])[0].record, dict[str, Values]()
        for of in levels or [files]:
            for metric, found in of_comparison(of.path, by_name[study]["reads"]).items():
                values.setdefault(metric, {})[of.name if levels else ""] = found[""]
        origin = provenance_line(record, commits_of(record))
        return study, origin, judged(by_name[study]["contrasts"], values, record.get("searches", 1) > 1)
    reproduced = Reproduced.read(folder)
    if reproduced.table not in by_name:
        raise UserError(f"contrasts.yaml has contrasts of {', '.join(by_name)}, but {folder} is of {reproduced.table}")
    origin = provenance_line(reproduced.record, (o.commit for o in reproduced.outcomes.values()))
    return reproduced.table, origin, judged(by_name[reproduced.table]["contrasts"], of_reproduction(reproduced))


def text(study: str, origin: str, table: pd.DataFrame) -> str:
    """The contrasts as a page of Markdown.  origin: the command and commit that made the runs."""
    shown = pd.DataFrame(
        {
            "contrast": [f"{r.one} − {r.other}" for r in table.itertuples()],
            "setting": table["setting"],
            "metric": [METRICS[m].label or m for m in table["metric"]],
            "points": [statistics.interval(r.difference, r.half, "+z.2f") for r in table.itertuples()],
            "p (Holm)": [statistics.number(p, ".2g") for p in table["p_holm"]],
            "expected": table["expected"],
            "verdict": table["verdict"],
        }
    )
    if not table["setting"].any():
        shown = shown.drop(columns="setting")
    significant = int((table["verdict"].isin([ABOVE, BELOW])).sum())
    lines = [
        f"# Contrasts of {study}",
        "",
        studies()[study]["question"],
        "",
        origin,
        "",
        f"Written down in analysis/contrasts.yaml before the runs. {significant} of {len(table)} are significant.",
        "",
        comparison_text.markdown(shown),
    ]
    return "\n".join(lines) + "\n"


@guarded
def main(argv: list[str] | None = None) -> int:
    """The command; see the module."""
    parser = Parser(prog="python -m fedtune.analysis.contrasts", description="Judge preregistered contrasts.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="of a comparison or a reproduction")
    parser.add_argument("--write", type=Path, metavar="DIR", help="write STUDY-contrasts.md and .csv there, too")
    args: argparse.Namespace = parser.parse_args(argv)
    for folder in args.folders:
        study, made, table = read(folder)
        page = text(study, made, table)
        print(page)
        if args.write:
            args.write.mkdir(parents=True, exist_ok=True)
            table.to_csv(args.write / f"{study}-contrasts.csv", index=False)
            (args.write / f"{study}-contrasts.md").write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
