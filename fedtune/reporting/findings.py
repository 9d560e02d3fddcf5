"""A search's results in words and small tables, from its folder: what was found, how sure it is, and the caveats."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from fedtune.analysis import frames
from fedtune.core import statistics
from fedtune.core.budget import SHORT
from fedtune.core.errors import UserError
from fedtune.core.hyper import Hyperparameter
from fedtune.core.metrics import label
from fedtune.core.objectives import BY_ACCURACY, Goal
from fedtune.core.terminal import several, short
from fedtune.experiment.scenarios import in_words
from fedtune.reporting.templates import TextTable, code
from fedtune.runs import reading, tables
from fedtune.runs.choice import TOP
from fedtune.runs.files import AGAIN, OVER, RunFiles, goes_on, search_of
from fedtune.runs.trial_states import UNTRAINED, counts_in_words
from fedtune.tuning import schedulers, searchers, verdict
from fedtune.tuning.checked import FinalCheck
from fedtune.tuning.options.search import SearchOptions


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The contents of a search's folder: its record, its trials, the best one, and statements about them."""

    run: Path
    record: dict[str, Any]
    trials: pd.DataFrame
    rounds: pd.DataFrame
    state: str  # from `RunFiles.state_in`
    best: pd.Series | None  # a row of trials
    config: dict[str, Any]  # the best trial's searched values
    yaml: str  # best.yaml's text, "" before there is one
    scenario: str  # its name where that is known, else its data set
    default: dict[str, Any]  # every hyperparameter's default here; {} if this fedtune cannot tell
    check: FinalCheck | None

    @property
    def name(self) -> str:
        """The name of the study's folder."""
        return self.run.absolute().name

    @property
    def title(self) -> str:
        """The algorithm and its scenario, in words; of a comparison's searches also a second name, and the number."""
        who = str(self.record["algorithm"])
        name, number = search_of(self.run) if self.is_in_comparison else (who, 0)
        which = f", search {number + 1}" if number else ""
        who = name if name.endswith(AGAIN) else who  # the control
        if "scenario" not in self.record:
            return f"{who} (a program){which}"
        given = (self.record.get("options") or {}).get("fields")
        fixed = {n: v for n, v in self.record["scenario"].items() if n not in self.searched}
        scenario = in_words(self.scenario, fixed, given if isinstance(given, dict) else ())
        return f"{who} on {scenario}{which}"

    @property
    def goal(self) -> Goal:
        """The objectives and constraints."""
        return Goal.from_record(self.record)

    @property
    def is_in_comparison(self) -> bool:
        """Whether it is one of a comparison's searches, which get more trials together."""
        return RunFiles(self.run.absolute().parent).is_comparison

    @property
    def is_extendable(self) -> bool:
        """Whether resume gives this search more trials."""
        r, over = self.record, self.state in OVER and "replays" not in self.record
        more = searchers.extendable(r.get("searcher"), r.get("scheduler")) and not r.get("whole")
        return over and more and not (self.is_in_comparison or (r.get("options") or {}).get("trials_drawn"))

    @property
    def score(self) -> float:
        """The best trial's objective in its last round; not a number without a best one."""
        return math.nan if self.best is None else float(self.best[self.goal.first.column])

    @property
    def scored(self) -> str:
        """The best trial's objective, in words."""
        return f"{self.in_words} {statistics.figure(self.goal.first.name, self.score)}"

    @property
    def in_words(self) -> str:
        """The objective's name in words."""
        return label(self.goal.first.name)

    @property
    def sends(self) -> bool:
        """Whether it is known, or may become known, how much trials send."""
        return self.rounds.empty or bool(self.rounds["comm_mb"].notna().any())

    @property
    def searched(self) -> list[str]:
        """The hyperparameters that were searched."""
        return list(self.record.get("space") or {}) or frames.hyperparameters(self.trials)

    def counts(self) -> str:
        """How the trials ended, in words."""
        numbers, ended = self.trials["status"].value_counts(), len(self.trials)
        by_status = counts_in_words(numbers)
        planned = self.record.get("trials", ended)
        trials = f"{ended} of {several(planned, 'trial')}" if planned > ended else several(ended, "trial")
        return trials + (f": {by_status}" if by_status else "")

    def answer(self) -> TextTable:
        """Each searched hyperparameter: name with symbol, the best's value, the default, the range, what it is."""
        assert self.best is not None
        space, declared = self.record.get("space") or {}, hyperparameters(self.record)
        values = self.record.get("default_config", self.default)
        rows: list[tuple[str, ...]] = []
        for n in self.searched:
            hp = declared.get(n)
            symbol = f"{n} ({hp.symbol})" if hp and hp.symbol else n
            lacking = "–" if values else "?"  # nothing is known of it
            default = lacking if n not in values else "none" if values[n] is None else short(values[n])
            best = Markup("<strong>{}</strong>").format(short(self.config[n]) if n in self.config else "–")
            rows.append((symbol, best, default, space.get(n, ""), code(hp.help if hp else "")))
        described = any(row[-1] for row in rows)  # a program's are not
        columns = ("hyperparameter", "best", "default", "range", *["what it is"] * described)
        rows = [row[: len(columns)] for row in rows]
        return TextTable(f"Best configuration (trial {self.best['trial']})", columns, rows, (columns[0], *columns[3:]))

    @property
    def nothing(self) -> str:
        """Why there is no best trial."""
        reason = self.record.get("reason") if self.state == "nothing found" else ""
        return reason or verdict.nothing(self.goal, unit_of(self.record), self.trials)

    @property
    def test_text(self) -> str:
        """The best trial's figure of test rows that matches the objective, in words; "" without one."""
        figures = {} if self.best is None else tables.tested(self.best, self.goal.first)
        if not figures:
            return ""
        name, value = next(iter(figures.items()))
        used = "reported and never used" if name not in self.goal.names else "which has selected it"
        at = f" in round {figures['test_round']}" if "test_round" in figures else ""
        return f"{label(name)} {statistics.figure(name, value)}{at}, {used}"

    def gap(self) -> float:
        """The search's objective minus that on fresh seeds; NaN without a check."""
        name = self.goal.first.name
        if self.best is None or not self.check or name not in self.check.runs:
            return math.nan
        return self.score - statistics.mean(self.check.of("best", name)).mean

    def ended(self) -> str:
        """How the best trial ended in the search, and how far that was from its figures on fresh seeds."""
        if self.best is None:
            return ""
        tested, rounds = f" ({self.test_text})" if self.test_text else "", several(self.best["rounds"], "round")
        text = f"In the search this trial ended with {self.scored} after {rounds}{tested}."
        if self.check is None or math.isnan(self.gap()):
            return text
        where = "On the fresh seeds" if self.check.repeatable else "When it is repeated,"
        there = f"{where} its {self.in_words} is {self.check.text('best', self.goal.first.name)}"
        gap = statistics.gained(self.goal.first.name, self.gap(), sign="+")
        return f"{text} {there}: a selection gap of {gap} (the search's figure minus this one)."

    def run_command(self) -> str:
        """The command that trains the best configuration again."""
        file = RunFiles(self.run).best_file
        if "program" in self.record:
            best = _read_best(file)
            files = "  # with the files in best.yaml" if best.get("files") else ""
            return f"cd {shlex.quote(str(best.get('folder', '.')))} && {best.get('command', '')}{files}"
        try:
            data = SearchOptions.from_record(self.record).data_dir
        except UserError:
            data = None
        return command("run", "--config", file, *(["--data-dir", data] if data else []))

    def first_warnings(self) -> list[str]:
        """What to know before you read on: that it is not over, and that it has selected on test rows."""
        on_test = [sentence(line, [self.record["algorithm"]]) for line in verdict.on_test_rows(self.record)]
        return [*on_test, *of_state(self.run, self.state, self.record)]

    def warnings(self) -> list[str]:
        """The other caveats: what to know before you trust the result."""
        lines = [sentence(line, [self.record["algorithm"]]) for line in verdict.unseeded(self.record)]
        lines += map(sentence, verdict.unheard(self.record))
        return [*lines, *_of_check(self), *_of_trials(self)]


