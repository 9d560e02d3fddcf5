"""python -m fedtune.replay RUN: plays every trial of a search again, as far as it went, and compares every number."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

import pandas as pd

from fedtune import arguments, resume
from fedtune.core.budget import Budget
from fedtune.core.errors import UserError
from fedtune.core.terminal import say
from fedtune.runs import tables
from fedtune.studies import search_study
from fedtune.tuning import plan, schedulers

CLOCK = ["trial", "seconds", "eval_seconds"]  # what is another each time


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    p = arguments.Parser(prog="fedtune replay", description="Play a search's trials again and compare every number.")
    p.add_argument("run", type=Path, metavar="RUN", help="the folder of the search")
    p.add_argument("--name", help="of the new folder, beside the old one (default: RUN-replayed)")
    arguments.add_resumed(p)
    return p


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """The command."""
    args = parser().parse_args(argv)
    record = resume.read(args.run, args.trust)
    given = resume.options(record, args)
    given = dataclasses.replace(given, name=args.name or f"{given.name}-replayed", final_seeds=0)
    before = rounds_of(args.run)
    length = before.groupby("trial")["round"].max()
    tried = [plan.Played(t["trial"], t["config"], int(length[t["trial"]]))
             for t in tables.suggestions(args.run) if t["trial"] in length]  # fmt: skip
    if not tried:
        raise UserError(f"a search is replayed from its suggestions and rounds, but {args.run} has none; search anew")
    if schedulers.moves_hyperparameters(record["scheduler"]) or any(_moved(args.run, t.trial) for t in tried):
        raise UserError(
            f"a trial is replayed from its first round, but those of {args.run} went on from others (pbt, --rounds); "
            "replay the first search"
        )
    planned = plan.make(given)
    planned = dataclasses.replace(
        planned, again=tuple(tried), trials=len(tried), points=[], outside=[], searcher="replay", scheduler="none",
        budget=Budget("rounds", planned.experiment.scenario.rounds, 1), time_budget=None, objectives=("val_acc",),
    )  # fmt: skip
    status = search_study.run_with_ray(planned, {"replays": args.run.absolute().name})
    return status or compare(args, before, planned)


def compare(args: argparse.Namespace, before: pd.DataFrame, p: plan.Plan) -> int:
    """Say whether every round of every trial has the same numbers; 0 if so, else 1."""
    now = pd.read_parquet(p.folder / "rounds.parquet")
    names = pd.read_parquet(p.folder / "trials.parquet")["trial"]
    columns = [c for c in now if c in before and c not in CLOCK]
    apart = []
    if len(names) < len(p.again):
        say(f"replayed: only {len(names)} of {len(p.again)} trials, for it was interrupted")
        return 1
    for old, new in zip(p.again, names, strict=True):
        one, other = (f[f["trial"] == t][columns].reset_index(drop=True) for f, t in ((before, old.trial), (now, new)))
        if not one.equals(other):
            apart.append(old.trial)
    if apart:
        say(f"replayed: {len(apart)} of {len(p.again)} trials have other numbers: {', '.join(apart)}")
        return 1
    say(f"replayed: all {len(p.again)} trials, {len(now)} rounds, are the same bit for bit")
    return 0


def rounds_of(run: Path) -> pd.DataFrame:
    """The rounds of a run, over or not."""
    return tables.rounds_frame(tables.logged(run))


def _moved(run: Path, trial: str) -> bool:
    """Whether the trial went on from another one."""
    table = run / "trials.parquet"
    columns = pd.read_parquet(table) if table.exists() else pd.DataFrame()
    return "continues" in columns and bool(columns.loc[columns["trial"] == trial, "continues"].notna().any())


if __name__ == "__main__":
    sys.exit(main())
