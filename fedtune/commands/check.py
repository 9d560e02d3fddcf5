"""fedtune check: whether your algorithm or model passes the checks that all built-in ones pass.

A program file is checked by short runs of its program.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, cast

from fedtune.core.errors import UserError
from fedtune.core.importing import quick_imports
from fedtune.core.terminal import printable, say
from fedtune.programs import program_check
from fedtune.programs.naming import is_app, is_file
from fedtune.programs.workload import ProgramWorkload
from fedtune.tuning.options import arguments
from fedtune.tuning.options.options import ExperimentOptions, flag
from fedtune.tuning.options.search import SearchOptions

OF_FLOWER = ("metric", "space")  # options that `fedtune search` has, too


def parser() -> argparse.ArgumentParser:
    """The command line of `fedtune check`."""
    p = arguments.Parser(
        prog="fedtune check",
        description="Check an algorithm, a model or a program: one line a check, with what fails and how to fix it.",
        examples=("fedtune check mine.py", "fedtune check train.toml --rounds 2"),
    )
    p.add_argument(
        "what",
        nargs="?",
        default="",
        metavar="WHAT",
        help="your algorithm or model (FILE.py or FILE.py:NAME), a built-in's name, a program file (FILE.toml), or a "
        "Flower app's folder (./app)",
    )
    p.add_argument(
        "--model", default="", metavar="FILE.py:NAME", help="your model; with an algorithm, the clients' model"
    )
    arguments.add_options(
        p,
        ExperimentOptions,
        "scenario",
        "set",
        "debug",
        scenario="whose data shape, model and local training to check with (default: small clients of many kinds)",
    )
    p.add_argument("--dataset", default="", metavar="NAME", help="data set whose row shape and classes are used")
    p.add_argument(
        "--x-as",
        default="",
        metavar="KIND",
        help="what its rows are (image, tokens, …), where type and shape leave it open",
    )
    arguments.add_options(
        p,
        SearchOptions,
        *OF_FLOWER,
        metric="of a Flower app: client:NAME, the figure that selects",
        space="of a Flower app: a file with ranges of its run config",
    )
    p.add_argument(
        "--rounds",
        type=int,
        metavar="N",
        help=f"rounds of each run of a program or a Flower app (default: {program_check.REPORTS} reports)",
    )
    return p


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """Run `fedtune check` and return its exit status: 0 if no check fails, 1 if one does."""
    args = parser().parse_args(argv)
    given = arguments.given(args, ExperimentOptions)
    of_flower = arguments.given(args, SearchOptions, *OF_FLOWER)
    if is_app(args.what):
        app = SearchOptions(algo=args.what, **of_flower, set=given.get("set", {})).workload()
        return _check_program(cast(ProgramWorkload, app), args, {"scenario": given.get("scenario")})
    if of_flower:
        raise UserError(f"{flag(next(iter(of_flower)))} goes with a Flower app's folder, but got {args.what or 'none'}")
    if is_file(args.what):
        return _check_program(args.what, args, given)
    if args.rounds is not None:
        got = args.what or args.model or "neither"
        raise UserError(f"--rounds goes with a program file or a Flower app, but got {got}")
    with quick_imports():
        import torch

        from fedtune.studies.checking import Check, line, summary

    torch.set_num_threads(1)  # as in a trial
    began = time.perf_counter()
    fields = {name: value for name, value in (("dataset", args.dataset), ("x_as", args.x_as)) if value}
    check = Check(args.what, given.get("scenario", ""), args.model, given.get("set", {}), **fields)
    say(check.title())
    verdicts = []
    for verdict in check.judge():
        say(line(verdict))
        verdicts.append(verdict)
    say(f"{summary(verdicts)} ({time.perf_counter() - began:.1f} s)")
    return int(any(verdict.status == "failed" for verdict in verdicts))


def _check_program(what: str | ProgramWorkload, args: argparse.Namespace, given: dict[str, Any]) -> int:
    """Exit status 0 if nothing was found that makes a search of the program wrong, 1 if something was."""
    program = what if isinstance(what, str) else what.name
    other = {"scenario": given.get("scenario"), "model": args.model, "dataset": args.dataset, "x-as": args.x_as}
    for option in (name for name, value in other.items() if value):
        raise UserError(f"--{option} goes with an algorithm or a model, but {program} is a program; leave it out")
    began = time.perf_counter()
    check = program_check.ProgramCheck(what, args.rounds, given.get("set", {}), tell=_progress)
    for line in check.title():
        say(line)
    for finding in check.judge():
        for line in program_check.lines(finding):
            say(line)
    say(f"{check.summary()} ({program_check.lasting(time.perf_counter() - began)})")
    return int(check.failed)


def _progress(words: str) -> None:
    print(printable(words), file=sys.stderr, flush=True)