def read(run: Path, checked: list[dict[str, Any]] | None = None) -> Findings:
    """A study's folder, in any state; UserError if it is not a study's folder.

    checked: rows of the check on fresh seeds, where they are elsewhere than in run.json.
    """
    record, files = frames.record(run), RunFiles(run)
    trials, rounds = frames.load(run)
    now, goal = files.state_in(record), Goal.from_record(record)
    if any(row.get(goal.first.name) is None for row in record.get("choice", ())):
        raise files.damaged(f"its choice lacks {goal.first.name}")
    told = now not in ("running", "abandoned")  # best.yaml and the check are from then
    text = reading.text(files.best_file) if told else ""
    best_file = _read_best(files.best_file) if text else {}
    best = None if now == "nothing found" else _best(trials, best_file, unit_of(record), goal)
    values = {} if best is None else {c: best[c] for c in best.index if c.startswith(frames.CONFIG)}
    rows = checked or (record.get("final") if told else [])
    return Findings(
        run=run,
        record=record,
        trials=trials,
        rounds=rounds,
        state=now,
        best=best,
        config=tables.plain({c.removeprefix(frames.CONFIG): v for c, v in values.items()}),
        yaml=text,
        scenario=str(best_file.get("scenario") or record.get("scenario_name", "")),
        default=record.get("defaults", {}),
        check=FinalCheck(pd.DataFrame(rows), goal.first, record.get("repeatable", True)) if rows else None,
    )


