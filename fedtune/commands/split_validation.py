"""fedtune split-validation: a copy of PFLlib's folder whose test rows are training rows that were set aside.

fedtune split-validation PFLlib/dataset/MNIST        # writes PFLlib/dataset/MNISTval
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fedtune.core.importing import quick_imports
from fedtune.core.terminal import say, several
from fedtune.user_code.command import Parser, guarded


def parser() -> argparse.ArgumentParser:
    """The command line of `fedtune split-validation`."""
    p = Parser(
        prog="fedtune split-validation",
        description="Write NAMEval beside PFLlib's folder NAME: a fifth of each client's training rows become its test "
        "rows, so that PFLlib, unedited, scores on validation rows. NAME's own test rows are left for the final check.",
    )
    p.add_argument("folder", type=Path, metavar="DATASET/NAME", help="a folder with train, test and config.json")
    p.add_argument("--seed", type=int, default=0, metavar="N", help="which rows are set aside (default 0)")
    p.add_argument("--debug", action="store_true", help="show the full traceback of an error")
    return p


@guarded
def main(argv: list[str] | None = None) -> int:
    """Run `fedtune split-validation` and return its exit status."""
    args = parser().parse_args(argv)
    with quick_imports():
        from fedtune.data import pfllib_validation

    made = pfllib_validation.make(args.folder, args.seed)
    say(
        f"{several(made.clients, 'client')}: {several(made.train, 'row')} to train on, {made.val} to validate; in "
        f"PFLlib give -data {made.folder.name}"
    )
    say(f"written: {made.folder}")
    return 0
