"""`fedtune check PROGRAM.toml`: short runs of a program, and what they say about searching it."""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from fedtune.core.errors import Diverged, UserError
from fedtune.core.findings import Finding, Status
from fedtune.core.terminal import few, several
from fedtune.programs import command, flower
from fedtune.programs.program_file import Program
from fedtune.programs.run import CHECKPOINT, ProgramRun, Stopped
from fedtune.programs.workload import ProgramWorkload

REPORTS = 3  # of each run, if nothing is said
TRIED = 10  # hyperparameters that are given another value, at most
TIMES, AND = 10, 10.0  # a run with another value may take so many times as long as the first, and so many seconds more
BURST = 0.001  # seconds between figures that came at once
QUICK = 1.0  # seconds of a run in which it does not matter when figures come
WRITES = 2.0  # seconds in which a program must have begun a checkpoint
SHARED = ("__pycache__", ".lock", ".pyc")  # ends of names: what any number of processes may write at once
Said = Iterator[tuple[Status, str]]


class Trial(NamedTuple):
    """What a short run gave."""

    run: ProgramRun
    rows: list[dict[str, Any]]
    seconds: float
    error: Exception | None
    written: set[Path]  # files outside its own folder
    read: set[Path]  # those of them that it may have read too


class ProgramCheck:
    """Short runs of a program, which begin when `judge` is asked for what it finds."""

    def __init__(
        self, workload: ProgramWorkload, rounds: int | None = None, tell: Callable[[str], None] = lambda line: None
    ) -> None:
        """rounds: of each run, at most, up to the next report; default: those of REPORTS.  tell: is told what runs."""
        if rounds is not None and rounds < 1:
            raise UserError(f"--rounds must be 1 or more, but got {rounds}")
        self.workload, self.program = workload, workload.program
        reports = REPORTS if rounds is None else -(-rounds // self.program.every)
        self.rounds = min(reports * self.program.every, self.program.rounds)
        self._tell, self._trials, self._number = tell, list[Trial](), 0
        self._place = _place(self.program.path, self.program.folder)

    def title(self) -> str:
        """What is checked, in lines."""
        runs = f"runs of {several(self.rounds, 'round')} (of {self.program.rounds})"
        return "\n".join([f"{self.workload.name} (your program): {runs}", *self.workload.describe()])

    def judge(self) -> Iterator[Finding]:
        """What is found, as soon as it is known; without figures no more is asked."""
        questions = {"selection": self._selection, "rounds": self._rounds, "line": self._lines, "noise": self._noise}
        questions |= {"hyperparameters": self._hyperparameters, "files": self._files, "checkpoint": self._checkpoint}
        questions |= {"final check": self._final_check}
        with tempfile.TemporaryDirectory(prefix="fedtune-", ignore_cleanup_errors=True) as root:
            self._root = Path(root)
            for name, asked in questions.items():
                for status, says in asked():
                    yield Finding(status, name, says)
                if any(trial.error for trial in self._trials[:2]):
                    return

    def _new(self, what: str, program: Program, config: Mapping[str, Any] = {}, seed: int = 0) -> ProgramRun:
        """A run that has not started, of few rounds if it is given their number, in a folder of its own."""
        self._number += 1
        self._tell(f"run {self._number}: {what}")
        short = replace(program, rounds=self.rounds) if program.uses("rounds") else program
        return ProgramRun(short, {**config, **self.workload.pinned}, seed, self._root / f"check-{self._number}")

    def _run(self, what: str, program: Program, config: Mapping[str, Any] = {}, seed: int = 0) -> Trial:
        return self._rows(self._new(what, program, config, seed))

    def _rows(self, run: ProgramRun) -> Trial:
        """The rows of a run up to the last that is wanted; it is closed after that."""
        rows, error, began, before = [], None, time.monotonic(), _states(self._place)
        try:
            while run.round < self.rounds:
                rows.append(run.step())
        except (UserError, Diverged, Stopped) as found:
            error = found
        finally:
            seconds = time.monotonic() - began
            run.close()
        self._trials.append(Trial(run, rows, seconds, error, *_between(before, _states(self._place))))
        return self._trials[-1]

    def _apart(self, one: Trial, other: Trial) -> str:
        """How far two runs are apart in the last of their rounds that differs; "" if all figures are equal."""
        for mine, its in zip(reversed(one.rows), reversed(other.rows), strict=False):
            for name in self.program.metrics:
                here, there = mine[name], its[name]
                if repr(here) != repr(there):
                    return f"{name} {here:.6g} and {there:.6g} in round {its['round']}, {abs(here - there):.3g} apart"
        return f"{len(one.rows)} and {len(other.rows)} reports" * (len(one.rows) != len(other.rows))

    def _selection(self) -> Said:
        try:
            metric = self.program.metrics[self.workload.measures.objective()]
        except UserError as error:
            yield "failed", str(error)
            return
        says = f"{metric.name} selects, {metric.rows}"
        if self.program.reported:
            says += f"; of test rows, and only reported: {few(self.program.reported)}"
        said = bool(metric.mode) and (metric.split == "validation" or metric.name.startswith("val_"))
        yield ("passed", says) if said else ("advice", f"{says}; say by `split` and `mode` what it is")

    def _rounds(self) -> Said:
        first = self._run("the defaults", self.program)
        if first.error:
            yield "failed", str(first.error)
            return
        for name in (n for n, m in self.program.metrics.items() if m.grows):
            if any(later[name] < earlier[name] for earlier, later in itertools.pairwise(first.rows)):
                fell = f"{name} grows, as declared, but fell from one round to the next"
                yield "advice", f"{fell}; report its total so far"
        begin, *gaps = (row["seconds"] for row in first.rows)
        reports, each = self.program.rounds // self.program.every, sum(gaps) / max(1, len(gaps))
        rest = (reports - 1) * each
        says, advice = f"{several(first.run.round, 'round')} came, the first after {begin:.2g} s", ""
        says += f", then one in {each:.2g} s" * bool(gaps)
        if gaps or reports == 1:
            says += f"; a whole run of {self.program.rounds} takes {timedelta(seconds=round(begin + rest))}"
        else:
            says += "; one report says nothing of the time between reports, nor of a whole run: try more --rounds"
        if self.program.every == self.program.rounds > 1:
            advice = "; figures come once, at the end: no trial can be stopped early; report more often"
        elif gaps and max(gaps) <= BURST and first.seconds >= QUICK:
            advice = "; all came at once: let the program flush each round, or try pty = true"
        elif gaps and begin - each > max(QUICK, rest):
            advice = "; most of it start-up, which each trial pays for: load less, or keep prepared data"
        yield "advice" if advice else "passed", says + advice

    def _lines(self) -> Said:
        """Only a person can see whether that figure is the one that is meant."""
        run = self._trials[0].run
        for figure in run.rows.first.values() if run.rows else ():
            doubt = figure.doubts()
            says = f"{figure.metric.name}, {figure.metric.rows}: {figure.marked()}{doubt}"
            yield "advice" if doubt else "passed", says
        yield from (("advice", note) for note in run.take_notes())

    def _noise(self) -> Said:
        first, again = self._trials[0], self._run("the same again", self.program)
        self._chance, seeded = self._apart(first, again), self.workload.traits.repeatable
        other = self._run("another seed", self.program, seed=1) if seeded and not again.error else again
        apart, little = self._apart(first, other), "smaller differences between trials say nothing"
        if error := again.error or other.error:
            yield "failed", f"it fails when it runs {'again' if again.error else 'with another seed'}: {error}"
        elif not apart:
            equal = "figures are equal whatever the seed, so the final check shows no noise"
            yield "advice", f"{equal}; see what it seeds"
        elif not self._chance:
            yield "passed", f"the same seed gives the same figures; seeds 0 and 1 differ: {apart}; {little}"
        else:
            what = "the same seed gives other figures" if seeded else "two runs without a seed differ"
            advice = "seed all that it draws from" if seeded else "give {seed} to the program if it takes one"
            yield "advice", f"{what}: {self._chance}; {little}, and none can be repeated: {advice}"

    def _hyperparameters(self) -> Said:
        """Which change something, and with which values the program fails."""
        defaults, good, wrong, left = self.workload.configuration({}), list[str](), list[str](), list[str]()
        for name in (name for name in self.program.searched if name not in self.workload.pinned):
            asked = self.program.conditions.get(name, {}).items()
            if len(good + wrong) == TRIED or any(defaults[other] not in values for other, values in asked):
                left.append(name)
            elif says := self._without_effect(name, defaults[name]):
                wrong.append(says)
            else:
                good.append(name)
        if self._chance and good + wrong:
            yield "skipped", "figures differ from run to run, so what changes nothing cannot be told"
        elif good:
            yield "passed", f"{', '.join(good)}: another value gives other figures"
        yield from (("advice", says) for says in wrong)
        if left:
            yield "skipped", f"{', '.join(left)}: not tried, to save time or because of `when`; --set fixes others"

    def _without_effect(self, name: str, value: Any) -> str:
        """What is wrong with another value of a hyperparameter; "" if it has an effect."""
        # an end to what a slow value may cost: that it is slow is an effect too
        longest = min(self.program.longest_round, TIMES * self._trials[0].seconds + AND)
        program, hp = replace(self.program, longest_round=longest / self.program.every), self.program.hyper[name]
        others = [choice for choice in hp.choices if choice != value]
        other = others[-1] if others else max(hp.low, hp.high, key=lambda end: abs(end - value))
        before, after = command.text(value), command.text(other)
        tried = self._run(f"{name} = {after}", program, {name: other})
        if isinstance(tried.error, UserError) and tried.seconds < longest:
            return f"{name} = {after} fails, and so would trials with such a value: {tried.error}"
        if self._chance or self._apart(self._trials[0], tried):
            return ""
        says = f"{name} changed nothing in {several(self.rounds, 'round')}: {before} and {after} give the same figures"
        return f"{says}; see whether it reads it, or try more rounds by --rounds"

    def _files(self) -> Said:
        """What two trials both write: the second run had the values of the first, later ones had others."""
        ran, folder = [trial for trial in self._trials if not trial.error], Path(self.program.folder).resolve()
        both = ran[0].written & ran[1].written
        always = both.intersection(*(trial.written for trial in ran))
        read = {path for path in always for trial in ran if path in trial.read}
        found = read or always or both
        names = few(sorted(os.path.relpath(path, folder) for path in found))
        own = f"write {'context.run_id' if flower.is_app(self.program) else '{trial} or {folder}'} in its name"
        own += ', or isolate = "copy"' * all(path.is_relative_to(folder) for path in found)
        if read:
            yield "failed", f"every trial writes {names} and it is read, so two at once spoil it; {own}"
        elif found:
            who = "every trial writes" if always else "two trials with the same values write"
            yield "advice", f"{who} {names}, which none reads; only the last stays: to keep all, {own}"
        else:
            yield "passed", f"two trials write no file in common (looked at: {os.path.relpath(self._place, folder)})"

    def _checkpoint(self) -> Said:
        seen, first = self.rounds - self.program.every, self._trials[0]
        if not self.program.uses("checkpoint") or not seen:
            yield "skipped", "it has none, or one report only: a trial that is interrupted begins again"
            return
        run, kept = self._new("up to its checkpoint", self.program), self._root / CHECKPOINT
        try:
            while run.round < seen:
                run.step()
            end = time.monotonic() + WRITES
            while not any((run.folder / CHECKPOINT).iterdir()) and time.monotonic() < end:
                time.sleep(0.005)
            run.save(self._root)
        finally:
            run.close()
        again = self._new("on from its checkpoint", self.program)
        again.load(self._root)
        rest, says = self._rows(again), f"it goes on after round {seen}"
        apart = self._apart(first._replace(rows=first.rows[-len(rest.rows) :]), rest)
        if not any(kept.iterdir()):
            yield "advice", f"nothing was in {{checkpoint}} after {several(seen, 'round')}; write it every round"
        elif wrong := rest.error or next(iter(again.take_notes()), None):
            yield "advice", str(wrong)
        elif apart and not self._chance:
            advice = "keep the states of optimizers and of random generators too"
            yield "advice", f"{says} with other figures than an undisturbed run: {apart}; {advice}"
        else:
            yield "passed", says + ", with the figures of an undisturbed run" * (not apart)

    def _final_check(self) -> Said:
        if (check := self.program.check) and (error := self._run("[check]'s command", check).error):
            yield "failed", f"[check]'s command: {error}"
        elif check:
            yield "passed", f"[check]'s command runs, and reports {few(list(check.metrics))}"
        elif self.program.reported:
            yield "passed", f"it reports {few(self.program.reported)}, of test rows"
        else:
            where = "let the server evaluate on" if flower.is_app(self.program) else "name in [check], or report,"
            yield "advice", f'only what selected, which is too good: {where} test rows, with split = "test"'


def _place(path: str, runs_in: str) -> Path:
    """Where a program writes: the git repository that it runs in, or else the folder beside its file that it is in."""
    place, base = Path(runs_in).resolve(), Path(path).resolve().parent
    for above in (place, *place.parents):
        if above != Path.home() and (above / ".git").exists():
            return above
    return base / place.relative_to(base).parts[0] if place != base and place.is_relative_to(base) else place


def _states(place: Path) -> dict[Path, tuple[int, ...]]:
    """The files below a folder, without hidden folders: number, size, when they were written, and read."""
    found: dict[Path, tuple[int, ...]] = {}
    for here, folders, names in os.walk(place):
        folders[:] = [name for name in folders if not name.startswith(".") and not name.endswith(SHARED)]
        for file in (Path(here, name) for name in names if not name.endswith(SHARED)):
            with suppress(OSError):  # gone meanwhile
                status = file.lstat()
                found[file] = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_atime_ns)
    return found


def _between(before: dict[Path, tuple[int, ...]], after: dict[Path, tuple[int, ...]]) -> tuple[set[Path], set[Path]]:
    """The files that were written meanwhile, and those of them that may have been read too, by their times."""
    written, read = {path for path, now in after.items() if before.get(path, ())[:3] != now[:3]}, set()
    for path in written:
        number, _, _, last = before.get(path, (0,) * 4)
        now, _, wrote, looked_at = after[path]
        # with `relatime`, which is usual, that is right for files that were written since they were read before
        was_read = looked_at != last if now == number else looked_at > wrote
        if was_read or os.statvfs(path.parent).f_flag & os.ST_NOATIME:
            read.add(path)
    return written, read
