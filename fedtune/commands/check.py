"""fedtune check: whether your algorithm or model passes the checks that all built-in ones pass."""

from __future__ import annotations

import argparse
import time

from fedtune.core.importing import quick_imports
from fedtune.core.terminal import say
from fedtune.tuning.options import arguments
from fedtune.tuning.options.options import ExperimentOptions


def parser() -> argparse.ArgumentParser:
    """The command line of `fedtune check`."""
    p = arguments.Parser(
        prog="fedtune check",
        description="Check an algorithm or a model: one line a check, with what fails, where, and how to fix it.",
    )
    p.add_argument(
        "what", nargs="?", default="", metavar="FILE.py[:NAME]", help="your algorithm or model, or a built-in's name"
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
    return p


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """Run `fedtune check` and return its exit status: 0 if no check fails, 1 if one does."""
    args = parser().parse_args(argv)
    given = arguments.given(args, ExperimentOptions)
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