def command(*words: object) -> str:
    """A command of fedtune as pages have it, which are read elsewhere than where they were made."""
    return shlex.join(["fedtune", *map(str, words)])


def unit_of(record: Mapping[str, Any]) -> str:
    """The unit of a search's budget: rounds, mb, seconds or sim_seconds."""
    return str((record.get("budget") or {}).get("unit", "rounds"))


def hyperparameters(record: dict[str, Any]) -> dict[str, Hyperparameter]:
    """The hyperparameters that were searched, as they were declared then."""
    return {name: Hyperparameter.from_record(name, content) for name, content in (record.get("declared") or {}).items()}


def search_settings(record: Mapping[str, Any]) -> str:
    """Trial length, searcher, scheduler and rungs, in words."""
    unit = SHORT.get(unit_of(record))
    length = f"up to {several(reading.rounds_of(record), 'round')}"
    length += f" or {short(record['budget']['limit'])} {unit}" if unit else ""
    rungs = ", ".join(map(short, record.get("rungs") or []))
    goal, seeds = Goal.from_record(record), record.get("choose_seeds") or 1
    parts = (
        length,
        record.get("searcher", ""),
        record.get("scheduler", "") + (f" with rungs at {rungs}" if rungs else ""),
        f"for {goal.in_words}" if goal != BY_ACCURACY else "",
        f"the best {TOP} on {several(seeds - 1, 'more seed')}" if seeds > 1 else "",
    )
    return ", ".join(filter(None, parts))


def of_state(run: Path, now: str, record: dict[str, Any]) -> list[str]:
    """The caveats of a search or comparison that is not over, or did not end normally."""
    resume = goes_on(run, record, command)
    why = f" ({record['reason']})" if record.get("reason") else ""
    by_state = {
        "running": "It is still running, so everything here may change.",
        "abandoned": f"It did not finish, and its driver is gone; {resume}.",
        "interrupted": f"It was interrupted{why}; {resume}.",
        "failed": f"It failed{why}; {resume} once that is fixed.",
    }
    return [by_state[now]] if now in by_state else []


