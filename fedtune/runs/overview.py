"""The status of a run, going on or over, from its folder: counts, rungs, time left, the best trials and the workers."""

from __future__ import annotations

import datetime
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedtune.core.budget import SHORT, Budget
from fedtune.core.objectives import EXCESSES, WORST, Goal, Objective
from fedtune.core.statistics import unit_of
from fedtune.core.terminal import near, several, short
from fedtune.programs.output import last_line
from fedtune.programs.run import LOG
from fedtune.runs import time_left
from fedtune.runs.choice import usual_runs
from fedtune.runs.files import COMPARISON, REPRODUCTION, RunFiles, goes_on, kind_of, levels_of, search_of, searches_of
from fedtune.runs.logs import Followed, Row
from fedtune.runs.reading import compared_in, rounds_of
from fedtune.runs.trial_states import ALIVE, counts_in_words, trained, trial_statuses
from fedtune.user_code import user_files

SHOWN = 10  # trials in the table
NEEDED = "algorithm searcher scheduler started trials concurrent space state budget".split()  # in a search's record
GONE = "its driver is gone"  # the state of a run that was killed
Logged = dict[str, list[Row]]


class RungCount(NamedTuple):
    """How many trials reached a rung, went on and were stopped there; the best of them there, and its objective."""

    where: str
    reached: int
    went_on: int
    stopped: int = 0
    best: str = ""
    value: float = math.nan


