"""A configuration as Ray Tune trains it: setup, one round per step, save, load, reset."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import ray
import torch
from ray import tune
from ray.exceptions import RayError
from ray.tune.result import SHOULD_CHECKPOINT

from fedtune.cluster import ray_internals
from fedtune.core.budget import Budget
from fedtune.core.errors import Diverged, UserError, require_known
from fedtune.core.memory import give_back_memory, keep_freed_memory
from fedtune.core.metrics import JUDGED, METRICS, REPORTED
from fedtune.core.objectives import BY_ACCURACY, EXCESSES, TOTALS, Goal
from fedtune.core.terminal import one_line
from fedtune.core.workload import Place, Runs, Workload
from fedtune.runs.trial_states import BROKEN, TRACEBACK, TROUBLE, UNTRAINED, reason
from fedtune.tuning.space_facts import key
from fedtune.user_code import user_errors

SAVING = 0.03  # the share of a trial's time that may go into checkpoints


class FederatedTrainable(tune.Trainable):
    """Reports one row of metrics a round; ends after the scenario's rounds, or when training diverges.

    A trial that diverged reports chance as its validation accuracy, the worst value of any other objective, `diverged`
    and the reason.  A trial with an error that would come again, a `UserError` or an unexpected one, ends in the same
    way, marked as `broken`.  Errors of memory, disk or GPU may be temporary, and are tried again.
    """

    declared_names: ClassVar[frozenset[str]] = frozenset()  # the names that a user's own Tuner may give; empty: any

    def setup(  # type: ignore[override]
        self,
        config: dict[str, Any],
        workload: Workload,
        data: Sequence[Any],
        budget: Budget,
        onward: dict[str, tuple[str, float]] | None = None,
        warm: bool = False,
        goal: Goal = BY_ACCURACY,
        rungs: Sequence[float] = (),
        search: str = "",
        outputs: Path | None = None,
    ) -> None:
        """All but the configuration comes once per actor, through Ray's object store.

        data     as prepared for every seed
        onward   configurations (by `space_facts.key`) that continue from a checkpoint: its folder, and the seconds of
                 training until then
        goal     what the search goes for
        rungs    how much of its budget a trial has used where it may be stopped: there test rows are scored
        search   its name, for Ray's dashboard
        outputs  the folder for what programs print, one in it for each trial
        warm     train an unused round first if seconds count, as a process's first round takes several
        """
        has = self.trial_resources.required_resources if self.trial_resources else {}
        self._cpus, self._gpus = has.get("CPU", 1), has.get("GPU", 0)
        torch.set_num_threads(max(1, int(self._cpus)))
        keep_freed_memory()
        self.workload, self.data, self.budget, self.onward, self.goal = workload, data, budget, onward or {}, goal
        self.rungs, self.search, self._outputs = rungs, search, outputs
        if self.declared_names:
            require_known("hyperparameter in the Tuner's param_space", config, self.declared_names)
        self._cost, self._saved = 0.03, time.monotonic()  # seconds of the last checkpoint, and when it ended
        self._trouble = ""  # to be reported with the next row
        if warm:
            workload.trainer.warm(workload, config, data[0])
        self._begin(config)

    def step(self) -> dict[str, Any]:
        """Train one round and report its row of metrics."""
        began = time.monotonic()
        ray_internals.title_with(self._who)
        try:
            if self._broken:
                raise self._broken
            if unkept := self.goal.unkept(self._known):
                why = ", ".join(f"{name} would be {value:.6g} at its end" for name, value in self._known.items())
                return self._worst() | self._known | {EXCESSES: unkept, "reason": f"{UNTRAINED}: {why}"}
            row = self.run.step()
            seconds = ray_internals.seconds_of(self) + time.monotonic() - began
            complete = row["round"] >= self.run.rounds or self.budget.reached(row, seconds)
            if complete or self.budget.passed(self.rungs, row, seconds):
                row = self.run.test()
        except Diverged as error:
            return self._worst() | {"reason": str(error)}
        except torch.OutOfMemoryError as error:
            advice = f"give a larger --gpus-per-trial than {self._gpus:g}, or a smaller --model or --batch"
            error.args = (f"{error}; {advice}",)
            raise
        except Exception as error:
            if not _lasts(error):
                raise
            first, _, output = str(error).partition("\n") if isinstance(error, UserError) else ("", "", "")
            # what a program printed last, and the user's part of a traceback, say more than ours
            stack = output or (user_errors.theirs_on(error) if first else user_errors.stack(error))
            print(stack or user_errors.stack(error), file=sys.stderr, flush=True)  # the actor's log
            bug = f"this is a bug in fedtune, {type(error).__name__}: {error}"
            why = one_line(first or f"{bug}; please report it with the stack in its log")
            return self._worst() | {BROKEN: True, "reason": why, TRACEBACK: stack}
        # Tune counts rounds, of which a program's report may stand for several
        ray_internals.continue_from(self, row["round"] - 1, ray_internals.seconds_of(self))
        others = [name for name, value in row.items() if value is not None and name not in METRICS and name != "round"]
        due = not complete and time.monotonic() - self._saved > self._cost / SAVING
        row |= self.budget.spent(row, seconds) | self._judged(row, seconds)
        row |= {"done": complete, "complete": complete, SHOULD_CHECKPOINT: due}
        row |= {REPORTED: others} if others else {}
        notes = [self._trouble] * bool(self._trouble) + self.run.take_notes()
        row[TROUBLE], self._trouble = "; ".join(notes) or None, ""
        row["timestamp"] = time.time()  # Tune's own is in whole seconds, and a resumed search takes rounds in order
        return {k: v for k, v in row.items() if v is not None}

    def _worst(self) -> dict[str, Any]:
        chance = self.workload.trainer.chance(self.data[0])
        return self.goal.of_diverged(chance, self.workload.measures.worst) | {"diverged": True, "done": True}

    def _judged(self, row: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Under constraints: by how much this trial breaks each, and what schedulers are to compare."""
        if not self.goal.constraints:
            return {}
        progress = max(row["round"] / self.run.rounds, self.budget.share(row, seconds))
        result = row | {TOTALS["seconds"]: seconds} | self._known
        excesses = self.goal.excesses(result, progress)
        return {EXCESSES: excesses, JUDGED: self.goal.judged(result, excesses)}

    def save(self, *args: Any, **options: Any) -> Any:
        """As Tune does it, timed: the file and bringing it to the run's storage.

        If that fails the trial continues, and the previous checkpoint stays the last.
        """
        if not ray_internals.checkpoint_folder(self):
            return super().save(*args, **options)
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                saved = super().save(*(args or (folder,)), **options)
            except torch.OutOfMemoryError:
                raise
            except (OSError, RuntimeError) as error:  # the latter is PyTorch's on a full disk
                shutil.rmtree(str(ray_internals.checkpoint_folder(self)), ignore_errors=True)
                saved = ray_internals.unsaved(self)
                self._trouble = f"a checkpoint could not be written ({reason(str(error))}); the previous one is kept"
        self._saved = time.monotonic()
        self._cost = self._saved - began
        return saved

    def restore(self, checkpoint_path: Any) -> None:
        """Continue from a checkpoint, or from the start if it is damaged or gone: the rounds are the same."""
        try:
            super().restore(checkpoint_path)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # cut off, overwritten, of something else, or with code in it, which is not run
            self.reset_config(self.config)
            ray_internals.continue_from(self, self._round, self._before)
            self._trouble = f"its checkpoint cannot be used ({reason(str(error))}), so it starts again from round 1"

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write the run's state, which is the whole state of a trial; one that could not begin has none."""
        if self._broken:
            raise self._broken
        self.run.save(Path(checkpoint_dir))

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Continue from a saved state; ValueError if it does not belong to this trial."""
        self.run.load(Path(checkpoint))

    def reset(self, new_config: dict[str, Any], storage: Any = None) -> bool:
        """As Tune does it, but with the rounds that the new trial has behind it."""
        was_reset = super().reset(new_config, storage)
        ray_internals.continue_from(self, self._round, self._before)
        return was_reset

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Become another trial in the same process; everything is rebuilt, so nothing of the last one remains."""
        self._close()
        give_back_memory()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # others have shares of the GPU too
        self._begin(new_config)
        return True

    def __repr__(self) -> str:
        """The actor's name in Ray's dashboard, which cannot change: its log and its process's title name the trial."""
        return f"{self.workload.name} in {self.search}" if self.search else self.workload.name

    def _begin(self, config: dict[str, Any]) -> None:
        self._who = f"{self.workload.name}-{self.trial_id}"
        print(f"{self._who}: {config}", file=sys.stderr, flush=True)  # the actor's log, as the dashboard opens it
        self._broken: Exception | None = None  # to be reported in the first step
        folder, self._before = self.onward.get(key(config), (None, 0.0))
        ids = tuple(map(str, ray.get_gpu_ids())) if self._gpus else ()
        at = Place(self._outputs, self.trial_id, self._cpus, self._gpus, ids)
        try:
            # a whole run is one of all rounds
            constrained = self.goal.constraints and self.budget.unit == "rounds"
            self._known = self.workload.known(config) if constrained else {}
            self.run: Runs = self.workload.trainer.trial(self.workload, config, self.data, at)
        except Exception as error:
            if not _lasts(error):
                raise
            self._broken = error
            return
        if folder:
            self.load_checkpoint(folder)
        ray_internals.continue_from(self, self._round, self._before)  # Tune's rounds are ours

    def cleanup(self) -> None:
        """Tune ends the actor: nothing that its run started goes on."""
        self._close()

    def _close(self) -> None:
        if run := self.__dict__.pop("run", None):  # one that is broken has none
            run.close()

    @property
    def _round(self) -> int:
        return 0 if self._broken else self.run.round


def _lasts(error: Exception) -> bool:
    """Whether an error would come again if the trial is tried again, as its numbers do."""
    of_gpu = any(word in str(error) for word in ("CUDA", "cuDNN", "CUBLAS"))
    return isinstance(error, UserError) or not (of_gpu or isinstance(error, (MemoryError, OSError, RayError)))
