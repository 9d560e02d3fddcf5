"""python -m fedtune.analysis.split_validation: a copy of PFLlib's folder, whose test rows are training rows.

python -m fedtune.analysis.split_validation PFLlib/dataset/MNIST --trust       # writes PFLlib/dataset/MNISTval
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fedtune.core.importing import quick_imports
from fedtune.core.terminal import say, several
from fedtune.user_code.command import Parser, guarded


def parser() -> argparse.ArgumentParser:
    """The command line of `python -m fedtune.analysis.split_validation`."""
    p = Parser(
        prog="python -m fedtune.analysis.split_validation",
        description="Write NAMEval beside PFLlib's folder NAME: a fifth of each client's training rows become its test "
        "rows, so that PFLlib, unedited, scores on validation rows. NAME's own test rows are left for the final check.",
    )
    p.add_argument("folder", type=Path, metavar="DATASET/NAME", help="a folder with train, test and config.json")
    p.add_argument("--seed", type=int, default=0, metavar="N", help="which rows are set aside (default 0)")
    p.add_argument("--trust", action="store_true", help="read the folder's pickles, which can run any code")
    p.add_argument("--debug", action="store_true", help="show the full traceback of an error")
    return p


@guarded
def main(argv: list[str] | None = None) -> int:
    """Run `python -m fedtune.analysis.split_validation` and return its exit status."""
    args = parser().parse_args(argv)
    with quick_imports():
        from fedtune.analysis import pfllib_validation

    made = pfllib_validation.make(args.folder, args.seed, args.trust)
    say(
        f"{several(made.clients, 'client')}: {several(made.train, 'row')} to train on, {made.val} to validate; in "
        f"PFLlib give -data {made.folder.name}"
    )
    say(f"written: {made.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
