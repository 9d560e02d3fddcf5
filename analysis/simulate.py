"""python -m fedtune.analysis.simulate: what searches would find, simulated on tables of fedtune.analysis.tabulate."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fedtune.core.errors import UserError
from fedtune.core.importing import quick_imports
from fedtune.core.metrics import METRIC
from fedtune.core.objectives import BY_ACCURACY, Goal, parse
from fedtune.core.terminal import say, say_table, several
from fedtune.tuning.options import arguments
from fedtune.tuning.options.types import above_zero, number
from fedtune.user_code.command import require_new

if TYPE_CHECKING:
    import pandas as pd

    from fedtune.analysis.simulation.tabulated import Place, Tabulated

T = TypeVar("T")
MARGIN = 0.5  # points; compare's
SELECTABLE = {METRIC: "max", "comm_mb": "min"}  # what a table may hold


def parser() -> argparse.ArgumentParser:
    """The command line of `python -m fedtune.analysis.simulate`."""
    p = arguments.Parser(
        prog="python -m fedtune.analysis.simulate",
        description="Simulate searches on tables of fedtune.analysis.tabulate: regret after so much training. Where "
        "several values are given, separated by commas, all combinations are simulated.",
    )
    p.add_argument("tables", nargs="+", type=Path, metavar="TABLE.parquet", help="made by fedtune.analysis.tabulate")
    p.add_argument("--searcher", default="tpe", metavar="A,B,…", help="searchers to simulate (default tpe)")
    p.add_argument("--scheduler", default="asha", metavar="A,B,…", help="schedulers to simulate (default asha)")
    p.add_argument(
        "--objective", default=METRIC, metavar="A[,B]", help=f"{METRIC} (the default), or {METRIC},comm_mb: its front"
    )
    p.add_argument("--grace", default="", metavar="N,…", help="first rungs (default: as in a search)")
    p.add_argument("--seeds-per-trial", default="1", metavar="K,…", help="seeds per trial")
    p.add_argument(
        "--choose-seeds", default="1", metavar="K,…", help="seeds that the best three finished trials are chosen by"
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
    own = p.add_argument_group(
        "an algorithm against itself", "How often a comparison finds a difference where there is none, and where it is."
    )
    own.add_argument(
        "--against-itself",
        action="store_true",
        help="play comparisons of a table with itself; of several tables: of their algorithms, made equal on average",
    )
    own.add_argument(
        "--fresh",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE.parquet",
        help="fresh seeds (python -m fedtune.analysis.tabulate --more-of), a file for each table",
    )
    own.add_argument("--chosen", type=Path, metavar="FILE.py", help="write the configurations that need fresh seeds")
    own.add_argument("--shift", default="0.25,0.5,1,2", metavar="A,…", help="what one side is better by, in points")
    own.add_argument(
        "--margin",
        type=arguments.above_zero,
        metavar="POINTS",
        help=f"of the verdicts on several tables (default {MARGIN:g})",
    )
    own.add_argument("--compare-searches", default="1,3,5", metavar="K,…", help="searches of either side")
    own.add_argument("--fresh-seeds", default="1,2,3,5,10", metavar="S,…", help="fresh seeds of every search")
    return p


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """Run `python -m fedtune.analysis.simulate` and return its exit status."""
    args = parser().parse_args(argv)
    file = args.output
    require_new("--output", file, ".csv")
    with quick_imports():
        import pandas as pd

        from fedtune.analysis.simulation import search_regret, tabulated

    goal, tables = Goal(parse(args.objective, SELECTABLE)), [tabulated.read(path) for path in args.tables]
    if goal.first.name != METRIC or args.against_itself and goal != BY_ACCURACY:
        raise UserError(f"{METRIC} comes first, and alone with --against-itself, but got --objective {args.objective}")
    if args.against_itself:
        return _against_itself(args, tables)
    rounds = min(t.rounds for t in tables)
    strategies = search_regret.strategies(
        _names(args.searcher),
        _names(args.scheduler),
        _numbers("--grace", args.grace, 1, rounds) if args.grace else [0],
        _numbers("--seeds-per-trial", args.seeds_per_trial, 1, 1000),
        _numbers("--choose-seeds", args.choose_seeds, 1, 1000),
    )
    search_regret.require_seeds(tables, strategies)
    search_regret.require_costs(tables, strategies, goal)
    parts = []
    sizes = args.budget, args.slots, args.searches, args.processes
    for part in search_regret.simulate(tables, strategies, *sizes, goal):
        parts.append(part)
        say(f"note: {len(parts)} of {len(tables) * len(strategies)} done ({part['strategy'][0]}; {part['table'][0]})")
    every = pd.concat(parts)
    if file:
        every.to_csv(file, index=False)
    each = several(args.searches, "search")
    titles = {t.name: f"share of the front's hypervolume not found, in %, mean of {each}" for t in tables}
    if goal == BY_ACCURACY:
        grids = {t.name: f"of the whole grid {100 * search_regret.regret_of_whole_grid(t):.2f}" for t in tables}
        titles = {name: f"regret in points, mean of {each}; {of}" for name, of in grids.items()}
    _show(search_regret.summary(every), titles)
    return 0


def _against_itself(args: argparse.Namespace, tables: list[Tabulated]) -> int:
    """Play comparisons on tables of one scenario, or list the configurations that they need on fresh seeds."""
    import pandas as pd

    from fedtune.analysis.simulation import against_itself, search_regret, tabulated

    is_one = len(tables) == 1
    if bool(args.fresh) == bool(args.chosen) or (args.chosen and not is_one) or len(args.fresh) not in (0, len(tables)):
        raise UserError(
            "--against-itself takes a file of --fresh for each table, or one table and --chosen to list what needs "
            f"fresh seeds, but got {several(len(tables), 'table')}, {several(len(args.fresh), 'file')} of fresh seeds "
            f"and {'a' if args.chosen else 'no'} --chosen"
        )
    if is_one and args.margin:
        raise UserError("--margin is of the verdicts on several tables, but got one table; leave it out")
    margin = args.margin or MARGIN
    require_new("--chosen", args.chosen, ".py")
    require_new("--output", args.output, ".csv")
    seeds = min(len(table.seeds) for table in tables)
    plans = search_regret.strategies(
        _names(args.searcher),
        _names(args.scheduler),
        _numbers("--grace", args.grace, 1, min(table.rounds for table in tables)) if args.grace else [0],
        _numbers("--seeds-per-trial", args.seeds_per_trial, 1, seeds),
        _numbers("--choose-seeds", args.choose_seeds, 1, seeds),
    )
    procedures = against_itself.procedures(
        _numbers("--compare-searches", args.compare_searches, 1 if is_one else 2, 100),
        _numbers("--fresh-seeds", args.fresh_seeds, 1, 1000),
    )
    shifts = [x / 100 for x in _parsed("--shift", args.shift, above_zero)]
    fresh = [tabulated.read_fresh(file) for file in args.fresh]
    against_itself.require_one_setting(tables, fresh)
    worth = [f.of(t) for f, t in zip(fresh, tables, strict=True)] if fresh else [{}]
    sizes = args.budget, args.slots, args.searches, args.processes
    pools = [
        [
            against_itself.ChosenPlaces(search_regret.all_chosen(t, s, *sizes), w)
            for t, w in zip(tables, worth, strict=True)
        ]
        for s in plans
    ]
    if args.chosen:
        return _list(args.chosen, tables[0], {p for (of,) in pools for turn in of.places for p in turn if p})
    frames, names = [], ", ".join(table.name for table in tables)
    for strategy, of in zip(plans, pools, strict=True):
        name = f"{strategy.on(tables[0])}" if is_one else f"{strategy}"
        title = f"{names}, {name}, {several(args.budget, 'trial')} a search"
        if is_one:
            judged = against_itself.judge(of[0], procedures, shifts, args.budget)
            _show_judged(judged, title)
        else:
            judged = against_itself.judge_equals(of, procedures, shifts, margin / 100)
            _show_equals(judged, title, margin)
        frames.append(judged.assign(table=names, strategy=name))
    if args.output:
        pd.concat(frames).to_csv(args.output, index=False)
    return 0


def _show_equals(rates: pd.DataFrame, name: str, margin: float) -> None:
    """How often algorithms that are equal on average are called different, as a table."""
    from fedtune.analysis.simulation.against_itself import LEVEL, PLAYED

    shifts = [c for c in rates if str(c).startswith("found ")]
    better = [f"first {100 * float(str(c).removeprefix('found ')):g} better, found" for c in shifts]
    wrong = f"pairs with p < {LEVEL:.0%}", "any pair, after Holm", f"any larger than {margin:g}"
    rows = [
        [
            f"{row['searches']}",
            f"{row['seeds']}",
            *(f"{row[c]:.1%}" for c in ("none", "each", "any", "larger", *shifts)),
        ]
        for row in rates.to_dict("records")
    ]
    title = f"{name}: of {PLAYED:,} comparisons of these algorithms, made equal on average"
    say_table(title, ("searches", "fresh seeds each", "no verdict", *wrong, *better), rows)


def _show_judged(rates: pd.DataFrame, name: str) -> None:
    from fedtune.analysis.simulation.against_itself import LEVEL, PLAYED

    shifts = [c for c in rates if str(c).startswith("found ")]
    better = [f"{100 * float(str(c).removeprefix('found ')):g} better" for c in shifts]
    rows = [
        [f"{row['searches']}", f"{row['seeds']}", f"{row['cost']:g}", f"{100 * row['spread']:.2f}"]
        + [f"{row[c]:.1%}" for c in ("none", *shifts)]
        for row in rates.to_dict("records")
    ]
    columns = ("searches", "fresh seeds each", "cost", "spread", "no verdict", "as it is", *better[1:])
    what = "comparisons of the algorithm with itself, called different at"
    say_table(f"{name}: of {PLAYED:,} {what} {LEVEL:.0%}", columns, rows)
    reached, diverged = rates[["reached", "diverged"]].iloc[0]
    say(f"what searches choose reaches {100 * reached:.2f} % on fresh seeds; {diverged:.1%} of its runs diverge")


def _list(file: Path, table: Tabulated, places: set[Place]) -> int:
    points = [{n: of[i] for i, (n, of) in zip(place, table.levels.items(), strict=True)} for place in sorted(places)]
    lines = "".join(f"    {point!r},\n" for point in points)
    file.write_text(f"SPACE = [\n{lines}]\n")
    say(f"{several(len(points), 'configuration')} of {table.configurations:,} that searches choose: {file}")
    return 0


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",")))


def _numbers(flag: str, text: str, low: int, high: int) -> list[int]:
    return _parsed(flag, text, number(int, low, high))


def _parsed(flag: str, text: str, parse: Callable[[str], T]) -> list[T]:
    try:
        return [parse(part) for part in _names(text)]
    except UserError as error:
        raise UserError(f"{flag} {error}") from None


def _show(regrets: pd.DataFrame, titles: dict[str, str]) -> None:
    from fedtune.core.statistics import interval

    budgets = [str(c).removeprefix("regret ") for c in regrets if str(c).startswith("regret")]
    afters = [f"after {b} trials' training" for b in budgets]
    for name, of in regrets.groupby("table", sort=False):
        rows = [
            [str(row["strategy"]), f"{row['trials']:.0f}"]
            + [interval(row[f"regret {b}"], row[f"± {b}"], ".2f") for b in budgets]
            + [f"{row['spread']:.2f}"]
            for row in of.to_dict("records")
        ]
        say_table(f"{name}: {titles[str(name)]}", ("strategy", "trials begun", *afters, "standard deviation"), rows)


if __name__ == "__main__":
    sys.exit(main())
