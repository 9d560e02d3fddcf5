"""fedtune check: whether your algorithm or model passes the checks that all built-in ones pass.

A program file is checked by short runs of its program.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from typing import cast

from fedtune.core.errors import UserError
from fedtune.core.findings import Finding, summary
from fedtune.core.importing import quick_imports
from fedtune.core.terminal import printable, say
from fedtune.programs import program_check, workload
from fedtune.programs.naming import is_app, is_file
from fedtune.programs.workload import ProgramWorkload
from fedtune.tuning.options import arguments
from fedtune.tuning.options.options import ExperimentOptions
from fedtune.tuning.options.search import SearchOptions
from fedtune.tuning.options.types import flag

OF_FLOWER = ("metric", "vary")  # options that `fedtune search` has, too


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
    arguments.add_options(
        p,
        ExperimentOptions,
        "scenario",
        "set",
        "debug",
        scenario="whose data shape, model and local training to check with (default: small clients of many kinds)",
    )
    arguments.add_fields(p, "dataset", "model", "x_as")
    arguments.add_options(
        p,
        SearchOptions,
        *OF_FLOWER,
        metric="of a Flower app: client:NAME, the figure that selects",
        vary="of a Flower app: a key of its run config with a range; LOW..HIGH or 'LOW..HIGH log'",
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
    given, what = arguments.given(args, ExperimentOptions), args.what
    of_flower = arguments.given(args, SearchOptions, *OF_FLOWER)
    fields, pinned = given.get("fields", {}), given.get("set", {})
    program = is_app(what) or is_file(what)
    if of_flower and not is_app(what):
        raise UserError(f"{flag(next(iter(of_flower)))} goes with a Flower app's folder, but got {what or 'none'}")
    if strange := [*fields, *(["scenario"] if "scenario" in given else [])] if program else []:
        raise UserError(f"{flag(strange[0])} goes with an algorithm or a model, but {what} is a program; leave it out")
    if args.rounds is not None and not program:
        raise UserError(f"--rounds goes with a program file or a Flower app, but got {what or fields.get('model')}")
    if is_app(what):
        app = SearchOptions(algo=what, **of_flower, set=pinned).workload()
        return _check_program(cast(ProgramWorkload, app), args.rounds)
    if program:
        return _check_program(workload.of_file(what, pinned=pinned), args.rounds)
    with quick_imports():
        import torch

        from fedtune.studies.checking import Check, found

    torch.set_num_threads(1)  # as in a trial
    check = Check(what, given.get("scenario", ""), set=pinned, **fields)
    return _status(check.title(), map(found, check.judge()))


def _check_program(program: ProgramWorkload, rounds: int | None) -> int:
    check = program_check.ProgramCheck(
        program, rounds, tell=lambda words: print(printable(words), file=sys.stderr, flush=True)
    )
    return _status(check.title(), check.judge())


def _status(title: str, findings: Iterable[Finding]) -> int:
    began, known = time.perf_counter(), list[Finding]()
    say(title)
    for finding in findings:
        known.append(finding)
        say(str(finding))
    say(f"{summary(known)} ({time.perf_counter() - began:.1f} s)")
    return int(any(finding.status == "failed" for finding in known))
