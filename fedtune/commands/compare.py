"""fedtune compare: algorithms tuned with one budget on one split, then compared on fresh seeds."""

from __future__ import annotations

import argparse

from fedtune.core.importing import quick_imports
from fedtune.studies.options import ComparisonOptions
from fedtune.tuning.options import arguments
from fedtune.tuning.options.types import LENGTH


def parser() -> argparse.ArgumentParser:
    """The arguments of a comparison."""
    p = arguments.Parser(
        prog="fedtune compare",
        usage="%(prog)s --algos A,B,… [options]",
        description="Tune several algorithms with the same budget, then compare them on fresh seeds.",
        examples=(
            "fedtune compare --algos gfpl,fedproto --trials 16",
            "fedtune compare --algos mine.py,fedprox --at epsilon=1,2,4,8 --name mine",
        ),
    )
    arguments.add_options(p, ComparisonOptions, name="name of the folder; default: scenario and time")
    dry_run = "say what it would do and how long that takes; start nothing"
    arguments.heading(p, LENGTH).add_argument("--dry-run", action="store_true", help=dry_run)
    return p


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """Run `fedtune compare` and return its exit status."""
    args = parser().parse_args(argv)
    options = ComparisonOptions(**arguments.given(args, ComparisonOptions))
    with quick_imports():
        from fedtune.studies.comparison import comparison, levels
        from fedtune.studies.comparison import plan as comparison_plan

    if options.at:
        return levels.dry_run(options) if args.dry_run else levels.run(options)
    plan = comparison_plan.make(options)
    return comparison.dry_run(plan) if args.dry_run else comparison.run(plan)
