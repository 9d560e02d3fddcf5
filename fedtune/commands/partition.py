"""fedtune partition: which client holds which data, as a table, a picture and a file, before any training."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedtune.core.importing import quick_imports
from fedtune.core.terminal import say
from fedtune.tuning.options import arguments
from fedtune.tuning.options.options import ExperimentOptions
from fedtune.user_code.command import require_new

OPTIONS = ("scenario", "set", "seed", "data_dir", "download", "debug")


def parser() -> argparse.ArgumentParser:
    """The command line of `fedtune partition`."""
    p = arguments.Parser(
        prog="fedtune partition",
        description="Show and draw which client holds what; nothing is trained.",
        examples=(
            "fedtune partition --partition dirichlet --alpha 0.3 -o picture.html",
            "fedtune partition --dataset wards.npz --set swaps=2 --save mine.npz",
        ),
    )
    arguments.add_options(p, ExperimentOptions, *OPTIONS, set="set a field of the scenario; --help-all names them")
    p.add_argument(
        "-o", "--output", type=Path, metavar="FILE.html", help="write figures of clients × classes and client sizes"
    )
    p.add_argument(
        "--save",
        type=Path,
        metavar="FILE.npz",
        help="save the split; for --partition FILE.npz: which client holds which rows",
    )
    arguments.add_fields(p)
    return p


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """Run `fedtune partition` and return its exit status."""
    args = parser().parse_args(argv)
    options = ExperimentOptions(**arguments.given(args, ExperimentOptions))
    require_new("--output", args.output, ".html")
    require_new("--save", args.save, ".npz")
    with quick_imports():
        from fedtune.experiment import user_scenario
        from fedtune.studies import partition_view

    scenario, *_ = user_scenario.taken(options.scenario, *options.split())
    counts, looks = partition_view.show(scenario, options.seed, options.data_dir, options.download, args.save)
    if args.output:
        from fedtune.analysis import partition_plots

        partition_plots.partition(counts, partition_view.title(scenario), looks).write_html(args.output)
        say(f"picture: {args.output}")
    return 0
