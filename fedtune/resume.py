"""python -m fedtune.resume RUN: go on with a search whose driver died or was interrupted."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from fedtune import arguments as cli
from fedtune import search
from fedtune.core.errors import UserError
from fedtune.runs import disk, tables
from fedtune.studies import comparison
from fedtune.tuning import plan
from fedtune.tuning import space as spaces


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    p = cli.Parser(prog="fedtune resume", description="Go on with a search whose driver died or was interrupted.")
    p.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    add_machine(p)
    return p


@cli.guarded
def main(argv: list[str] | None = None) -> int:
    """The command."""
    args = parser().parse_args(argv)
    require_own(args.run, args.trust)
    if (args.run / comparison.RECORD).exists():
        return comparison.go_on(args)
    record = read(args.run, args.trust)
    if record["state"] in ("finished", "nothing found"):
        raise UserError(
            f"a search is resumed while it is unfinished, but {args.run} is {record['state']}; "
            "fedtune extend adds trials"
        )
    if "extends" in record:
        raise UserError(f"what extends another search is not resumed, but {args.run} does; extend that one again")
    given = arguments(record, args)
    disk.require_state(args.run)
    return search.conduct(plan.make(given, resumed=True), given, tables.kept(record), resumed=True)


def add_machine(p: argparse.ArgumentParser) -> None:
    """What may be unlike the search that is gone on with."""
    p.add_argument("--data-dir", metavar="DIR", help="as in the search, if the data lie elsewhere now")
    p.add_argument("--address", help="of a Ray cluster (default: as in the search)")
    p.add_argument("--max-concurrent", type=cli.positive, metavar="N", help="trials at once (default: as it was)")
    p.add_argument("--no-dashboard", action="store_true", help="do not start Ray's dashboard")
    p.add_argument("--trust", action="store_true", help="go on with another user's run: its files can run any code")
    p.add_argument("--debug", action="store_true", help="show the stack of an error")


def arguments(record: dict[str, Any], args: argparse.Namespace) -> argparse.Namespace:
    """The search's own arguments, for the folder as it is named now, with what was given anew."""
    given = search.parser().parse_args(record["arguments"])
    given.name, given.storage_path = args.run.absolute().name, str(args.run.absolute().parent)
    for name in ("data_dir", "address", "max_concurrent"):
        if getattr(args, name) is not None:
            setattr(given, name, getattr(args, name))
    given.no_dashboard |= args.no_dashboard
    given.space = spaces.kept(given.space, args.run.absolute())
    return given


def read(run: Path, trust: bool) -> dict[str, Any]:
    """A run's record; UserError unless it is a search of one's own."""
    try:
        record = json.loads((run / "run.json").read_text())
        begun = record.get("arguments")
        if not isinstance(begun, list) or not all(isinstance(a, str) for a in begun) or "state" not in record:
            raise ValueError("it does not say how the search was begun")
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