class BestTrials(NamedTuple):
    """The best trials so far: a title, the columns' names, and rows of text.  The first two columns are words."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    value: float  # the first one's objective


class Worker(NamedTuple):
    """A process that trains: its trial, round, and machine and process id, if a round of the trial has ended."""

    trial: str
    where: str
    round: int
    pace: float | None  # seconds of the last round
    since: float | None  # the time when that round ended, in seconds since 1970


@dataclass(frozen=True, kw_only=True)
class Status:
    """How a run stands: the state in words, whether it is over, and the seconds left if they can be told."""

    run: Path
    state: str
    over: bool
    left: float | None
    about: str  # what it is: a search's algorithm, searcher and scheduler
    counted: str  # how much has begun or is done
    planned: int  # trials of a search, searches of a comparison, runs of a reproduction
    reason: str = ""
    more: tuple[str, ...] = ()  # what else there is to say

    @property
    def lines(self) -> list[str]:
        """What there is to say, in sentences."""
        head = f"{self.about}: {self.state}; {self.counted}" + (f" ({self.reason})" if self.reason else "")
        return [head, *self.time_left, *filter(None, self.more)]

    @property
    def time_left(self) -> list[str]:
        """The remaining time in words; nothing if it is unknown."""
        return [] if self.left is None else [f"about {datetime.timedelta(seconds=max(1, round(self.left)))} left"]


@dataclass(frozen=True, kw_only=True)
class SearchStatus(Status):
    """How a search stands."""

    objective: str  # the first one
    rounds: int  # of a complete trial
    counts: dict[str, int]  # of trials, by status
    rungs: list[RungCount]
    best: BestTrials | None
    workers: list[Worker]
    says: dict[str, str]  # by trial: the last line that its program printed

    @property
    def lines(self) -> list[str]:
        """What there is to say, in sentences."""
        at_rungs = [f"rung at {r.where}: reached by {r.reached}, {r.went_on} went on" for r in self.rungs]
        return [*super().lines, *at_rungs, *(f"{trial} says: {line}" for trial, line in self.says.items())]


@dataclass(frozen=True, kw_only=True)
class ComparisonStatus(Status):
    """How a comparison stands."""

    searches: list[SearchStatus]  # those that have begun
    called: list[str]  # what each of them is


@dataclass(frozen=True, kw_only=True)
class BudgetStudyStatus(Status):
    """How a budget study stands."""

    levels: list[ComparisonStatus]


class Reader:
    """Reads the status of runs repeatedly; reads only those of their logs that changed."""

    def __init__(self) -> None:
        """Nothing has been read."""
        self._followed: dict[Path, Followed] = {}

    def read(self, run: Path) -> Status:
        """The status of a search, of a comparison's searches so far, or of what a study of another kind consists of."""
        kind = kind_of(run)
        if levels := levels_of(run):
            return self._levels(RunFiles(run, kind or ""), levels)
        if kind == REPRODUCTION:
            return _reproduction(RunFiles(run, kind))
        return self._comparison(RunFiles(run, kind)) if kind == COMPARISON else self.search(run)

    def _comparison(self, files: RunFiles) -> ComparisonStatus:
        record = files.record_with("algorithms", "state")
        (now, words), folders = state_of(files, record), inner_searches(files.path, record)
        searches, over = [self.search(folder) for folder in folders], now not in ("running", "waiting")
        rest = [search.left for search in searches if not search.over]
        planned = len(record["algorithms"]) * record.get("searches", 1) * (1 + ("widened" in record))
        evaluated = several(len(list(files.evaluations_folder.glob("*.json"))), "run")
        counted = f"{len(searches)} of {several(planned, 'search')} begun, {evaluated} on fresh seeds done"
        return ComparisonStatus(
            run=files.path,
            state=words,
            over=over,
            left=None if over else time_left.of_comparison(files, record, [RunFiles(f) for f in folders], rest),
            about=f"comparison of {', '.join(compared_in(record))}",
            counted="its searches are not kept here" if now == "finished" and not searches else counted,
            planned=planned,
            more=(record.get("outcome", ""),),
            searches=searches,
            called=[search_in_words(folder, record) for folder in folders],
        )

    def _levels(self, files: RunFiles, levels: list[RunFiles]) -> BudgetStudyStatus:
        record, each = files.record_with("algorithms", "state"), [self._comparison(level) for level in levels]
        now, words = state_of(files, record)
        return BudgetStudyStatus(
            run=files.path,
            state=words,
            over=now != "running",
            left=None,
            about=f"{', '.join(record['algorithms'])} at {', '.join(record['levels'])}",
            counted=f"{sum(of.state == 'finished' for of in each)} of {several(len(each), 'level')} done",
            planned=len(each),
            reason=record.get("reason", ""),
            levels=each,
        )

    def search(self, run: Path) -> SearchStatus:
        """The status of a search; UserError if the folder has none."""
        files = RunFiles(run)
        record = files.record_with(*NEEDED)
        try:
            budget, rounds = Budget(**record["budget"]), rounds_of(record)
        except (KeyError, TypeError, ValueError) as error:
            raise files.damaged(error) from error
        (now, words), rungs, goal = state_of(files, record), record.get("rungs") or [], Goal.from_record(record)
        rows, how = self._read(run, rungs, budget, now)
        tested = "test_acc" in record.get("metrics", ("test_acc",))  # a program may not report it
        over = now != "running"
        logs_are_gone = over and not how
        counts = record.get("status", {}) if logs_are_gone else dict(Counter(how.values()))
        each = counts_in_words(counts) or "none begun"
        own = ", ".join(own["name"] for own in record.get("own", []))
        return SearchStatus(
            run=run,
            state=words,
            over=over,
            left=None if over else time_left.of_search(files, record, rows, how),
            about=f"{record['algorithm']}, {record['searcher']} and {record['scheduler']}",
            counted=f"{sum(counts.values())} of {several(record['trials'], 'trial')}: {each}",
            planned=record["trials"],
            reason=record.get("reason", ""),
            more=(
                f"begun {record['started'][:16].replace('T', ' ')} UTC",
                f"own files: {own}" if own else "",
                "" if over else _choice(files, record),
            ),
            objective=goal.first.name,
            rounds=rounds,
            counts=counts,
            rungs=[_rung(rung, budget, rows, how, goal.first) for rung in rungs],
            best=_best(record, rows, how, goal, budget, tested),
            workers=[_worker(t, rows[t][-1] if t in rows else {}) for t, h in how.items() if h == "running"],
            says=_last_lines(files, how),
        )

    def _read(self, run: Path, rungs: list[float], budget: Budget, now: str) -> tuple[Logged, dict[str, str]]:
        rows = self._followed.setdefault(run, Followed(run)).rows(budget.attribute, rungs)
        how = trial_statuses(run, rows, now)
        if now != "running":
            self._followed.pop(run, None)  # or another thread has
        return {trial: some for trial, of in rows.items() if (some := trained(of))}, how


