"""A program as a `Workload`: what is searched, compared, resumed and reported of it."""

from __future__ import annotations

import hashlib
import json
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fedtune.core.errors import Diverged, UserError
from fedtune.core.hyper import Hyperparameter
from fedtune.core.metrics import METRICS
from fedtune.core.terminal import few
from fedtune.core.workload import HERE, Measures, Place, Runs, Trainer, Traits, Workload
from fedtune.programs import command, fingerprint, flower, program_file
from fedtune.programs.naming import is_file
from fedtune.programs.program_file import Program
from fedtune.programs.run import STATE, ProgramRun, Stopped
from fedtune.user_code import user_files
from fedtune.user_code.user_files import UserFile


class ProgramTrainer(Trainer):
    """Starts a program for every seed; it reads its data itself."""

    def start(self, workload: Any, config: Mapping[str, Any], data: Mapping[int, None], at: Place = HERE) -> Runs:
        """Runs whose programs have not been started yet."""
        return ProgramRuns([_run(workload, config, seed, len(data) > 1, at) for seed in data], at.retries)

    def saved_round(self, folder: Path) -> int:
        """The round of the first seed's state."""
        return int(json.loads((folder / "0" / STATE).read_text())["round"])


def _run(workload: Any, config: Mapping[str, Any], seed: int, several: bool, at: Place) -> ProgramRun:
    program, values = workload.program, workload.pinned | dict(config)
    user_files.register(workload.own)
    told = json.dumps([program.command, program.environment, sorted(config.items())], default=str)
    whose = at.name or f"run-{hashlib.sha256(told.encode()).hexdigest()[:8]}"  # configurations may share a place
    folder = at.folder or Path(tempfile.mkdtemp(prefix="fedtune-"))
    folder /= f"{whose}-seed{seed}" if several or not at.name else whose
    return ProgramRun(program, values, seed, folder, at=at, test=workload.selects_on_test)


class ProgramRuns(Runs):
    """The runs of a program; those that are ended from outside begin again."""

    def __init__(self, runs: Sequence[ProgramRun], retries: int = 0) -> None:
        """retries: how often each may begin again."""
        super().__init__(runs)
        self._retries, self._left = retries, {run.seed: retries for run in runs}

    def step_of(self, run: ProgramRun) -> dict[str, Any] | Diverged | UserError:
        """A run's next row; one that begins again is silent until the round where it was."""
        try:
            return super().step_of(run)
        except Stopped as error:
            if not self._retries:
                raise
            if not self._left[run.seed]:
                return UserError(f"{error}; it was tried {self._retries + 1} times")
            self._left[run.seed] -= 1
            run.notes.append(f"{error}; it begins again")
            return self.step_of(run)


