"""fedtune check: whether your algorithm or model passes the checks that all built-in ones pass.

A program file is checked by short runs of its program.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from typing import Any, cast

from fedtune.core.errors import UserError
from fedtune.core.findings import Finding, summary
from fedtune.core.importing import quick_imports
from fedtune.core.terminal import printable, say
from fedtune.programs import program_check, workload
from fedtune.programs.naming import is_program
from fedtune.programs.workload import ProgramWorkload
from fedtune.tuning.options import arguments
from fedtune.tuning.options.options import ExperimentOptions, flag
from fedtune.tuning.options.search import SearchOptions

OF_FLOWER = ("flower", "metric", "space", "python")  # options that `fedtune search` has, too


def parser() -> argparse.ArgumentParser:
    """The command line of `fedtune check`."""
    p = arguments.Parser(
        prog="fedtune check",
        description="Check an algorithm, a model or a program: one line a check, with what fails and how to fix it.",
    )
    p.add_argument(
        "what",
        nargs="?",
        default="",
        metavar="WHAT",
        help="your algorithm or model (FILE.py or FILE.py:NAME), a built-in's name, or a program file (FILE.toml)",
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
        flower="a Flower app, with --metric client:NAME, and with --space for hyperparameters of its run config",
    )
    p.add_argument(
        "--check-rounds",
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
    if args.what and "flower" in of_flower:
        raise UserError(f"WHAT or --flower says what is checked, but got {args.what} and {args.flower}")
    if "flower" in of_flower:
        app = SearchOptions(**of_flower, set=given.get("set", {})).workload()
        return _check_program(cast(ProgramWorkload, app), args, {"scenario": given.get("scenario")})
    if of_flower:
        raise UserError(f"{flag(next(iter(of_flower)))} goes with --flower, but it was not given")
    if is_program(args.what):
        program = workload.of_file(args.what, pinned=given.get("set"))
        return _check_program(program, args, given)
    if args.check_rounds is not None:
        got = args.what or args.model or "neither"
        raise UserError(f"--check-rounds goes with a program file or --flower, but got {got}")
    with quick_imports():
        import torch

        from fedtune.studies.checking import Check, found

    torch.set_num_threads(1)  # as in a trial
    fields = {name: value for name, value in (("dataset", args.dataset), ("x_as", args.x_as)) if value}
    check = Check(args.what, given.get("scenario", ""), args.model, given.get("set", {}), **fields)
    return _status(check.title(), map(found, check.judge()))


def _check_program(program: ProgramWorkload, args: argparse.Namespace, given: dict[str, Any]) -> int:
    other = {"scenario": given.get("scenario"), "model": args.model, "dataset": args.dataset, "x-as": args.x_as}
    for option in (name for name, value in other.items() if value):
        raise UserError(f"--{option} goes with an algorithm or a model, but {program.name} is a program; leave it out")
    check = program_check.ProgramCheck(program, args.check_rounds, tell=_progress)
    return _status(check.title(), check.judge())


def _status(title: str, findings: Iterable[Finding]) -> int:
    """Say each finding as soon as it is known; exit status 0 if no check fails, 1 if one does."""
    began, known = time.perf_counter(), list[Finding]()
    for line in title.split("\n"):
        say(line)
    for finding in findings:
        known.append(finding)
        for line in str(finding).split("\n"):
            say(line)
    say(f"{summary(known)} ({time.perf_counter() - began:.1f} s)")
    return int(any(finding.status == "failed" for finding in known))


def _progress(words: str) -> None:
    print(printable(words), file=sys.stderr, flush=True)
