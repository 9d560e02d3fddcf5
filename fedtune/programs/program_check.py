"""`fedtune check PROGRAM.toml`: short runs of a program, and what they say about searching it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedtune.core.errors import UserError
from fedtune.core.hyper import Hyperparameter
from fedtune.core.terminal import few, several
from fedtune.programs import command, figure_line, keeper, touched, workload
from fedtune.programs.run import CHECKPOINT
from fedtune.programs.short_runs import ERRORS, ShortRuns, Trial
from fedtune.programs.workload import ProgramWorkload

REPORTS = 3  # of each run, if nothing is said
WORDS = {"passed": "passed ", "advice": "advice ", "failed": "FAILED ", "skipped": "skipped"}
TRIED = 10  # hyperparameters that are given another value, at most
LONG = 600.0  # seconds after which no further hyperparameter is tried
TIMES, AND = 10, 10.0  # a run with another value may take so many times as long as the first, and so many seconds more
BURST = 0.02  # seconds within which figures came at once
QUICK = 1.0  # seconds of a run in which it does not matter when figures come
WRITES = 2.0  # seconds in which a program must have begun a checkpoint


class Finding(NamedTuple):
    """What was found about one question, and what to do."""

    status: Literal["passed", "advice", "failed", "skipped"]  # failed: a search would be wrong
    name: str
    says: str


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
            raise UserError(f"--check-rounds must be 1 or more, but got {rounds}")
        self.workload = workload.of_file(what, pinned=set) if isinstance(what, str) else what
        self.program = self.workload.program
        reports = REPORTS if rounds is None else -(-rounds // self.program.every)
        self.rounds = min(reports * self.program.every, self.program.rounds)
        self.judged: list[Finding] = []
        self._tell = tell
        self._runs = ShortRuns(self.rounds, self.workload.pinned, tell)
        self._short = self._runs.short(self.program)
        self._searched = [name for name in self.program.searched if name not in self.workload.pinned]

    def title(self) -> list[str]:
        """What is checked, in lines."""
        runs = f"about {several(self._expected + 1, 'run')} of {several(self.rounds, 'round')}"
        of = f" (of {self.program.rounds})" if self.rounds < self.program.rounds else ""
        return [f"{self.workload.name} (your program): {runs}{of}", *self.workload.describe()]

    def judge(self) -> Iterator[Finding]:
        """What is found, as soon as it is known."""
        with self._runs.folder() as self._root:
            for finding in self._judge():
                self.judged.append(finding)
                yield finding

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

    def _judge(self) -> Iterator[Finding]:
        yield self._selection()
        self._first = first = self._runs.run("the defaults", self._short)
        yield self._came()
        yield from self._read()
        if first.error:
            return
        more = self._expected
        self._tell(f"about {several(more, 'more run')} like this one: {lasting(more * first.seconds)}")
        again = self._runs.run("the same again", self._short)
        yield self._when()
        self._repeats = again.figures == first.figures
        yield self._repetition(again)
        if again.error:
            return
        if self.workload.traits.repeatable:
            yield self._other_seed()
        yield self._files(first.written & again.written)
        yield from self._hyperparameters()
        yield self._stopping()
        yield self._checkpoint()
        yield self._final_check()

    @property
    def _expected(self) -> int:
        """The runs after the first, if nothing unusual is found."""
        others = 2 + self.workload.traits.repeatable + bool(self.program.check)
        return (
            others
            + min(len(self._searched), TRIED)
            + 2 * (self.program.checkpointed() and self.rounds > self.program.every)
        )

    # --- figures

    def _selection(self) -> Finding:
        try:
            name = self.workload.measures.objective
        except UserError as error:
            return _failed("selection", str(error))
        metric = self.program.metrics[name]
        validates = metric.split == "validation" or name.startswith("val_")
        advice = []
        if metric.split is None and not validates:
            advice.append('the file does not say on which rows it is measured: write split = "validation" if it is so')
        if metric.split == "train":
            advice.append("it is measured on training rows, and says little about new data: report validation figures")
        if not metric.mode:
            advice.append('the file does not say its direction: write mode = "max" or "min"')
        says = f"{name} selects" + f", taken as {figure_line.rows_by(metric)}" * validates
        if self.program.reported:
            says += f"; of test rows, and only reported: {few(self.program.reported)}"
        return _advice("selection", "; ".join([says, *advice])) if advice else _passed("selection", says)

    def _came(self) -> Finding:
        """Rounds, seconds, and the share of the start-up."""
        first = self._first
        if first.error:
            return _failed("rounds", str(first.error))
        every, rounds = self.program.every, self.program.rounds
        reports = f" in {several(len(first.rows), 'report')}" if every > 1 else ""
        came = f"{several(every * len(first.rows), 'round')} came{reports}, "
        came += f"the first after {lasting(first.rows[0]['seconds'])}"
        if not first.gaps:
            return _passed("rounds", came)
        each = sum(first.gaps) / len(first.gaps)
        startup = max(0.0, first.rows[0]["seconds"] - each)
        whole = startup + rounds // every * each
        share = startup / whole if whole else 0.0
        says = (
            f"{came}, then one in {lasting(each)}; start-up takes {lasting(startup)}, {share:.0%} of a whole run of "
            f"{several(rounds, 'round')} (about {lasting(whole)})"
        )
        if share > 0.5 and startup > QUICK:
            return _advice("rounds", f"{says}; each trial pays for that: load less, or keep prepared data")
        return _passed("rounds", says)

    def _read(self) -> Iterator[Finding]:
        """The line of each metric's first figure: only a person can see whether that is the one that is meant."""
        for figure in self._first.first_figures:
            says = f"{figure.metric.name}, {figure_line.rows_by(figure.metric)}: {figure_line.shown(figure)}"
            doubts = figure_line.doubts(figure)
            yield _advice("line", "; ".join([says, *doubts])) if doubts else _passed("line", says)

    def _when(self) -> Finding:
        """Whether figures come when they are there, or at the end."""
        first, names = self._first, few(list(self.program.metrics))
        if sum(first.gaps) > max(BURST, 0.01 * first.rows[0]["seconds"]):
            return _passed("figures", f"{names} came round by round")
        if not first.gaps:
            return _passed("figures", f"{names} came")
        printed = not all(metric.column for metric in self.program.metrics.values())
        if printed and not self.program.pty:
            on_terminal = self._runs.run("with a terminal", replace(self._short, pty=True))
            if sum(on_terminal.gaps) > BURST + 5 * sum(first.gaps):
                return _advice(
                    "figures",
                    f"{names} of all rounds came at once, because the program buffers its output, so no trial can be "
                    "stopped early; write pty = true (with a terminal they came round by round), or flush each round",
                )
        if first.seconds < QUICK:
            return _passed("figures", f"{names} came, at once as far as can be told")
        after = lasting(first.rows[0]["seconds"])
        return _advice(
            "figures",
            f"{names} of {several(len(first.rows), 'round')} came at once after {after}; if the program trains before, "
            "no trial can be stopped early: report each round when it ends, and flush",
        )

    # --- chance

    def _repetition(self, again: Trial) -> Finding:
        seeded = self.workload.traits.repeatable
        name = "same seed" if seeded else "noise"
        if again.error:
            return _failed(name, f"the same run fails when it is repeated: {again.error}")
        if seeded and self._repeats:
            return _passed(name, "the same seed gives the same figures")
        if seeded:
            return _advice(
                name,
                f"the same seed gives other figures: {self._apart(again)}; trials cannot be repeated: seed every "
                "generator that the program draws from",
            )
        if self._repeats:
            return _advice(
                name,
                "two runs give the same figures although the program is given no seed; the final check would repeat "
                "one run, and show no noise: give {seed} to the program if it takes one",
            )
        return _advice(
            name,
            f"two runs without a seed differ: {self._apart(again)}; smaller differences between trials say nothing, "
            "and trials cannot be repeated: give {seed} to the program if it takes one",
        )

    def _other_seed(self) -> Finding:
        other = self._runs.run("another seed", self._short, seed=1)
        if other.error:
            return _failed("noise", f"it fails with another seed: {other.error}")
        if other.figures == self._first.figures:
            return _advice(
                "noise",
                "seeds 0 and 1 give the same figures, so the final check would show no noise; see whether the program "
                "uses its seed",
            )
        return _passed(
            "noise", f"seeds 0 and 1 differ: {self._apart(other)}; smaller differences between trials say nothing"
        )

    def _apart(self, other: Trial) -> str:
        """How far two runs are apart in what selects, in the last round; or else where they differ."""
        try:
            selects = self.workload.measures.objective
        except UserError:
            selects = next(iter(self.program.metrics))
        mine = {row["round"]: row for row in self._first.rows}
        pairs = [(mine[row["round"]], row) for row in reversed(other.rows)]
        names = [selects, *self.program.metrics]
        name, one, two = next(
            (name, one, two) for name in names for one, two in pairs if repr(one[name]) != repr(two[name])
        )
        distance = abs(one[name] - two[name])
        return f"{name} {one[name]:.6g} and {two[name]:.6g} in round {one['round']}, {distance:.3g} apart"

    # --- files

    def _files(self, both: set[Path]) -> Finding:
        if not both:
            return _passed("files", f"two trials write no file in common ({self._places()})")
        always = both
        if self._searched:
            config = self.workload.configuration({})
            near = {name: _near(self.program.hyper[name], config[name]) for name in self._searched}
            other = self._runs.run("other values", self._short, near)
            always = both if other.error else both & other.written
        if not always:
            says = f"two trials with the same values would both write {self._paths(both)}"
            return _advice("files", f"{says}; {self._own_files(both)} if there can be such")
        says = f"every trial writes {self._paths(always)}, so two at once spoil it"
        return _failed("files", f"{says}; {self._own_files(always)}")

    def _own_files(self, paths: set[Path]) -> str:
        """How each trial gets files of its own; a copy of the folder helps for what is in it."""
        folder = Path(self.program.folder).resolve()
        copies = not self.program.isolate and all(path.is_relative_to(folder) for path in paths)
        return "write {trial} or {folder} in its name" + ', or isolate = "copy"' * copies

    def _places(self) -> str:
        """Where files were looked at, in words."""
        places = [os.path.relpath(place, self.program.folder) for place in touched.folders(self.program)]
        where = "its folder" if places == ["."] else ", ".join(places)
        some = "" if self._runs.looked_at_all else f", only the first {touched.MOST:,} files"
        return f"looked at: {where}{some}, and files that it held open"

    def _paths(self, paths: set[Path]) -> str:
        folder, places = Path(self.program.folder).resolve(), touched.folders(self.program)
        near = {path for path in paths if any(path.is_relative_to(place) for place in places)}
        return few(sorted(os.path.relpath(path, folder) if path in near else str(path) for path in paths))

    # --- hyperparameters

    def _hyperparameters(self) -> Iterator[Finding]:
        name = "hyperparameters"
        if not self._searched:
            yield _skipped(name, "none is searched; declare ranges in [space]")
            return
        if not self._repeats:
            yield _skipped(name, "figures differ from run to run, so what changes nothing cannot be told")
            return
        began = time.monotonic()
        effects: dict[str, str] = {}
        for one in self._searched[:TRIED]:
            if not effects or time.monotonic() - began < LONG:
                effects[one] = self._without_effect(one)
        if good := [one for one, says in effects.items() if not says]:
            yield _passed(name, f"{', '.join(good)}: another value gives other figures")
        for says in filter(None, effects.values()):
            yield _advice(name, says)
        if left := [one for one in self._searched if one not in effects]:
            yield _skipped(name, f"{', '.join(left)}: not tried, to save time; fix others by --set to try them")

    def _without_effect(self, name: str) -> str:
        """What is wrong with another value of a hyperparameter; "" if it has an effect."""
        config, base = self._where_it_exists(name), self._first
        # an end to what a slow value may cost: that it is slow is an effect too
        longest = min(self._short.longest_round, TIMES * self._first.seconds + AND)
        program = replace(self._short, longest_round=longest / self.program.every)
        if config != self.workload.configuration({}):
            base = self._runs.run(f"where {name} exists", program, config)
        value = _far(self.program.hyper[name], config[name])
        before, after = command.text(config[name]), command.text(value)
        other = self._runs.run(f"{name} = {after}", program, config | {name: value})
        if isinstance(other.error, UserError) and other.seconds < longest:
            return f"{name} = {after} fails, and so would trials with such a value: {other.error}"
        if other.figures != base.figures:
            return ""
        return (
            f"{name} changed nothing in {several(self.rounds, 'round')}: {before} and {after} give the same figures; "
            "see whether the program uses it, or try more rounds by --check-rounds"
        )

    def _where_it_exists(self, name: str) -> dict[str, Any]:
        """The defaults, but for what the conditions of a hyperparameter ask for."""
        config, todo = self.workload.configuration({}), [name]
        for one in todo:
            for other, values in self.program.conditions.get(one, {}).items():
                config[other] = config[other] if config[other] in values else values[0]
                todo.append(other)
        return config

    # --- stopping and going on

    def _stopping(self) -> Finding:
        """Whether it ends when it is stopped after its first round."""
        name = "stopping"
        run = self._runs.new("stopped after its first round", self.program)
        try:
            run.step()
            begun = touched.begun(run.processes)
            began = time.monotonic()
        except ERRORS as error:
            return _failed(name, str(error))
        finally:
            run.close()
        took = time.monotonic() - began
        if left := [str(pid) for pid, at in touched.begun(list(begun)).items() if begun[pid] == at]:
            return _failed(name, f"it does not end when it is stopped; still running: {few(left)}; end these processes")
        if not begun:
            return _skipped(name, "it ended before it could be stopped")
        if took >= keeper.POLITE:
            return _advice(
                name,
                f"it did not end within {keeper.POLITE:g} s of SIGTERM and was killed; each trial that is stopped "
                "costs that time, and what it writes last is lost: let it end on SIGTERM",
            )
        return _passed(name, f"it ended {lasting(took)} after SIGTERM, and left nothing running")

    def _checkpoint(self) -> Finding:
        """Whether it goes on from its checkpoint with the figures of an undisturbed run."""
        name, seen = "checkpoint", self.rounds - self.program.every
        if not self.program.checkpointed():
            return _skipped(name, "it has none: a trial that is interrupted begins again")
        if not seen:
            return _skipped(name, "going on takes two reports or more")
        run, saved = self._runs.new("up to its checkpoint", self._short), self._root / "saved"
        try:
            while run.round < seen:
                run.step()
            written = _is_written(run.folder / CHECKPOINT)
            run.save(saved)
        except ERRORS as error:
            return _failed(name, str(error))
        finally:
            run.close()
        if not written:
            return _advice(name, f"nothing was in {{checkpoint}} after {several(seen, 'round')}; write it every round")
        again = self._runs.new("on from its checkpoint", self._short)
        again.load(saved)
        rest = self._runs.rows(again)
        if rest.error or again.notes:
            return _advice(name, str(rest.error or again.notes[0]))
        return self._continued(rest, f"it goes on after round {seen}")

    def _continued(self, rest: Trial, says: str) -> Finding:
        name = "checkpoint"
        if not self._repeats:
            return _passed(name, f"{says}; figures differ from run to run, so they were not compared")
        if rest.figures[0] == self._first.figures[0][-len(rest.rows) :]:
            return _passed(name, f"{says}, with the figures of an undisturbed run")
        return _advice(
            name,
            f"{says} with other figures than an undisturbed run: {self._apart(rest)}; keep the states of optimizers "
            "and of random generators too",
        )

    def _final_check(self) -> Finding:
        name, check = "final check", self.program.check
        if check is not None:
            trial = self._runs.run("[check]'s command", self._runs.short(check))
            if trial.error:
                return _failed(name, f"[check]'s command: {trial.error}")
            return _passed(name, f"[check]'s command runs, and reports {few(list(check.metrics))}")
        if self.program.reported:
            return _passed(name, f"it reports {few(self.program.reported)}, of test rows")
        return _advice(
            name,
            "it can only report what selected, which is too good; name test rows in [check], or report a metric with "
            'split = "test"',
        )


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


