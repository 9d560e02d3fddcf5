"""The status of a search, running or over, from its folder: counts, rungs, time left and the best trials so far."""

from __future__ import annotations

import datetime
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table

from fedtune.core.budget import Budget
from fedtune.core.objectives import EXCESSES, FAR, Goal
from fedtune.core.terminal import command_line, near, several, short
from fedtune.programs.output import last_line
from fedtune.programs.run import LOG
from fedtune.runs import time_left
from fedtune.runs.files import COMPARISON, REPRODUCTION, RunFiles, kind_of, searches_of
from fedtune.runs.logs import logged
from fedtune.runs.reading import rounds_of
from fedtune.runs.trial_states import ALIVE, ended, trained
from fedtune.user_code import user_files

SHOWN = 10  # trials in the table
NEEDED = (  # entries of a search's record
    "algorithm",
    "searcher",
    "scheduler",
    "started",
    "trials",
    "concurrent",
    "space",
    "state",
    "budget",
)
Logged = dict[str, list[dict[str, Any]]]


def overview(run: Path) -> tuple[Group, bool]:
    """The status of a search, of a comparison's searches so far, or of a reproduction's runs.

    Also returns whether it is over.
    """
    kind = kind_of(run)
    if kind == REPRODUCTION:
        return _reproduction(RunFiles(run, kind))
    if kind != COMPARISON:
        return _search(run)[:2]
    files = RunFiles(run, kind)
    record = files.record_with("algorithms", "state")
    names = record["algorithms"]
    state, over = _state(files, record)
    searches = int(record.get("searches", 1))
    folders = [folder for name in names for folder in searches_of(run, user_files.plain_name(name), searches)]
    found = [_search(folder) for folder in folders]
    begun = [shown for shown, _, _ in found]
    evaluated = len(list(files.evaluations_folder.glob("*.json")))
    planned = len(names) * searches * (1 + ("widened" in record))
    head = f"comparison of {', '.join(names)}: {state}; {len(begun)} of {several(planned, 'search')} begun, "
    head += f"{several(evaluated, 'run')} on fresh seeds done"
    rest = [seconds for _, ended, seconds in found if not ended]
    left = None if over else time_left.of_comparison(files, record, [RunFiles(f) for f in folders], rest)
    return Group("\n".join([head, *_left(left)]), *begun), over


def _reproduction(files: RunFiles) -> tuple[Group, bool]:
    """The same for a reproduction: how many of its runs are done, and where its tables are."""
    record = files.record_with("grid", "state", "runs")
    running = record["state"] == "running"
    over = not running or not files.driven
    state = "its driver is gone" if running and over else str(record["state"])
    goes_on = command_line(*record.get("command", ())[1:]) if over and record["state"] != "finished" else ""
    done = len(list(files.runs_folder.glob("*.json")))
    lines = [
        f"reproduction of {record['grid'].get('table')}: {state}; {done} of {several(record['runs'], 'run')} done"
        + (f" ({record['reason']})" if record.get("reason") else ""),
        *([f"{goes_on} continues it"] if goes_on else []),
        *_left(None if over else time_left.of_reproduction(files, record)),
        *([f"tables: {near(files.markdown_file)}"] if files.markdown_file.exists() else []),
    ]
    return Group("\n".join(lines)), over


def _left(seconds: float | None) -> list[str]:
    """The remaining time in words; nothing if it is unknown."""
    return [] if seconds is None else [f"about {datetime.timedelta(seconds=max(1, round(seconds)))} left"]


def _search(run: Path) -> tuple[Group, bool, float | None]:
    """The same for a search, with its remaining seconds; UserError if the folder has none."""
    files = RunFiles(run)
    record = files.record_with(*NEEDED)
    try:
        budget, rounds = Budget(**record["budget"]), rounds_of(record)
        rungs = [float(rung) for rung in record.get("rungs") or []]
    except (KeyError, TypeError, ValueError) as error:
        raise files.damaged(error) from error
    (state, over), rows = _state(files, record), logged(run)
    how = ended(run, rows)
    rows = {trial: some for trial, of in rows.items() if (some := trained(of))}
    if over:  # states when the driver stopped; resume continues from there if the search was not over
        left = "stopped" if record["state"] in ("finished", "nothing found") else "open"
        how = {t: left if h in ALIVE.values() else h for t, h in how.items()}
    counts = ", ".join(f"{n} {h}" for h, n in Counter(how.values()).items()) or "none begun"
    lines = [
        f"{record['algorithm']}, {record['searcher']} and {record['scheduler']}: {state}"
        + (f" ({record['reason']})" if record.get("reason") else ""),
        *([f"own files: {', '.join(str(o['name']) for o in record['own'])}"] if record.get("own") else []),
        f"begun {record['started']}; {len(how)} of {several(record['trials'], 'trial')}: {counts}",
        *(_rung(rung, budget, rows, how) for rung in rungs),
    ]
    seconds = None if over else time_left.of_search(files, record, rows, how)
    lines += _left(seconds)
    lines += [f"{trial} says: {line}" for trial, line in _last_lines(files, how).items()]
    tested = "test_acc" in record.get("metrics", ("test_acc",))  # a program need not report it
    table = _best(rows, how, rounds, set(record["space"]), Goal.from_record(record), tested)
    return Group("\n".join(lines), "no round was reported yet" if table is None else table), over, seconds