def rungs(searches: Iterable[Path]) -> list[RungCount]:
    """How many trials of several searches with the same rungs reached each of them and went on."""
    counts: dict[str, RungCount] = {}
    for rung in (rung for run in searches for rung in Reader().search(run).rungs):
        before = counts.get(rung.where, RungCount(rung.where, 0, 0))
        counts[rung.where] = RungCount(rung.where, before.reached + rung.reached, before.went_on + rung.went_on)
    return list(counts.values())


def inner_searches(comparison: Path, record: Mapping[str, Any]) -> list[Path]:
    """The folders of a comparison's searches that have begun."""
    searches = int(record.get("searches", 1))
    return [f for name in record["algorithms"] for f in searches_of(comparison, user_files.plain_name(name), searches)]


def search_in_words(folder: Path, record: Mapping[str, Any]) -> str:
    """Which of a comparison's searches lies in a folder: `fedavg-again+2 (the control, search 2 of 3)`."""
    (name, number), searches = search_of(folder), record.get("searches", 1)
    what = ["the control"] if name in map(user_files.plain_name, record.get("control", [])[1:]) else []
    what += [f"search {number + 1} of {searches}"] * (searches > 1)
    return f"{folder.name} ({', '.join(what)})" if what else folder.name


def state_of(files: RunFiles, record: Mapping[str, Any]) -> tuple[str, str]:
    """The state (`RunFiles.state_in`), and the same in words."""
    state = files.state_in(record)
    return state, f"{GONE}; {goes_on(files.path, record)}" if state == "abandoned" else state


def _reproduction(files: RunFiles) -> Status:
    record = files.record_with("grid", "state", "runs")
    state, done = files.state_in(record), len(list(files.runs_folder.glob("*.json")))
    over = state != "running"
    again = shlex.join(record.get("command", ())) if over and state != "finished" else ""
    tables = files.markdown_file if files.markdown_file.exists() else None
    return Status(
        run=files.path,
        state=GONE if state == "abandoned" else state,
        over=over,
        left=None if over else time_left.of_reproduction(files, record),
        about=f"reproduction of {record['grid'].get('table')}",
        counted=f"{done} of {several(record['runs'], 'run')} done",
        planned=record["runs"],
        reason=record.get("reason", ""),
        more=(again and f"{again} continues it", f"tables: {near(tables)}" if tables else ""),
    )


def _worker(trial: str, last: Row) -> Worker:
    where = f"{last['hostname']}, process {last['pid']}" if {"hostname", "pid"} <= last.keys() else ""
    rounds = last_round([last]) if last else 0
    return Worker(trial, where, rounds, last.get("time_this_iter_s"), last.get("timestamp"))


def _choice(files: RunFiles, record: Mapping[str, Any]) -> str:
    if not files.choice_folder.exists() or files.final_folder.exists():
        return ""
    done = len(list(files.choice_folder.glob("*.json")))
    runs = several(max(done, usual_runs(int(record.get("choose_seeds") or 1))), "run")
    return f"the best trials are trained on more seeds: {done} of {runs} done"


def _last_lines(files: RunFiles, how: Mapping[str, str]) -> dict[str, str]:
    """The last printed line of each program whose trial has not ended; Ray's list of running trials may be old."""
    logs = {
        trial: sorted(files.outputs_folder.glob(f"{trial}*/{LOG}")) for trial, h in how.items() if h in ALIVE.values()
    }
    lines = {trial: last_line(of[-1]) for trial, of in logs.items() if of}
    return {trial: line for trial, line in lines.items() if line}


def _rung(rung: float, budget: Budget, rows: Logged, how: Mapping[str, str], objective: Objective) -> RungCount:
    reached = {t: [row for row in of if row.get(budget.attribute, 0) >= rung] for t, of in rows.items()}
    first, key = {t: of[0] for t, of in reached.items() if of}, objective.attribute
    on = {t for t in first if last_round(rows[t]) > last_round([first[t]]) or how[t] in ("running", "finished")}
    stopped = sum(how[t] == "stopped" for t in first if t not in on)
    values = {t: float(row[key]) for t, row in first.items() if abs(row.get(key, WORST)) < WORST}
    best = max(values, key=lambda t: objective.sign * values[t], default="")
    where = f"round {rung:g}" if budget.unit == "rounds" else f"{rung:g} {SHORT[budget.unit]}"
    return RungCount(where, len(first), len(on), stopped, best, values.get(best, math.nan))