def _passed(name: str, says: str) -> Finding:
    return Finding("passed", name, says)


def _advice(name: str, says: str) -> Finding:
    return Finding("advice", name, says)


def _failed(name: str, says: str) -> Finding:
    return Finding("failed", name, says)


def _skipped(name: str, says: str) -> Finding:
    return Finding("skipped", name, says)


def _far(hp: Hyperparameter, value: Any) -> Any:
    """Another choice, or the end of the range that is farther from a value."""
    if hp.choices:
        return next(choice for choice in reversed(hp.choices) if choice != value)
    assert hp.low is not None and hp.high is not None
    scale = math.log if hp.log else float
    return hp.low if scale(value) - scale(hp.low) > scale(hp.high) - scale(value) else hp.high


def _near(hp: Hyperparameter, value: Any) -> Any:
    """Another choice, or a number close to a value."""
    end = _far(hp, value)
    if hp.choices:
        return end
    if hp.integer:
        return value + (1 if end > value else -1)
    return value + (end - value) / 10


def _is_written(folder: Path) -> bool:
    """Whether something is in a folder, now or soon."""
    end = time.monotonic() + WRITES
    while time.monotonic() < end:
        with suppress(OSError):
            if any(folder.iterdir()):
                return True
        time.sleep(0.005)
    return False
