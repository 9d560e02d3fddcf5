"""python -m fedtune.extend RUN --trials +32: more trials for a search that is over, which go on from what it learnt."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from fedtune import cli, plan, resume, search, storage
from fedtune.errors import UserError
from fedtune.tuning import SAMPLERS


@cli.guarded
def main(argv: list[str] | None = None) -> int:
    """The command."""
    p = cli.Parser(prog="fedtune extend", description="More trials for a search that is over, in a new folder.")
    p.add_argument("run", type=Path, metavar="RUN", help="the folder of the search that is over")
    p.add_argument("--trials", required=True, type=cli.positive, metavar="+N", help="how many more")
    p.add_argument("--name", help="of the new folder, beside the old one (default: RUN+N)")
    resume.add_machine(p)
    args = p.parse_args(argv)
    record = resume.read(args.run, args.trust)
    if not all(n in record for n in ("scheduler", "searcher")):
        raise UserError(f"a search is extended from its run.json, but that of {args.run} does not say how it searched")
    if record["state"] == "running" or not (args.run / "trials.parquet").exists():
        raise UserError(f"a search is extended when it is over, but {args.run} is {record['state']}; fedtune resume it")
    if record["scheduler"] == "pbt" or record["searcher"] not in SAMPLERS:
        how = "pbt" if record["scheduler"] == "pbt" else record["searcher"]
        raise UserError(f"only a search by {', '.join(SAMPLERS)} is extended, but {args.run} went by {how}; begin anew")
    storage.require_found(args.run)
    given = resume.arguments(record, args)
    given.name, given.trials = args.name or f"{given.name}+{args.trials}", args.trials
    planned = plan.make(given)
    # the default configuration was the first trial of the first search
    planned = dataclasses.replace(planned, points=[], outside={}, earlier=args.run.absolute())
    return search.conduct(planned, given, {"arguments": record["arguments"], "extends": str(args.run)})


if __name__ == "__main__":
    sys.exit(main())
