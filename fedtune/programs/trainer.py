"""How a `ProgramWorkload` is trained: the functions that `fedtune.core.workload.Trainer` describes."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtune.core.errors import Diverged, UserError
from fedtune.core.metrics import over_seeds
from fedtune.core.workload import HERE, Place
from fedtune.programs.program_file import Program
from fedtune.programs.run import STATE, ProgramRun, Stopped
from fedtune.programs.workload import ProgramWorkload
from fedtune.user_code import user_files

RETRIES = 3  # of a run on a fresh seed that is ended from outside, as many as a trial has


def load(workload: ProgramWorkload, data_dir: str | None, download: bool) -> dict[str, Any]:
    """None: programs read their data themselves."""
    return {}


def require(workload: ProgramWorkload, data: Mapping[str, Any], seeds: Sequence[int]) -> None:
    """Nothing can be known before it runs."""


def report(workload: ProgramWorkload, data: Mapping[str, Any]) -> None:
    """Nothing is known of its data."""


def prepare(workload: ProgramWorkload, data: Mapping[str, Any], seed: int) -> None:
    """None: programs read their data themselves."""


def chance(data: None) -> None:
    """Unknown."""


def settled(workload: ProgramWorkload, config: dict[str, Any], data: None) -> ProgramWorkload:
    """The same: nothing is chosen for it."""
    return workload


def warm(workload: ProgramWorkload, config: dict[str, Any], data: None) -> None:
    """Nothing: each run is a process of its own."""


def seeds_at_once(workload: ProgramWorkload, config: dict[str, Any]) -> int:
    """Each by itself."""
    return 1


def start(workload: ProgramWorkload, config: dict[str, Any], data: Sequence[None], at: Place = HERE) -> SeveralSeeds:
    """A trial: a process for every seed."""
    seeds = [workload.seed + i for i in range(len(data))]
    return SeveralSeeds([_run(workload, workload.program, config, seed, len(seeds) > 1, at) for seed in seeds])


def saved_round(folder: Path) -> int:
    """The round after which a run was saved there."""
    state = json.loads((folder / "0" / STATE).read_text())
    return state.get("round", len(state["rows"]))


def seeded(workload: ProgramWorkload, config: dict[str, Any], data: Mapping[int, None], at: Place = HERE) -> Checks:
    """Runs on fresh seeds, of the program of the final check."""
    program = workload.program.checking()
    return Checks([ProgramSeedRun(_run(workload, program, config, seed, len(data) > 1, at)) for seed in data])


def _run(
    workload: ProgramWorkload, program: Program, config: Mapping[str, Any], seed: int, several: bool, at: Place
) -> ProgramRun:
    user_files.register(workload.own)
    told = json.dumps([program.command, program.environment, sorted(config.items())], default=str)
    whose = at.name or f"run-{hashlib.sha256(told.encode()).hexdigest()[:8]}"  # configurations may share a place
    name = f"{whose}-seed{seed}" if several or not at.name else whose
    folder = at.folder or Path(tempfile.mkdtemp(prefix="fedtune-"))
    selects = program.selectable(workload.selects_on_test)
    return ProgramRun(
        program=program,
        config=workload.pinned | dict(config),
        seed=seed,
        folder=folder / name,
        gpus=at.gpu_ids,
        gpu_share=at.gpus or None,
        threads=max(1, int(at.cpus)),
        selects=selects,
    )


class SeveralSeeds:
    """The runs of a trial, one for each of its seeds; its rows are their means."""

    def __init__(self, runs: Sequence[ProgramRun]) -> None:
        """runs: not started yet."""
        self.runs = runs

    @property
    def round(self) -> int:
        """The rounds that are done."""
        return self.runs[0].round

    @property
    def rounds(self) -> int:
        """The rounds of a whole run."""
        return self.runs[0].rounds

    def step(self) -> dict[str, Any]:
        """The next round's row."""
        return over_seeds([run.step() for run in self.runs])

    def test(self) -> dict[str, Any]:
        """The last round's row: test metrics come with it."""
        return over_seeds([run.test() for run in self.runs])

    def save(self, folder: Path) -> None:
        """Every seed's state, in a folder of its own."""
        for i, run in enumerate(self.runs):
            run.save(folder / str(i))

    def load(self, folder: Path) -> None:
        """Continue after the round in which it was saved."""
        for i, run in enumerate(self.runs):
            run.load(folder / str(i))

    def take_notes(self) -> list[str]:
        """What is worth telling since it was last asked."""
        return [note for run in self.runs for note in run.take_notes()]

    def close(self) -> None:
        """End every program."""
        for run in self.runs:
            run.close()


class ProgramSeedRun:
    """A run of the final check; its clients are unknown."""

    def __init__(self, run: ProgramRun) -> None:
        """run: not started yet."""
        self.run, self.rounds = run, run.rounds

    def kept(self) -> None:
        """Nothing: what it reported is all there is."""

    def test(self) -> dict[str, Any]:
        """The last round's row."""
        return self.run.test()

    def take_notes(self) -> list[str]:
        """What is worth telling since it was last asked."""
        return self.run.take_notes()

    def clients(self, best: None) -> list[Any]:
        """Unknown."""
        return []


class Checks:
    """Runs of the final check on several seeds."""

    def __init__(self, runs: Sequence[ProgramSeedRun]) -> None:
        """runs: not started yet."""
        self.runs = runs
        self._stops: Counter[int] = Counter()  # how often a seed's program was ended from outside

    def step(self, some: Iterable[int] | None = None) -> dict[int, dict[str, Any] | Diverged | UserError]:
        """The next round of the runs at these positions: for each its row, or how it diverged or failed."""
        return {i: self._step(self.runs[i].run) for i in (range(len(self.runs)) if some is None else some)}

    def _step(self, run: ProgramRun) -> dict[str, Any] | Diverged | UserError:
        try:
            return run.step()
        except (Diverged, UserError) as error:
            return error
        except Stopped as error:  # from outside: it begins again, and is silent until the round where it was
            self._stops[run.seed] += 1
            if self._stops[run.seed] > RETRIES:
                return UserError(f"{error}; it was tried {RETRIES + 1} times")
            run.notes.append(f"{error}; it begins again")
            return self._step(run)

    def close(self) -> None:
        """End every program."""
        for run in self.runs:
            run.run.close()