@dataclass(frozen=True, kw_only=True)
class ProgramWorkload(Workload):
    """A program with a first seed, fixed hyperparameters, and what may select."""

    program: Program
    seed: int = 0
    pinned: dict[str, Any] = field(default_factory=dict)
    selects_on_test: bool = False
    own: tuple[UserFile, ...] = ()
    trainer: Trainer = field(default=ProgramTrainer(), compare=False, repr=False)

    @property
    def name(self) -> str:
        """The program's."""
        return self.program.name

    @property
    def path(self) -> str:
        """The program file's whole path, or the option of a command line."""
        return str(Path(self.program.path).resolve()) if is_file(self.program.path) else self.program.path

    @property
    def rounds(self) -> int:
        """The rounds of a whole run."""
        return self.program.rounds

    @property
    def measures(self) -> Measures:
        """What the file says: a program's val_loss may be larger than fedtune's own."""
        of = self.program.metrics
        return Measures(
            selectable=self.program.selectable(self.selects_on_test) | {"seconds": "min"},
            objective=self._objective,
            worst=lambda metric: of[metric].worst if metric in of else None,
            figures=lambda last: list(self.program.checking().metrics),
            growing=tuple(n for n, m in of.items() if m.grows and n not in METRICS),
        )

    def _objective(self) -> str:
        """The first metric of the file that may select and has a direction; UserError if there is none that may."""
        if not (found := self.program.selectable(self.selects_on_test)):
            rule = f"a search must not use test data, but has only {few(self.program.reported)}, of test rows by split"
            advice = 'say split = "validation" if it is not, or allow it by --selects-on-test'
            raise UserError(f"{self.program.path}: {rule} or by the word test in name or pattern; {advice}")
        return next((name for name, mode in found.items() if mode), next(iter(found)))

    @property
    def traits(self) -> Traits:
        """What the file says."""
        conditions = self.program.conditions
        return Traits(
            searched={name: conditions.get(name, {}) for name in self.program.searched},
            report_every=self.program.every,
            depends_on_horizon=True,  # it is given its number of rounds, and may do with it what it wants
            repeatable=self.program.seed != "none",
            continues=self.program.uses("checkpoint"),
        )

    def hyperparameters(self) -> dict[str, Hyperparameter]:
        """Its hyperparameters."""
        return self.program.hyper

    def configuration(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The value of every hyperparameter under a configuration; UserError for unknown names and bad values."""
        return self.program.configuration(self.pinned | dict(config))

    def with_seed(self, seed: int, checking: bool = False) -> ProgramWorkload:
        """The same with another seed.  checking: with the command of `[check]`."""
        return replace(self, seed=seed, program=self.program.checking() if checking else self.program)

    def as_recorded(self, record: Mapping[str, Any]) -> ProgramWorkload:
        """The same; UserError if the script that its command names has changed since, as trials would not be alike."""
        then, now = dict(record.get("program") or {}).get("scripts", {}), self.program.scripts()
        for name, digest in then.items():
            if now.get(name) != digest:
                raise UserError(f"a search goes on with its own program, but {name} has changed since; restore it")
        return self

    def describe(self) -> list[str]:
        """What runs, what selects, and what cannot be known."""
        lines = [f"runs: {' '.join(self.program.command)}", f"in: {self.program.folder}"]
        lines += [f"note: {note}" for note in self.program.notes]
        if not self.program.uses("rounds"):
            lines.append(f"note: the command of {self.name} has no {{rounds}}: {self.rounds} must be its own number")
        if self.selects_on_test and self.program.reported:
            on_test = f"{', '.join(self.program.reported)} may select, which is measured on test rows"
            lines.append(f"warning: {on_test}: what is found there is too good, and says nothing about new data")
        if self.program.check:
            lines.append(f"final check: {' '.join(self.program.check.command)}")
        return lines

    def filled(self, config: Mapping[str, Any], rounds: int | None = None) -> str:
        """The command of a configuration, as a shell takes it."""
        values = self._values(config, rounds)
        if flower.is_app(self.program):
            return flower.flwr_command(self.program, values)
        return shlex.join(command.fill(self.program.command, values))

    def _values(self, config: Mapping[str, Any], rounds: int | None) -> dict[str, Any]:
        own = {"rounds": rounds or self.rounds, "seed": self.seed, "gpu": 0, "trial": "best", "folder": "best"}
        return self.configuration(config) | own | {"checkpoint": "best/checkpoint"}

    def to_plain(self) -> dict[str, Any]:
        """All that is known of what a run's numbers depend on."""
        program = asdict(replace(self.program, notes=(), path=""))
        program["command"] = fingerprint.portable(self.program.command)
        scripts = self.program.scripts() | self.program.checking().scripts()
        return {"program": program, "scripts": scripts, "seed": self.seed, "pinned": self.pinned}

    def to_record(self) -> dict[str, Any]:
        """What the record of a run holds of it."""
        metrics = self.program.metrics.items()
        return {
            "algorithm": self.name,
            "program": self.program.fingerprint() | {"path": self.path, "folder": self.program.folder},
            "rounds": self.rounds,
            "metrics": {
                n: {"split": "test" if m.tests else m.split or "", "mode": m.mode or ""}
                | ({"grows": "yes"} if m.grows else {})
                for n, m in metrics
            },
            "pinned": self.pinned,
            "defaults": self.configuration({}),
            "seed": self.seed,
            "repeatable": self.traits.repeatable,
            "selects_on_test": self.selects_on_test,
        }

    def to_best(self, scenario: str, config: Mapping[str, Any], rounds: int | None) -> dict[str, Any]:
        """What best.yaml holds of it, with a configuration: above all the filled-in command."""
        found = {
            "algorithm": self.name,
            "program": self.path,
            "folder": self.program.folder,
            "command": self.filled(config, rounds),
            "seed": self.seed,
            "hyperparameters": self.configuration(config),
        }
        if self.selects_on_test:
            found["selects_on_test"] = True
        if self.program.write and not flower.is_app(self.program):
            values = self._values(config, rounds)
            found["files"] = {command.filled(p, values): f.content(p, values) for p, f in self.program.write.items()}
        return found


def of_file(
    path: str, seed: int = 0, pinned: Mapping[str, Any] | None = None, on_test: bool = False, rounds: int | None = None
) -> ProgramWorkload:
    """The workload of a program file; UserError for anything in it that cannot be, or a wrong fixed value."""
    program = program_file.read(path)
    own = (user_files.of_content(path), *program.user_files())
    user_files.register(own)
    return of_program(program, seed, pinned, on_test, rounds, own)


def of_program(
    program: Program,
    seed: int = 0,
    pinned: Mapping[str, Any] | None = None,
    on_test: bool = False,
    rounds: int | None = None,
    own: tuple[UserFile, ...] = (),
) -> ProgramWorkload:
    """The workload of a program.  rounds: if other than the program's own."""
    if rounds not in (None, program.rounds):
        if not program.uses("rounds"):
            raise UserError(f"--rounds needs {{rounds}} in the command of {program.name}, but got {rounds}")
        program.require_rounds(rounds)
        program = replace(program, rounds=rounds, check=program.check and replace(program.check, rounds=rounds))
    typed = program.configuration(pinned or {})
    fixed = {name: typed[name] for name in pinned or {}}
    return ProgramWorkload(program=program, seed=seed, pinned=fixed, selects_on_test=on_test, own=own)
