"""python -m fedtune.resume RUN: go on with a search whose driver died or was interrupted."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

from fedtune import arguments as cli
from fedtune.core.errors import UserError
from fedtune.runs import tables
from fedtune.studies import comparison, search_study
from fedtune.tuning import plan, saved_state
from fedtune.tuning import space as spaces
from fedtune.tuning.options import SearchOptions


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    p = cli.Parser(prog="fedtune resume", description="Go on with a search whose driver died or was interrupted.")
    p.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    cli.add_resumed(p)
    return p


@cli.guarded
def main(argv: list[str] | None = None) -> int:
    """The command."""
    args = parser().parse_args(argv)
    require_own(args.run, args.trust)
    if (args.run / comparison.RECORD).exists():
        return comparison.resume(args.run, cli.given(args, SearchOptions, *cli.OF_MACHINE))
    record = read(args.run, args.trust)
    if record["state"] in ("finished", "nothing found"):
        raise UserError(
            f"a search is resumed while it is unfinished, but {args.run} is {record['state']}; "
            "fedtune extend adds trials"
        )
    if "extends" in record:
        raise UserError(f"what extends another search is not resumed, but {args.run} does; extend that one again")
    given = options(record, args)
    saved_state.require_state(args.run)
    return search_study.run_with_ray(plan.make(given, resumed=True), tables.kept(record), resumed=True)


def options(record: dict[str, Any], args: argparse.Namespace) -> SearchOptions:
    """The search's own options, for the folder as it is named now, with what was given anew."""
    known, run = SearchOptions.from_record(record), args.run.absolute()
    return dataclasses.replace(
        known, name=run.name, storage_path=str(run.parent), space=spaces.kept(known.space, run),
        **cli.given(args, SearchOptions, *cli.OF_MACHINE),
    )  # fmt: skip


def read(run: Path, trust: bool) -> dict[str, Any]:
    """A run's record; UserError unless it is a search of one's own."""
    try:
        record = json.loads((run / "run.json").read_text())
        SearchOptions.from_record(record)
        if "state" not in record:
            raise ValueError("it does not say how the search ended")
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"a search is gone on with from its folder, but {run} has no fit run.json: {error}") from error
    require_own(run, trust)
    return dict(record)


def require_own(run: Path, trust: bool) -> None:
    """UserError for another user's run."""
    if not trust and run.exists() and hasattr(os, "getuid") and run.stat().st_uid != os.getuid():
        raise UserError(
            f"Ray reads a run's state in a way that can run any code, and {run} belongs to another user; "
            "give --trust if you trust them"
        )


if __name__ == "__main__":
    sys.exit(main())
