"""fedtune search: algorithm + space + scenario + scheduler + searcher -> ray.tune.Tuner -> best configuration."""

from __future__ import annotations

import argparse

from fedtune.core.importing import quick_imports
from fedtune.tuning.options import arguments
from fedtune.tuning.options.search import SearchOptions


def parser(prog: str = "fedtune search") -> argparse.ArgumentParser:
    """The arguments of a search.  prog: who complains of them."""
    p = arguments.Parser(
        prog=prog,
        description="Search the hyperparameters of an algorithm, or of your program, with Ray Tune.",
        examples=(f"{prog} gfpl --trials 16", f"{prog} mine.py --dataset data.npz --vary 'lr=0.001..0.3 log'"),
    )
    arguments.add_what(p)
    arguments.add_options(p, SearchOptions)
    return p


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """Run `fedtune search` and return its exit status."""
    options = SearchOptions(**arguments.given(parser().parse_args(argv), SearchOptions))
    with quick_imports():
        from fedtune.studies import search_study
        from fedtune.tuning import plan

    return search_study.run_with_ray(plan.make(options))
