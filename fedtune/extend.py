"""python -m fedtune.extend RUN --trials +32, or --rounds +40: a search that is over goes on from what it learnt."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import torch

from fedtune import arguments as cli
from fedtune import resume
from fedtune.core.errors import UserError
from fedtune.federated import registry
from fedtune.runs import disk, tables
from fedtune.studies import search_study
from fedtune.tuning import plan, schedulers
from fedtune.tuning import space as spaces
from fedtune.tuning.searchers import EXTENDABLE


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    p = cli.Parser(prog="fedtune extend", description="More trials or rounds for a search that is over.")
    p.add_argument("run", type=Path, metavar="RUN", help="the folder of the search that is over")
    more = p.add_mutually_exclusive_group(required=True)
    more.add_argument("--trials", type=cli.positive, metavar="+N", help="so many more trials")
    more.add_argument("--rounds", type=cli.positive, metavar="+N", help="so many more rounds for the best trials")
    p.add_argument("--top", type=cli.positive, metavar="N", help="with --rounds: for how many (default: a third)")
    p.add_argument("--name", help="of the new folder, beside the old one (default: RUN+N, RUN+Nrounds)")
    cli.add_resumed(p)
    return p


@cli.guarded
def main(argv: list[str] | None = None) -> int:
    """The command."""
    args = parser().parse_args(argv)
    record = resume.read(args.run, args.trust)
    if not all(n in record for n in ("scheduler", "searcher")):
        raise UserError(f"a search is extended from its run.json, but that of {args.run} does not say how it searched")
    moves = schedulers.moves_hyperparameters(record["scheduler"])
    if moves or record["searcher"] not in EXTENDABLE:
        how = record["scheduler" if moves else "searcher"]
        raise UserError(
            f"only a search by {', '.join(EXTENDABLE)} is extended, but {args.run} went by {how}; begin anew"
        )
    if record["state"] == "running":
        raise UserError(f"a search is extended when it is over, but {args.run} is running; fedtune resume it")
    if not all((args.run / f"{table}.parquet").exists() for table in ("trials", "rounds")):
        raise UserError(
            f"a search is extended from its trials.parquet and rounds.parquet, but {args.run} lacks one; search anew"
        )
    disk.require_found(args.run)
    given = resume.options(record, args)
    if args.trials:
        if args.top:
            raise UserError(f"--top says how many trials get more --rounds, but got --top {args.top} with --trials")
        name = args.name or f"{given.name}+{args.trials}"
        planned = plan.make(dataclasses.replace(given, name=name, trials=args.trials))
        # the default configuration was the first trial of the first search
        planned = dataclasses.replace(planned, points=[], outside=[])
    else:
        name, rounds = args.name or f"{given.name}+{args.rounds}rounds", record["scenario"]["rounds"] + args.rounds
        given = dataclasses.replace(given, name=name, fields={**given.fields, "rounds": rounds})
        planned = longer(plan.make(given), args.run, args.top)
    planned = dataclasses.replace(planned, earlier=args.run.absolute())
    return search_study.run_with_ray(planned, {"extends": args.run.absolute().name})


def longer(p: plan.Plan, run: Path, top: int | None) -> plan.Plan:
    """The plan of playing on a run's best finished trials, each to its new end."""
    if p.budget.unit != "rounds":
        raise UserError(f"--rounds are for a search whose budget is rounds, but that of {run} is {p.budget.unit}")
    if registry.find(p.experiment.algorithm).whole:
        raise UserError(
            f"{p.experiment.algorithm} plans over all its rounds, so a longer trial is another one; search anew with "
            f"--rounds {p.experiment.scenario.rounds}"
        )
    trials = pd.read_parquet(run / "trials.parquet")
    suggested = {t["trial"]: t["config"] for folder in lineage(run) for t in tables.suggestions(folder)}
    finished = trials[(trials["status"] == "finished") & trials["trial"].isin(suggested)]
    best = finished.sort_values(["last_val_acc", "last_val_loss"], ascending=[False, True])
    best = best[: top or max(1, len(best) // schedulers.REDUCTION)]
    if best.empty:
        raise UserError(f"only finished trials are played on, but {run} has none; fedtune resume it, or add --trials")
    rounds = pd.read_parquet(run / "rounds.parquet")
    onward = tuple(
        plan.Played(t.trial, suggested[t.trial], int(t.rounds), *checkpoint(run, t.trial, rounds))
        for t in best.itertuples()
    )
    default = p.experiment.configuration({})
    moved = [spaces.inside(p.space, default | t.config) for t in onward]
    return dataclasses.replace(
        p, points=[point for point, _ in moved], outside=[outside for _, outside in moved], trials=len(onward),
        onward=onward, scheduler="none",
    )  # fmt: skip


def lineage(run: Path) -> Iterator[Path]:
    """A run's folder, and those that it extends, which lie beside it."""
    while run.is_dir():
        yield run
        earlier = json.loads((run / "run.json").read_text()).get("extends")
        if not earlier:
            return
        run = run.absolute().parent / earlier


def checkpoint(run: Path, trial: str, rounds: pd.DataFrame) -> tuple[str | None, float]:
    """The folder of a trial's last checkpoint that can be read, and the seconds that its rounds up to there took.

    None: it is played again from its first round.
    """
    played = rounds[rounds["trial"] == trial]
    for folder in lineage(run):
        for found in sorted(folder.absolute().glob(f"*-{trial}/checkpoint_*"), reverse=True):
            try:
                reached = torch.load(found / "state.pt", weights_only=True, map_location="cpu")[0]["round"]
            except Exception:  # whatever a damaged file raises
                continue
            before = played[played["round"] <= reached]
            return str(found), float(before["seconds"].sum() + before["eval_seconds"].sum())
    return None, 0.0


if __name__ == "__main__":
    sys.exit(main())
