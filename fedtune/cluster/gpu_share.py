"""A trial's share of a GPU: measured on one round, and doubled once if the trial runs out of memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fedtune.core.errors import UserError
from fedtune.core.terminal import say
from fedtune.core.workload import Workload

if TYPE_CHECKING:  # a round is measured without Ray
    from ray.tune.schedulers import TrialScheduler

GROWTH = 1.2  # of a round's memory: later rounds and other configurations may need more


class Measured(NamedTuple):
    """What one round of the default configuration took."""

    seconds: float
    peak: int  # bytes of the GPU's memory, those of the CUDA context among them
    total: int  # bytes that the GPU has


def share(peak: float, total: float, trials: float) -> float:
    """The fraction 1/n of a GPU, rounded down to Ray's four digits, such that n trials fit.

    peak    bytes that one trial needs at most, including its CUDA context; 20 % are added.
    total   bytes of the GPU.      trials   how many the CPUs per GPU allow.      Never more than one GPU.
    """
    n = max(1, min(int(total / (GROWTH * peak)), int(trials), 10_000))
    return int(10_000 / n) / 10_000


def measure_gpu_share(workload: Workload, data: Sequence[Any], cpus: float) -> tuple[float, int]:
    """The share of a GPU that a trial needs, measured by a round on the cluster, and how many trials fit at once.

    cpus: of a trial.  UserError if even a whole GPU is too small.
    """
    import ray

    probe = ray.remote(num_cpus=cpus, num_gpus=1)(measure)
    try:
        used = Measured(*ray.get(probe.remote(workload, ray.put(list(data)))))
    except ray.exceptions.RayTaskError as error:
        if not isinstance(error, torch.OutOfMemoryError):
            raise
        rule = "a trial must fit into one GPU, but the first round of the default configuration ran out of GPU memory"
        raise UserError(f"{rule}; take a smaller --model or --batch, or --executor loop") from error
    nodes = [n["Resources"] for n in ray.nodes() if n["Alive"] and n["Resources"].get("GPU")]
    per_gpu = sum(n.get("CPU", 0) for n in nodes) / cpus / sum(n["GPU"] for n in nodes)
    gpus = share(used.peak, used.total, per_gpu)
    n = int(1 / gpus)
    memory = f"{used.peak / 1e9:.1f} GB of {used.total / 1e9:.0f} GB"
    say(f"one round took {used.seconds:.1f} s and {memory}: {f'1/{n} of a' if n > 1 else 'a whole'} GPU a trial")
    return gpus, sum(min(int(x["GPU"]) * n, int(x.get("CPU", 0) / cpus)) for x in nodes)


def measure(workload: Workload, data: Sequence[Any]) -> Measured:
    """Run a round of the default configuration on this process's GPU."""
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    workload.trainer.trial(workload, {}, data).step()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    free, total = torch.cuda.mem_get_info()
    context = total - free - torch.cuda.memory_reserved()  # and what other processes hold, if they share the GPU
    return Measured(seconds, torch.cuda.max_memory_reserved() + context, total)


def with_more_memory(scheduler: TrialScheduler, gpus: float) -> TrialScheduler:
    """The scheduler, under which trials that run out of GPU memory are tried once more with twice the share.

    gpus: the share that trials begin with.  Tune calls on_trial_error after it has decided to try the trial again and
    before it queues it by its share; a callback's on_trial_recover comes after that.
    """
    if gpus:
        setattr(scheduler, "on_trial_error", partial(_enlarged, scheduler, gpus))  # noqa: B010
    return scheduler


def _enlarged(scheduler: TrialScheduler, gpus: float, controller: Any, trial: Any) -> None:
    """Give a trial that ran out of memory a larger share, in which it may fail once; then do as the scheduler does.

    Errors in here are swallowed, because Tune would end the search over them.
    """
    from ray import tune

    try:
        has = trial.placement_group_factory.required_resources if ran_out(trial) else {}
        if has and has.get("GPU", 0) == gpus:  # not its larger share yet
            trial.max_failures = trial.num_failures
            if gpus < 1:
                more = min(1.0, 2 * gpus)
                trial.update_resources(tune.PlacementGroupFactory([{**has, "GPU": more}]))
                shares = f"{more:g} of a GPU instead of {gpus:g}"
                say(f"note: trial {trial.trial_id} ran out of memory; it now gets {shares}")
    except Exception as error:
        say(f"note: trial {trial.trial_id} cannot get a larger share of a GPU: {error}")
    type(scheduler).on_trial_error(scheduler, controller, trial)


def ran_out(trial: Any) -> bool:
    """Whether a trial's last failure was that its GPU ran out of memory."""
    told = Path(trial.error_file).read_text(errors="replace") if trial.error_file else ""
    return "OutOfMemoryError" in told.rpartition("Failure # ")[2]