def _read_best(file: Path) -> dict[str, Any]:
    """The content of best.yaml; nothing if it is damaged, as the page shows its text."""
    try:
        return reading.best(file)
    except (OSError, ValueError):
        return {}


def _best(trials: pd.DataFrame, best: dict[str, Any], unit: str, goal: Goal) -> pd.Series | None:
    named = trials[trials["trial"] == str((best.get("found") or {}).get("trial"))]
    return tables.best_trial(trials, unit, goal) if named.empty else named.iloc[-1]


def _of_check(f: Findings) -> list[str]:
    if f.best is None:
        return []
    if not f.check:
        return [
            "There was no check on fresh seeds. The search's own figure is too optimistic by an unknown amount, "
            "because it is the best of many."
        ]
    what, vary = ("fresh seed", "vary between seeds") if f.check.repeatable else ("repetition", "vary")
    return [f"The check used one {what} only, so how much results {vary} is unknown."] * (f.check.seeds == 1)


def _of_trials(f: Findings) -> list[str]:
    warnings, status = [], f.trials["status"].astype(str)
    for how in ("diverged", "failed", UNTRAINED):
        if bad := int((status == how).sum()):
            reasons = f.trials.loc[(status == how) & (f.trials["reason"] != ""), "reason"]
            why = "".join(reasons[:1]).strip().removeprefix(f"{UNTRAINED}: ")
            first = f" (the first: {why.splitlines()[-1]})" if why else ""
            warnings.append(f"{bad} of {several(len(status), 'trial')} {'were ' * (how == UNTRAINED)}{how}{first}.")
    if f.best is not None and str(f.best["status"]) != "finished":
        warnings.append(f"No trial finished: the best is the {f.best['status']} one that trained longest.")
    if schedulers.moves_hyperparameters(f.record.get("scheduler")):
        warnings.append(
            "PBT changed the hyperparameters during training. Training with the last values, shown here, gives a "
            "different figure."
        )
    if len(f.goal.objectives) > 1:
        extreme = "highest" if f.goal.first.sign > 0 else "lowest"
        warnings.append(
            f"The best is the finished trial with the {extreme} {f.in_words}; it need not be on the Pareto front of "
            f"{f.goal.all_in_words}."
        )
    warnings += map(sentence, RunFiles(f.run).of_privacy)
    if f.best is not None:
        warnings += [_of_constraints(f)] * bool(f.goal.constraints)
        learns = "" if f.record.get("whole") else str(f.record.get("searcher"))  # of a whole grid nothing is sampled
        resume = command("resume", f.run) if f.is_extendable else None if f.state in OVER else ""
        space = f.record.get("space") or {}
        warnings += map(sentence, verdict.caveats(learns, len(f.trials), f.config, space, resume))
    unjudged = [sentence(str(text), [f.record["scheduler"]]) for text in [f.record.get("unjudged")] if text]
    return [*warnings, *unjudged]


def sentence(text: str, names: Collection[str] = ()) -> str:
    """A line of a terminal as a sentence of a page.  names: words that stay as they are."""
    return f"{text}." if text.split(" ")[0] in names else f"{text[:1].upper()}{text[1:]}."


def _of_constraints(f: Findings) -> str:
    eligible = tables.to_choose_from(f.trials, unit_of(f.record))
    satisfying = f"{len(tables.keeping(eligible, f.goal))} of {several(len(eligible), 'eligible trial')}"
    text = f"The best trial satisfies {' and '.join(map(str, f.goal.constraints))}, as {satisfying} do"
    for c in f.goal.constraints:
        values = f.check.of("best", c.name) if f.check and c.name in f.check.runs else pd.Series()
        if f.check and values.notna().any():
            on_fresh, runs = int((values.map(c.excess) <= 0).sum()), several(len(values), "run")
            text += f"; {f.check.where_text} {on_fresh} of {runs} satisfy {c}"
    return text + "."
