"""`fedtune check PROGRAM.toml`: short runs of a program, and what they say about searching it."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedtune.core.errors import Diverged, UserError
from fedtune.core.hyper import Hyperparameter
from fedtune.core.terminal import few, several
from fedtune.programs import command, figure_line, flower, idle, touched, workload
from fedtune.programs.program_file import Program
from fedtune.programs.rows import Figure
from fedtune.programs.run import CHECKPOINT, ProgramRun, Stopped
from fedtune.programs.workload import ProgramWorkload

REPORTS = 3  # of each run, if nothing is said
TRIED = 10  # hyperparameters that are given another value, at most
TIMES, AND = 10, 10.0  # a run with another value may take so many times as long as the first, and so many seconds more
BURST = 0.001  # seconds between figures that came at once
QUICK = 1.0  # seconds of a run in which it does not matter when figures come
WRITES = 2.0  # seconds in which a program must have begun a checkpoint
SMALLER = "smaller differences between trials say nothing"
ERRORS = (UserError, Diverged, Stopped)
Status = Literal["passed", "advice", "failed", "skipped"]  # failed: a search would be wrong
Said = tuple[Status, str]
WORDS = {"passed": "passed ", "advice": "advice ", "failed": "FAILED ", "skipped": "skipped"}
ADVICE = {  # what to do, in a program and in a Flower app
    "draws": (
        "seed every generator that the program draws from",
        "fedtune seeds Python, NumPy and PyTorch; seed what else the app draws from, for example by a key seed of its "
        'run config, context.run_config["seed"]',
    ),
    "seed": ("see whether the program uses its seed", "see what the app seeds by itself"),
    "value": ("see whether the program uses it", "see whether the app reads it from context.run_config"),
    "file": ("write {trial} or {folder} in its name", "write context.run_id in its name"),
    "tests": (
        'name test rows in [check], or report a metric with split = "test"',
        'let the server evaluate on test rows, and declare that metric with split = "test"',
    ),
}


class Finding(NamedTuple):
    """What was found about one question, and what to do."""

    status: Status
    name: str
    says: str


class Trial(NamedTuple):
    """What a short run gave."""

    rows: list[dict[str, Any]]
    seconds: float
    error: Exception | None
    notes: list[str]
    first_figures: list[Figure]  # of each metric
    written: set[Path]  # files outside its own folder
    read: set[Path]  # those of them that it may have read too

    @property
    def figures(self) -> tuple[list[dict[str, str]], str]:
        """What is equal for equal runs: the figures of all rounds, and the error that ended them, if any did."""
        rows = [{n: repr(v) for n, v in row.items() if n not in ("seconds", "eval_seconds")} for row in self.rows]
        return rows, type(self.error).__name__


class ProgramCheck:
    """Short runs of a program, which begin when `judge` is asked for what it finds."""

    def __init__(
        self,
        what: str | ProgramWorkload,
        rounds: int | None = None,
        set: Mapping[str, Any] | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        """UserError for a wrong program file.

        what     the program file, or a program
        rounds   of each run, at most, up to the next report; default: those of REPORTS
        set      hyperparameters to hold fixed
        tell     is told what runs
        """
        if rounds is not None and rounds < 1:
            raise UserError(f"--rounds must be 1 or more, but got {rounds}")
        self.workload = workload.of_file(what, pinned=set) if isinstance(what, str) else what
        self.program = self.workload.program
        reports = REPORTS if rounds is None else -(-rounds // self.program.every)
        self.rounds = min(reports * self.program.every, self.program.rounds)
        self.judged: list[Finding] = []
        self._tell, self._number, self._trials = tell, 0, list[Trial]()
        self._place = touched.folder(self.program.path, self.program.folder)
        self._short = self._few_rounds(self.program)
        self._searched = [name for name in self.program.searched if name not in self.workload.pinned]

    def title(self) -> list[str]:
        """What is checked, in lines."""
        of = f" (of {self.program.rounds})" if self.rounds < self.program.rounds else ""
        runs = f"runs of {several(self.rounds, 'round')}{of}"
        return [f"{self.workload.name} (your program): {runs}", *self.workload.describe()]

    def judge(self) -> Iterator[Finding]:
        """What is found, as soon as it is known."""
        with tempfile.TemporaryDirectory(prefix="fedtune-", ignore_cleanup_errors=True) as root:
            self._root = Path(root)
            try:
                for name, (status, says) in self._judge():
                    self.judged.append(Finding(status, name, says))
                    yield self.judged[-1]
            finally:
                idle.close()

    @property
    def failed(self) -> bool:
        """Whether something was found that makes a search wrong."""
        return any(finding.status == "failed" for finding in self.judged)

    def summary(self) -> str:
        """How the check came out."""
        count = {status: sum(f.status == status for f in self.judged) for status in WORDS}
        advice = f"; {several(count['advice'], 'line')} of advice" if count["advice"] else ""
        if self.failed:
            return f"a search would go wrong: {count['failed']} of {len(self.judged)} failed{advice}"
        return f"nothing here would make a search go wrong{advice}"

    def _judge(self) -> Iterator[tuple[str, Said]]:
        yield "selection", self._selection()
        first = self._run("the defaults", self._short)
        yield "rounds", self._came(first)
        for figure in first.first_figures:  # only a person can see whether that is the one that is meant
            says = f"{figure.metric.name}, {figure_line.rows_by(figure.metric)}: {figure_line.shown(figure)}"
            doubts = figure_line.doubts(figure)
            yield "line", ("advice" if doubts else "passed", "; ".join([says, *doubts]))
        if first.error:
            return
        for note in first.notes:
            yield "end", ("advice", note)
        yield "figures", self._when(first)
        again = self._run("the same again", self._short)
        self._repeats = again.figures == first.figures
        yield "same seed" if self.workload.traits.repeatable else "noise", self._repetition(first, again)
        if again.error:
            return
        if self.workload.traits.repeatable:
            yield "noise", self._other_seed(first)
        for said in self._hyperparameters(first):
            yield "hyperparameters", said
        yield "files", self._files()
        yield "checkpoint", self._checkpoint(first)
        yield "final check", self._final_check()

    # --- runs

    def _few_rounds(self, program: Program) -> Program:
        """The program with few rounds if it is given their number; otherwise it is closed after as many."""
        return replace(program, rounds=self.rounds) if program.told_rounds else program

    def _new(self, what: str, program: Program, config: Mapping[str, Any] | None = None, seed: int = 0) -> ProgramRun:
        """A run that has not started, in a folder of its own."""
        self._number += 1
        self._tell(f"run {self._number}: {what}")
        folder, values = self._root / f"check-{self._number}", {**(config or {}), **self.workload.pinned}
        return ProgramRun(program=program, config=values, seed=seed, folder=folder, selects=program.selectable())

    def _run(self, what: str, program: Program, config: Mapping[str, Any] | None = None, seed: int = 0) -> Trial:
        """A run's first rows."""
        before = touched.states(self._place)
        trial = self._rows(self._new(what, program, config, seed))
        written, read = touched.between(before, touched.states(self._place))
        self._trials.append(trial._replace(written=written, read=read))
        return self._trials[-1]

    def _rows(self, run: ProgramRun) -> Trial:
        """The rows of a run up to the last that is wanted; it is closed after that."""
        rows, error, began = [], None, time.monotonic()
        try:
            while run.round < self.rounds:
                rows.append(run.step())
        except ERRORS as found:
            error = found
        finally:
            seconds = time.monotonic() - began
            run.close()
        return Trial(
            rows=rows,
            seconds=seconds,
            error=error,
            notes=run.take_notes(),
            first_figures=run.first_figures,
            written=set(),
            read=set(),
        )

    # --- figures

    def _selection(self) -> Said:
        try:
            name = self.workload.measures.objective
        except UserError as error:
            return "failed", str(error)
        metric, advice = self.program.metrics[name], list[str]()
        validates = metric.split == "validation" or name.startswith("val_")
        if metric.split is None and not validates:
            advice.append('the file does not say on which rows it is measured: write split = "validation" if it is so')
        if metric.split == "train":
            advice.append("it is measured on training rows, and says little about new data: report validation figures")
        if not metric.mode:
            advice.append('the file does not say its direction: write mode = "max" or "min"')
        says = f"{name} selects" + f", taken as {figure_line.rows_by(metric)}" * validates
        if self.program.reported:
            says += f"; of test rows, and only reported: {few(self.program.reported)}"
        return "advice" if advice else "passed", "; ".join([says, *advice])

    def _came(self, first: Trial) -> Said:
        if first.error:
            return "failed", str(first.error)
        begin, *gaps = (row["seconds"] for row in first.rows)
        reports = f" in {several(len(first.rows), 'report')}" * (self.program.every > 1)
        says = f"{several(first.rows[-1]['round'], 'round')} came{reports}, the first after {lasting(begin)}"
        if not gaps:
            return "passed", says
        each = sum(gaps) / len(gaps)
        startup, rest = max(0.0, begin - each), self.program.rounds // self.program.every * each
        whole = f"a whole run of {several(self.program.rounds, 'round')} (about {lasting(startup + rest)})"
        says += f", then one in {lasting(each)}; start-up takes {lasting(startup)} of {whole}"
        if startup > max(QUICK, rest):
            return "advice", f"{says}; each trial pays for that: load less, or keep prepared data"
        return "passed", says

    def _when(self, first: Trial) -> Said:
        """Whether figures come when they are there, or all at the end."""
        names, gaps = few(list(self.program.metrics)), [row["seconds"] for row in first.rows[1:]]
        if self.program.every == self.program.rounds > 1:
            return "advice", f"{names} came once, at the end: no trial can be stopped early; report more often"
        if max(gaps, default=0) > BURST:
            return "passed", f"{names} came round by round"
        if not gaps or first.seconds < QUICK:
            return "passed", f"{names} came{', at once as far as can be told' * bool(gaps)}"
        came = f"{names} of {several(len(first.rows), 'round')} came at once after {lasting(first.rows[0]['seconds'])}"
        return "advice", (
            f"{came}; if the program trains before, no trial can be stopped early: let it flush each round when it "
            "ends, or try pty = true, as many programs flush each line on a terminal"
        )

    # --- chance

    def _repetition(self, first: Trial, again: Trial) -> Said:
        if again.error:
            return "failed", f"the same run fails when it is repeated: {again.error}"
        if self.workload.traits.repeatable and self._repeats:
            return "passed", "the same seed gives the same figures"
        if self.workload.traits.repeatable:
            says = f"the same seed gives other figures: {self._apart(first, again)}; trials cannot be repeated"
            return "advice", f"{says}: {self._advice('draws')}"
        if self._repeats:
            says = (
                "two runs give the same figures although the program is given no seed; the final check shows no noise"
            )
        else:
            says = f"two runs without a seed differ: {self._apart(first, again)}; {SMALLER}, and none can be repeated"
        return "advice", f"{says}: give {{seed}} to the program if it takes one"

    def _other_seed(self, first: Trial) -> Said:
        other = self._run("another seed", self._short, seed=1)
        if other.error:
            return "failed", f"it fails with another seed: {other.error}"
        if other.figures != first.figures:
            return "passed", f"seeds 0 and 1 differ: {self._apart(first, other)}; {SMALLER}"
        says = "seeds 0 and 1 give the same figures, so the final check would show no noise"
        return "advice", f"{says}; {self._advice('seed')}"

    def _apart(self, first: Trial, other: Trial) -> str:
        """How far two runs are apart in what selects, in the last round; or else where they differ."""
        mine, names = {row["round"]: row for row in first.rows}, [*self.program.metrics]
        with suppress(UserError):
            names.insert(0, self.workload.measures.objective)
        pairs = [
            (name, mine[row["round"]][name], row[name], row["round"]) for name in names for row in other.rows[::-1]
        ]
        name, one, two, number = next(pair for pair in pairs if repr(pair[1]) != repr(pair[2]))
        return f"{name} {one:.6g} and {two:.6g} in round {number}, {abs(one - two):.3g} apart"

    # --- hyperparameters

    def _hyperparameters(self, first: Trial) -> Iterator[Said]:
        if not self._searched:
            yield "skipped", "none is searched; declare ranges in [space]"
            return
        effects = {name: self._without_effect(name, first) for name in self._searched[:TRIED]}
        if not self._repeats:
            yield "skipped", "figures differ from run to run, so what changes nothing cannot be told"
        elif good := [name for name, says in effects.items() if not says]:
            yield "passed", f"{', '.join(good)}: another value gives other figures"
        for says in filter(None, effects.values()):
            yield "advice", says
        if left := self._searched[TRIED:]:
            yield "skipped", f"{', '.join(left)}: not tried, to save time; fix others by --set to try them"

    def _without_effect(self, name: str, base: Trial) -> str:
        """What is wrong with another value of a hyperparameter; "" if it has an effect."""
        config = self._where_it_exists(name)
        # an end to what a slow value may cost: that it is slow is an effect too
        longest = min(self._short.longest_round, TIMES * base.seconds + AND)
        program = replace(self._short, longest_round=longest / self.program.every)
        if config != self.workload.configuration({}):
            base = self._run(f"where {name} exists", program, config)
        value = _far(self.program.hyper[name], config[name])
        before, after = command.text(config[name]), command.text(value)
        other = self._run(f"{name} = {after}", program, config | {name: value})
        if isinstance(other.error, UserError) and other.seconds < longest:
            return f"{name} = {after} fails, and so would trials with such a value: {other.error}"
        if other.figures != base.figures or not self._repeats:
            return ""
        says = f"{name} changed nothing in {several(self.rounds, 'round')}: {before} and {after} give the same figures"
        return f"{says}; {self._advice('value')}, or try more rounds by --rounds"

    def _where_it_exists(self, name: str) -> dict[str, Any]:
        """The defaults, but for what the conditions of a hyperparameter ask for."""
        config, todo = self.workload.configuration({}), [name]
        for one in todo:
            for other, values in self.program.conditions.get(one, {}).items():
                config[other] = config[other] if config[other] in values else values[0]
                todo.append(other)
        return config

    # --- files, going on

    def _files(self) -> Said:
        """What two trials both write: the second run had the values of the first, later ones had others."""
        both = self._trials[0].written & self._trials[1].written
        if not both:
            return "passed", f"two trials write no file in common ({self._seen()})"
        always = both.intersection(*(trial.written for trial in self._trials if not trial.error))
        copies = not self.program.isolate and all(p.is_relative_to(Path(self.program.folder).resolve()) for p in both)
        own = self._advice("file") + ', or isolate = "copy"' * copies
        if not always:
            says = f"two trials with the same values would both write {self._paths(both)}"
            return "advice", f"{says}; {own} if there can be such"
        if read := {path for path in always if any(path in trial.read for trial in self._trials)}:
            return "failed", f"every trial writes {self._paths(read)} and it is read, so two at once spoil it; {own}"
        says = (
            f"every trial writes {self._paths(always)}, and none reads it, so figures are right, but the last one stays"
        )
        return "advice", f"{says}; to keep all, {own}"

    def _seen(self) -> str:
        where = os.path.relpath(self._place, self.program.folder)
        return f"looked at: {'its folder' if where == '.' else where}"

    def _paths(self, paths: set[Path]) -> str:
        return few(sorted(os.path.relpath(path, Path(self.program.folder).resolve()) for path in paths))

    def _checkpoint(self, first: Trial) -> Said:
        """Whether it goes on from its checkpoint with the figures of an undisturbed run."""
        seen = self.rounds - self.program.every
        if not self.program.checkpointed() or not seen:
            why = "going on takes two reports" if self.program.checkpointed() else "it has none"
            return "skipped", f"{why}: a trial that is interrupted begins again"
        run = self._new("up to its checkpoint", self._short)
        try:
            while run.round < seen:
                run.step()
            if not _is_written(run.folder / CHECKPOINT):
                return "advice", f"nothing was in {{checkpoint}} after {several(seen, 'round')}; write it every round"
            run.save(self._root / "saved")
        except ERRORS as error:
            return "failed", str(error)
        finally:
            run.close()
        again = self._new("on from its checkpoint", self._short)
        again.load(self._root / "saved")
        return self._continued(first, self._rows(again), f"it goes on after round {seen}")

    def _continued(self, first: Trial, rest: Trial, says: str) -> Said:
        if rest.error or rest.notes:
            return "advice", str(rest.error or rest.notes[0])
        if not self._repeats:
            return "passed", f"{says}; figures differ from run to run, so they were not compared"
        if rest.figures[0] == first.figures[0][-len(rest.rows) :]:
            return "passed", f"{says}, with the figures of an undisturbed run"
        says += f" with other figures than an undisturbed run: {self._apart(first, rest)}"
        return "advice", f"{says}; keep the states of optimizers and of random generators too"

    def _final_check(self) -> Said:
        if check := self.program.check:
            trial = self._run("[check]'s command", self._few_rounds(check))
            if trial.error:
                return "failed", f"[check]'s command: {trial.error}"
            return "passed", f"[check]'s command runs, and reports {few(list(check.metrics))}"
        if self.program.reported:
            return "passed", f"it reports {few(self.program.reported)}, of test rows"
        return "advice", f"it can only report what selected, which is too good; {self._advice('tests')}"

    def _advice(self, about: str) -> str:
        return ADVICE[about][flower.is_app(self.program)]


def lines(finding: Finding) -> list[str]:
    """A finding as a line of the page; where a program failed, its last output is below."""
    return f"{WORDS[finding.status]}  {finding.name:15}  {finding.says}".split("\n")


def lasting(seconds: float) -> str:
    """A duration in words."""
    if seconds < 0.001:
        return "less than 1 ms"
    if seconds < 100:
        return f"{seconds:.2g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def _far(hp: Hyperparameter, value: Any) -> Any:
    """Another choice, or the end of the range that is farther from a value."""
    if hp.choices:
        return next(choice for choice in reversed(hp.choices) if choice != value)
    assert hp.low is not None and hp.high is not None
    scale = math.log if hp.log else float
    return hp.low if scale(value) - scale(hp.low) > scale(hp.high) - scale(value) else hp.high


def _is_written(folder: Path) -> bool:
    """Whether something is in a folder, now or soon."""
    end = time.monotonic() + WRITES
    while not (there := folder.is_dir() and any(folder.iterdir())) and time.monotonic() < end:
        time.sleep(0.005)
    return there