def _best(
    record: dict[str, Any], rows: Logged, how: Mapping[str, str], goal: Goal, budget: Budget, tested: bool
) -> BestTrials | None:
    """The trials with the best last value, the one that was chosen on more seeds first; None before the first round."""
    stood = [of for of in record.get("choice") or () if not of["reason"]]
    named = max(stood, key=lambda of: goal.first.sign * of[goal.first.name])["trial"] if stood else ""
    objective, constraints = goal.first, "".join(f", {c}" for c in goal.constraints)
    key, best = objective.attribute, {"max": "highest", "min": "lowest"}[objective.mode]
    decide = {o.name: o.attribute for o in goal.objectives} | {c.name: c.attribute for c in goal.constraints}
    names = sorted({n for of in rows.values() for n in of[-1].get("config", {})} & {*record["space"]})
    has_tested = any(objective.tested in row for of in rows.values() for row in of)
    reported = dict.fromkeys([*[objective.tested] * has_tested, *["test_acc"] * tested])
    columns = ["trial", "status", "round", *decide, *reported, *["kept"] * bool(constraints), *names]
    last = {t: of[-1] for t, of in rows.items() if abs(of[-1].get(key, WORST)) < WORST}
    lines = []
    for trial in sorted(in_order(last, how, goal, budget), key=named.__ne__)[:SHOWN]:
        row = last[trial]
        figures = [_shown(n, row[a]) if a in row else "" for n, a in decide.items()]
        values = [short(row.get("config", {}).get(n)) for n in names]
        kept = [["no", "yes"][_keeps(row)]] * bool(constraints)
        of_test = [_tested(rows[trial], name) for name in reported]
        lines.append(
            [trial, how.get(trial, ""), f"{last_round([row])}/{rounds_of(record)}", *figures, *of_test, *kept, *values]
        )
    if not last:
        return None
    columns = [column + unit_of(column)[2] * (column not in names) for column in columns]
    title = f"{best} last {objective.name}{constraints}{', the chosen one first' * bool(named)}"
    return BestTrials(title, columns, lines, float(last[lines[0][0]][key]))


def in_order(last: Mapping[str, Row], how: Mapping[str, str], goal: Goal, budget: Budget) -> list[str]:
    """Trials by their last rows: those of `chosen` first, then others, those that break a constraint, diverged ones."""
    first = chosen(last, how, goal, budget)

    def place(trial: str) -> tuple[bool, bool, float, float]:
        return how.get(trial) == "diverged", not _keeps(last[trial]), *_worth(last[trial], goal)

    return [*first, *sorted((t for t in last if t not in first), key=place)]


def chosen(last: Mapping[str, Row], how: Mapping[str, str], goal: Goal, budget: Budget) -> list[str]:
    """The trials that could be named if the search ended now, the best first, as `tables.best_trials` has it.

    The finished ones, or else those that trained longest, if they keep the constraints.  last: rows with a value.
    """
    fine = [t for t in last if how.get(t) not in ("diverged", "failed")]
    used = {t: last[t].get(budget.attribute, 0) for t in fine}
    longest = [t for t in fine if how.get(t) == "finished"] or [t for t in fine if used[t] == max(used.values())]
    return sorted(filter(lambda t: _keeps(last[t]), longest), key=lambda t: _worth(last[t], goal))


def _worth(row: Row, goal: Goal) -> tuple[float, float]:
    """What trials are sorted by, the best first: the objective; the validation loss breaks ties."""
    return -goal.first.sign * row[goal.first.attribute], float(row.get("val_loss", WORST))


def _keeps(row: Row) -> bool:
    """Whether a trial keeps the constraints; of a running one, whether it would at its end."""
    return not any(excess > 0 for excess in row.get(EXCESSES) or ())


def _tested(rows: list[Row], name: str) -> str:
    last = next((row for row in reversed(rows) if name in row), None)
    if last is None:
        return ""
    return _shown(name, last[name]) + ("" if last is rows[-1] else f" (round {last_round([last])})")


def _shown(name: str, value: float) -> str:
    """A metric in a table whose heading has its unit."""
    scale, form, _ = unit_of(name)
    return f"{scale * value:{form}}"


def last_round(rows: list[Row]) -> int:
    """The last round of a trial."""
    return int(rows[-1]["training_iteration"])