def _last_lines(files: RunFiles, how: dict[str, str]) -> dict[str, str]:
    """What the programs of trials that have not ended printed last, by trial; Ray's list of what runs may be old."""
    logs = {
        trial: sorted(files.outputs_folder.glob(f"{trial}*/{LOG}")) for trial, h in how.items() if h in ALIVE.values()
    }
    found = {trial: last_line(of[-1]) for trial, of in logs.items() if of}
    return {trial: line for trial, line in found.items() if line}


def _state(files: RunFiles, record: dict[str, Any]) -> tuple[str, bool]:
    """The state in words, and whether the run is over."""
    if record["state"] == "running" and not files.driven:
        return f"its driver is gone; {command_line('resume', files.path)} continues it", True
    return str(record["state"]), record["state"] != "running"


def _rung(rung: float, budget: Budget, rows: Logged, how: dict[str, str]) -> str:
    """How many trials reached a rung, and how many of them went on."""
    there = {t: at for t, of in rows.items() if (at := first_at(of, budget.attribute, rung)) is not None}
    on = sum(reached(rows[t]) > at or how[t] in ("running", "finished") for t, at in there.items())
    where = f"round {rung:g}" if budget.unit == "rounds" else f"{rung:g} {budget.unit}"
    return f"rung at {where}: reached by {len(there)}, {on} went on"


def _best(rows: Logged, how: dict[str, str], rounds: int, space: set[str], goal: Goal, tested: bool) -> Table | None:
    """The trials with the best last value of the objective; None before the first round.

    Trials that break a constraint, or would at their end, come after the others, and diverged ones last.
    """
    objective, said = goal.first, "".join(f", {c}" for c in goal.constraints)
    key, best = objective.attribute, {"max": "highest", "min": "lowest"}[objective.mode]
    decide = {o.name: o.attribute for o in goal.objectives} | {c.name: c.attribute for c in goal.constraints}
    names = sorted({n for of in rows.values() for n in of[-1].get("config", {})} & space)
    table = Table(title=f"{best} last {objective.name}{said}", title_justify="left", box=None)
    for column in ("trial", "status", "round", *decide, *["test_acc"] * tested, *["kept"] * bool(said), *names):
        table.add_column(column, justify="left" if column in ("trial", "status") else "right")
    last = {t: of[-1] for t, of in rows.items() if abs(of[-1].get(key, FAR)) < FAR}

    def place(trial: str) -> tuple[bool, bool, float, float]:
        row = last[trial]
        return how.get(trial) == "diverged", not _kept(row), -objective.sign * row[key], _loss(row)

    for trial in sorted(last, key=place)[:SHOWN]:
        row = last[trial]
        figures = [f"{row[a]:.4f}" if a in row else "" for a in decide.values()]
        values = [short(row.get("config", {}).get(n)) for n in names]
        kept = [["no", "yes"][_kept(row)]] * bool(said)
        of_test = [_tested(rows[trial])] * tested
        table.add_row(trial, how.get(trial, ""), f"{reached([row])}/{rounds}", *figures, *of_test, *kept, *values)
    return table if last else None


def _kept(row: dict[str, Any]) -> bool:
    """Whether a trial keeps the constraints; for a running trial, whether it would at its end."""
    return not any(excess > 0 for excess in row.get(EXCESSES) or ())


def _loss(row: dict[str, Any]) -> float:
    """The validation loss, which breaks ties, as in the choice of the best trial."""
    return float(row.get("val_loss", FAR))


def _tested(rows: list[dict[str, Any]]) -> str:
    """A trial's last test accuracy, with its round if that is not the last; "" if it has none."""
    last = next((row for row in reversed(rows) if "test_acc" in row), None)
    if last is None:
        return ""
    return f"{last['test_acc']:.4f}" + ("" if last is rows[-1] else f" (round {reached([last])})")


def first_at(rows: list[dict[str, Any]], attribute: str, rung: float) -> int | None:
    """The round in which a trial had used as much budget as the rung requires."""
    return next((int(r["training_iteration"]) for r in rows if r.get(attribute, 0) >= rung), None)


def reached(rows: list[dict[str, Any]]) -> int:
    """The last round of a trial."""
    return int(rows[-1]["training_iteration"])
