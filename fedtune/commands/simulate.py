"""fedtune simulate: what searches would find, simulated on tables made by fedtune tabulate."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedtune.core import terminal
from fedtune.core.errors import UserError
from fedtune.core.importing import quick_imports
from fedtune.core.terminal import say, several
from fedtune.programs.naming import require_none
from fedtune.tuning.options import arguments
from fedtune.tuning.options.types import bounded_int
from fedtune.user_code.command import require_new

if TYPE_CHECKING:
    import pandas as pd

MORE = ("none", "top")


def parser() -> argparse.ArgumentParser:
    """The command line of `fedtune simulate`."""
    p = arguments.Parser(
        prog="fedtune simulate",
        description="Simulate searches on tables of fedtune tabulate: regret after so much training. Where several "
        "values are given, separated by commas, all combinations are simulated.",
    )
    p.add_argument("tables", nargs="+", type=Path, metavar="TABLE.parquet", help="made by fedtune tabulate")
    p.add_argument("--searcher", default="tpe", metavar="A,B,…", help="searchers to simulate (default tpe)")
    p.add_argument("--scheduler", default="asha", metavar="A,B,…", help="schedulers to simulate (default asha)")
    p.add_argument("--grace", default="", metavar="N,…", help="first rungs (default: as in a search)")
    p.add_argument("--seeds-per-trial", default="1", metavar="K,…", help="seeds per trial")
    p.add_argument(
        "--more-seeds",
        default="none",
        metavar="A,…",
        help="which trials get another seed: none, or top (the best finished)",
    )
    p.add_argument(
        "--budget",
        type=arguments.positive_int,
        default=32,
        metavar="N",
        help="training budget of a search, in full-length trials (default 32)",
    )
    p.add_argument(
        "--slots", type=arguments.small_int, default=2, metavar="N", help="trials that run at once (default 2)"
    )
    p.add_argument(
        "--searches", type=arguments.small_int, default=200, metavar="N", help="searches of each kind (default 200)"
    )
    p.add_argument("--processes", type=arguments.small_int, metavar="N", help="processes (default: one per CPU)")
    p.add_argument("-o", "--output", type=Path, metavar="FILE.csv", help="also write one line per search")
    return p


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """Run `fedtune simulate` and return its exit status."""
    require_none(argv, "simulate")
    args = parser().parse_args(argv)
    file = args.output
    require_new("--output", file, ".csv")
    with quick_imports():
        import pandas as pd

        from fedtune.studies.simulation import search_regret, tabulated

    tables = [tabulated.read(path) for path in args.tables]
    rounds = min(t.rounds for t in tables)
    strategies = search_regret.strategies(
        _names(args.searcher),
        _names(args.scheduler),
        _numbers("--grace", args.grace, 1, rounds) if args.grace else [0],
        _numbers("--seeds-per-trial", args.seeds_per_trial, 1, 1000),
        _more(args.more_seeds),
    )
    search_regret.require_seeds(tables, strategies)
    parts = []
    for part in search_regret.simulate(tables, strategies, args.budget, args.slots, args.searches, args.processes):
        parts.append(part)
        say(f"note: {len(parts)} of {len(tables) * len(strategies)} done ({part['strategy'][0]}; {part['table'][0]})")
    every = pd.concat(parts)
    if file:
        every.to_csv(file, index=False)
    whole = {t.name: search_regret.of_whole_grid(t) for t in tables}
    _show(search_regret.summary(every), args.searches, whole)
    return 0


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",")))


def _numbers(flag: str, text: str, low: int, high: int) -> list[int]:
    try:
        return [bounded_int(low, high)(part) for part in _names(text)]
    except UserError as error:
        raise UserError(f"{flag} {error}") from None


def _more(text: str) -> list[str]:
    for name in _names(text):
        if name not in MORE:
            raise UserError(f"--more-seeds is one of {', '.join(MORE)}, but got {terminal.printable(name)!r}")
    return _names(text)


def _show(found: pd.DataFrame, searches: int, whole: dict[str, float]) -> None:
    """The regrets as a table."""
    from rich.table import Table

    from fedtune.core.statistics import interval

    budgets = [str(c).removeprefix("regret ") for c in found if str(c).startswith("regret")]
    for name, of in found.groupby("table", sort=False):
        mean, of_grid = f"mean of {several(searches, 'search')}", f"of the whole grid {100 * whole[name]:.2f}"
        table = Table(title=f"{name}: regret in points, {mean}; {of_grid}", title_justify="left", box=None)
        afters = [f"after {b} trial{'s' * (b != 1)}' training" for b in budgets]
        for column in ("strategy", "trials begun", *afters, "standard deviation"):
            table.add_column(column, overflow="fold")
        for row in of.to_dict("records"):
            cells = [interval(row[f"regret {b}"], row[f"± {b}"], ".2f") for b in budgets]
            table.add_row(str(row["strategy"]), f"{row['trials']:.0f}", *cells, f"{row['spread']:.2f}")
        terminal.console().print(table)
