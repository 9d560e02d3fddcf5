"""python -m fedtune.resume RUN: go on with a search whose driver died or was interrupted."""

from __future__ import annotations

import datetime
import json
import os
import sys
from pathlib import Path
from typing import Any

from fedtune import cli, plan, search
from fedtune.errors import UserError


@cli.guarded
def main(argv: list[str] | None = None) -> int:
    """The command."""
    p = cli.Parser(prog="fedtune resume", description="Go on with a search whose driver died or was interrupted.")
    p.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    p.add_argument("--data-dir", metavar="DIR", help="as in the search, if the data lie elsewhere now")
    p.add_argument("--address", help="of a Ray cluster (default: as in the search)")
    p.add_argument("--max-concurrent", type=cli.positive, metavar="N", help="trials at once (default: as it was)")
    p.add_argument("--no-dashboard", action="store_true", help="do not start Ray's dashboard")
    p.add_argument("--trust", action="store_true", help="resume a run of another user: its files can run any code")
    p.add_argument("--debug", action="store_true", help="show the stack of an error")
    args = p.parse_args(argv)
    record = unfinished(args.run, args.trust)
    given = search.parser().parse_args(record["arguments"])
    given.name, given.storage_path = args.run.absolute().name, str(args.run.absolute().parent)
    for name in ("data_dir", "address", "max_concurrent"):
        if getattr(args, name) is not None:
            setattr(given, name, getattr(args, name))
    given.no_dashboard |= args.no_dashboard
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    record["resumed"] = [*record.get("resumed", []), now]
    kept = {n: record[n] for n in ("arguments", "command", "started", "resumed")}
    return search.conduct(plan.make(given, resumed=True), given, kept, resumed=True)


def unfinished(run: Path, trust: bool) -> dict[str, Any]:
    """A run's record; UserError unless it is an unfinished search of one's own."""
    try:
        record = json.loads((run / "run.json").read_text())
        if not isinstance(record.get("arguments"), list) or not isinstance(record.get("state"), str):
            raise ValueError("it does not say how the search was begun")
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"a search is resumed from its folder, but {run} has no fit run.json: {error}") from error
    if record["state"] in ("finished", "nothing found"):
        raise UserError(f"a search is resumed while it is unfinished, but {run} is {record['state']}; begin a new one")
    if not trust and hasattr(os, "getuid") and run.stat().st_uid != os.getuid():
        raise UserError(
            f"Ray reads a run's state in a way that can run any code, and {run} belongs to another user; "
            "give --trust if you trust them"
        )
    return dict(record)


if __name__ == "__main__":
    sys.exit(main())
