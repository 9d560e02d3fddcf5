"""python -m fedtune.status RUN: how a search stands, running or over, read from its folder alone."""

from __future__ import annotations

import datetime
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedtune import arguments
from fedtune.core import terminal
from fedtune.core.budget import Budget
from fedtune.core.errors import UserError
from fedtune.core.metrics import METRIC
from fedtune.core.terminal import short
from fedtune.runs import tables
from fedtune.runs.trial_states import ALIVE, ended

SAID = ("algorithm", "searcher", "scheduler", "started", "trials", "concurrent", "space")  # of run.json, needed here


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """The command."""
    p = arguments.Parser(prog="fedtune status", description="How a search stands: best, trials, rungs, time left.")
    p.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    p.add_argument("--watch", type=float, nargs="?", const=2.0, metavar="SECONDS", help="refresh (default: every 2 s)")
    p.add_argument("--debug", action="store_true", help="show the stack of an error")
    args = p.parse_args(argv)
    if args.watch is not None and not args.watch > 0:
        raise UserError(f"--watch must be above 0 seconds, but got {args.watch:g}")
    console = terminal.console()
    shown, over = pictures(args.run)
    if args.watch is None:
        console.print(shown)
        return 0
    with Live(shown, console=console, auto_refresh=False) as live:
        while not over:
            time.sleep(args.watch)
            shown, over = pictures(args.run)
            live.update(shown, refresh=True)
    return 0


def pictures(run: Path) -> tuple[Group, bool]:
    """A search's picture, or those of a comparison's searches so far."""
    try:
        record = json.loads((run / "compare.json").read_text())
        names, state = record["algorithms"], record["state"]
    except (OSError, ValueError, KeyError, TypeError):
        return picture(run)
    over = state != "running"
    if not over and not tables.driven(run):
        over, state = True, f"its driver is gone; fedtune resume {run} goes on"
    begun = [picture(run / name)[0] for name in names if (run / name / "run.json").exists()]
    again = len(list(run.glob("evaluations/*.json")))
    head = f"comparison of {', '.join(names)}: {state}; {len(begun)} of {len(names)} searches begun, "
    return Group(Text(head + f"{again} runs on fresh seeds done"), *begun), over


def picture(run: Path) -> tuple[Group, bool]:
    """What there is to see, and whether the search is over; UserError for a folder that holds none."""
    try:
        record = json.loads((run / "run.json").read_text())
        state, rounds, rungs = record["state"], record["scenario"]["rounds"], record.get("rungs") or []
        budget = Budget(**record["budget"])
        if lacking := [n for n in SAID if n not in record]:
            raise ValueError(f"it lacks {', '.join(lacking)}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"RUN must be the folder of a search, but {run} has no fit run.json: {error}") from error
    over, logged = state != "running", tables.logged(run)
    if not over and not tables.driven(run):
        over, state = True, f"its driver is gone; fedtune resume {run} goes on"
    how = ended(run, logged)
    if over:  # what the driver left when it stopped; resume goes on with it if the search was not over
        still = "stopped" if state in ("finished", "nothing found") else "open"
        how = {t: still if h in ALIVE.values() else h for t, h in how.items()}
    counts = ", ".join(f"{n} {h}" for h, n in Counter(how.values()).items()) or "none begun"
    lines = [
        f"{record['algorithm']}, {record['searcher']} and {record['scheduler']}: {state}"
        + (f" ({record['reason']})" if record.get("reason") else ""),
        f"begun {record['started']}; {len(how)} of {record['trials']} trials: {counts}",
    ]
    for rung in rungs:
        there = {t: at for t, rows in logged.items() if (at := first_at(rows, budget.attribute, rung)) is not None}
        on = sum(reached(logged[t]) > at or how[t] in ("running", "finished") for t, at in there.items())
        where = f"round {rung:g}" if budget.unit == "rounds" else f"{rung:g} {budget.unit}"
        lines.append(f"rung at {where}: {len(there)} came, {on} went on")
    if not over and (left := seconds_left(record, logged, how)) is not None:
        lines.append(f"about {datetime.timedelta(seconds=round(left))} left")
    names = sorted({n for rows in logged.values() for n in rows[-1].get("config", {})} & set(record["space"]))
    table = Table(title=f"highest last {METRIC}", title_justify="left", box=None)
    for column in ("trial", "how", "round", METRIC, "test_acc", *names):
        table.add_column(column, justify="left" if column in ("trial", "how") else "right")
    fine = [(rows[-1][METRIC], t, rows[-1]) for t, rows in logged.items() if METRIC in rows[-1]]
    for value, trial, row in sorted(fine, key=lambda found: -found[0])[:10]:
        tested = f"{row['test_acc']:.4f}" if "test_acc" in row else ""
        values = [short(row.get("config", {}).get(n)) for n in names]
        table.add_row(trial, how.get(trial, ""), f"{reached([row])}/{rounds}", f"{value:.4f}", tested, *values)
    return Group(Text("\n".join(lines)), table if fine else Text("no round was reported yet")), over


def first_at(rows: list[dict[str, Any]], attribute: str, rung: float) -> int | None:
    """The round in which a trial had used as much as the rung asks."""
    return next((int(r["training_iteration"]) for r in rows if r.get(attribute, 0) >= rung), None)


def reached(rows: list[dict[str, Any]]) -> int:
    """The last round of a trial."""
    return int(rows[-1]["training_iteration"])


def seconds_left(record: dict[str, Any], logged: dict[str, list[dict[str, Any]]], how: dict[str, str]) -> float | None:
    """As long as ended trials took, for what has not ended; None before the first has."""
    took = [rows[-1].get("time_total_s", 0.0) for t, rows in logged.items() if how[t] not in ALIVE.values()]
    if not took:
        return None
    mean = sum(took) / len(took)
    alive = [t for t in how if how[t] in ("running", "waiting")]  # most of the paused are never played on
    spent = [logged[t][-1].get("time_total_s", 0.0) if t in logged else 0.0 for t in alive]
    rest = sum(max(mean - s, 0) for s in spent) + mean * max(record["trials"] - len(how), 0)
    return rest / max(record["concurrent"], 1)


if __name__ == "__main__":
    sys.exit(main())
