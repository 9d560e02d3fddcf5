"""How a `ProgramWorkload` is trained: a process for every seed."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtune.core.errors import Diverged, UserError
from fedtune.core.workload import HERE, Place, Runs, Trainer
from fedtune.programs.run import STATE, ProgramRun, Stopped
from fedtune.user_code import user_files


class ProgramTrainer(Trainer):
    """Starts a program for every seed; it reads its data itself."""

    def start(self, workload: Any, config: Mapping[str, Any], data: Mapping[int, None], at: Place = HERE) -> Runs:
        """Runs whose programs have not been started yet."""
        return ProgramRuns([_run(workload, config, seed, len(data) > 1, at) for seed in data], at.retries)

    def saved_round(self, folder: Path) -> int:
        """The round of the first seed's state."""
        state = json.loads((folder / "0" / STATE).read_text())
        return state.get("round", len(state["rows"]))


def _run(workload: Any, config: Mapping[str, Any], seed: int, several: bool, at: Place) -> ProgramRun:
    program = workload.program
    user_files.register(workload.own)
    told = json.dumps([program.command, program.environment, sorted(config.items())], default=str)
    whose = at.name or f"run-{hashlib.sha256(told.encode()).hexdigest()[:8]}"  # configurations may share a place
    name = f"{whose}-seed{seed}" if several or not at.name else whose
    folder = at.folder or Path(tempfile.mkdtemp(prefix="fedtune-"))
    return ProgramRun(
        program=program,
        config=workload.pinned | dict(config),
        seed=seed,
        folder=folder / name,
        gpus=at.gpu_ids,
        gpu_share=at.gpus or None,
        threads=max(1, int(at.cpus)),
        selects=program.selectable(workload.selects_on_test),
    )


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
