"""Checks that an algorithm runs, stays finite, changes nothing it is given, and draws only from its own streams."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedtune.conformance.check import Note, RunFailed, Violation, check
from fedtune.conformance.subject import Subject, WatchedRun, differences, in_words
from fedtune.conformance.watching import move_streams
from fedtune.core.trees import Executor, take
from fedtune.engine import cohort, executor_choice
from fedtune.engine.executor_choice import KEEP
from fedtune.experiment.algorithm import Model
from fedtune.user_code import sources

FEW, MANY = 3, 40  # how often a round of several clients, and of a single one, runs again


@check("runs", "three rounds run without an error, one client after the other")
def runs(s: Subject) -> Violation | Note | None:
    """In single precision with the loop executor, the plainest way to run."""
    try:
        _ = s.diverged  # the check "finite" reports it
    except Exception as error:
        raise s.failure(error, s.cases.few) from error
    return None


@check("finite", "losses, parameters and the server's entries stay finite numbers under the defaults", needs=("runs",))
def finite(s: Subject) -> Violation | Note | None:
    """A diverged run is repeated to find the operation that made the first NaN or infinity."""
    if s.diverged is None:
        return None
    violation = s.failure(s.diverged, s.cases.few).violation
    with _FiniteWatch(s.cls) as first:
        s.three_rounds()
    return violation._replace(place=first.place, what=violation.what + first.words)


@check(
    "types",
    "tensors that client and server code create have the dtype and device of their operands",
    needs=("runs", "finite"),
)
def types(s: Subject) -> Violation | Note | None:
    """Runs in double precision, where a constant of float32 fails, as a constant on the CPU would fail on a GPU."""
    try:
        s.run(s.cases.few, executor="loop")
    except RunFailed:
        s.in_single_precision()
        raise
    return None


@check(
    "inputs", "no method changes its arguments, and clients that sit a round out stay as they are", needs=("finite",)
)
def inputs(s: Subject) -> Violation | Note | None:
    """Version counters show changes in place; copies of the states show all others."""
    for case in (s.cases.few, s.cases.averaged):
        run = s.run(case, executor="loop")
        for hook, name in run.tape.changes:
            what = f"`{hook}` changes {name}, which is an argument"
            return Violation(sources.of_hook(s.cls, hook), what, "return a new one")
        if run.spoiled:
            return Violation("", f"a round changes {in_words(min(run.spoiled))} in the previous state", "copy it first")
        if moved := _disturbed(run):
            place = sources.of_hook(s.cls, "aggregate", "receive", "predict")
            what = f"{in_words(min(moved))} changes in a round in which the client takes no part"
            return Violation(place, what, "leave it alone")
    return None


@check("draws", "nothing draws from the process's random streams", needs=("finite",))
def draws(s: Subject) -> Violation | Note | None:
    """Such numbers differ between executors, workers and resumed runs."""
    used = sorted(s.run(s.cases.few, executor="loop").streams_used)
    word = {
        "torch": r"torch\.(rand|normal|bernoulli|multinomial|manual_seed)|\.(normal_|uniform_|bernoulli)\(",
        "numpy": r"np\.random|numpy\.random",
        "python": r"\brandom\.\w+\(",
    }
    place = next((line for n in used if (line := sources.of_word(s.cls, word[n]))), "")
    what = f"a round draws from the process's random stream of {' and '.join(used)}"
    advice = (
        "in client code declare random numbers with Noise and take them from batch.eps or data.eps; in server code "
        "make a torch.Generator from task.seed and task.t"
    )
    return Violation(place, what, advice) if used else None


@check("own state", "a round gives the same numbers when it runs again: no state is kept elsewhere", needs=("draws",))
def own_state(s: Subject) -> Violation | Note | None:
    """What is set on the algorithm's object, and a round many times from the same state.

    That of several clients a few times, for what they do to each other; a single one's, which is cheaper, often.
    """
    alg = s.run(s.cases.few, executor="loop").sim.setup.algorithm
    if strange := set(vars(alg)) - set(type(alg).__dataclass_fields__):
        name = min(strange)
        place = sources.of_word(s.cls, rf"__setattr__|__dict__|\.{name}\b")
        return Violation(place, f"self.{name} is set during a run, but no checkpoint saves it", KEEP)
    for case, times in ((s.cases.few, FEW), (s.cases.alone, MANY)):
        if name := executor_choice.unsteady_round(s.begin(case, "loop"), times):
            what = f"{in_words(name)} gets another value when the same round runs again"
            return Violation("", f"{what}, so it depends on what no checkpoint saves, or on no seed", KEEP)
    return None


@check(
    "seed",
    "the seed determines the run, whatever else runs, and another seed gives another run",
    needs=("draws", "own state", "inputs", "messages"),
)
def seed(s: Subject) -> Violation | Note | None:
    """A second run of the same seed alternates rounds with a run of another seed."""
    case = s.cases.few
    executors: tuple[Executor, ...] = ("loop", "stack") if s.executor == "stack" else ("loop",)
    for executor in executors:
        want = s.run(case, executor=executor)
        repeated, other = (WatchedRun(s.begin(case, executor, seed=n), want.tape, case) for n in (0, 1))
        for t in range(1, 4):
            move_streams()
            repeated.train(t)
            other.train(min(t, 2))
        if difference := s.difference(repeated, want, exact=True):
            place = sources.of_word(s.cls, r"default_rng|time\(\)|urandom|uuid|secrets|cache")
            what = f"the same seed gives different numbers the second time: {difference}"
            advice = "take randomness from Noise, or from a generator made of task.seed, and keep no state elsewhere"
            return Violation(place, what, advice)
        heads = {n for n in want.states[2] if "head" in n and "/kept/" not in n}
        if equal := heads - differences(other.states[-1], want.states[2]):
            what = f"with another seed {in_words(min(equal))} is the same"
            return Violation("", what, "train the head, or initialise it at random")
    return None


@check("scores", "predict gives each row C scores, independent of the other rows", needs=("finite", "messages"))
def scores(s: Subject) -> Violation | Note | None:
    """Rows are scored alone and together."""
    run = s.run(s.cases.averaged, executor="loop")
    setup, state, place = run.sim.setup, run.sim.state, sources.of_hook(s.cls, "predict")
    alg, group = setup.algorithm, run.sim.state.groups[0]
    group.net.eval()
    down = alg.deployed(state.server, group.ids[:1], setup.task_in(state.round + 1))
    tensors = {n: t[0] for n, t in ({n: t[:1] for n, t in group.tensors.items()} | alg.receive(down)).items()}
    x = setup.federation.x[:6]

    def predicted(rows: Tensor) -> dict[str, Tensor]:
        out = alg.predict(Model(group.net, tensors, take(group.kept, 0)), rows, take(down, 0))
        return out if isinstance(out, dict) else {"": out}

    with torch.no_grad():
        together, alone = predicted(x), predicted(x[:1])
    for head, z in together.items():
        name, wanted = f"`predict`'s {head}" if head else "`predict`", (6, setup.task.classes)
        if z.shape != wanted:
            what = f"{name} has shape {tuple(z.shape)}, not {list(wanted)}"
            return Violation(place, what, "return one score for each row and class")
        if (z.isnan() | (z == torch.inf)).any():
            what = f"{name} returns scores that are not finite numbers"
            return Violation(place, what, "keep logarithms and divisions away from 0")
        if not torch.allclose(z[:1], alone[head], rtol=1e-4, atol=1e-6):
            what = f"{name} scores a row differently when the batch has other rows"
            advice = "use no mean, sort or norm over the rows: batches are padded, and their size may change"
            return Violation(place, what, advice)
    return None


def _disturbed(run: WatchedRun) -> set[str]:
    """Tensors of clients that changed in a round in which these clients took no part."""
    names: set[str] = set()
    for t in range(1, len(run.states)):
        participants = set(cohort.participants(run.sim.setup, t).tolist())
        moved = {n for n in differences(run.states[t - 1], run.states[t]) if n.startswith("client ")}
        names |= {n for n in moved if int(n.split("/")[0].split()[1]) not in participants}
    return names


class _FiniteWatch(TorchFunctionMode):
    """Watches every PyTorch operation for the first of an author's that makes NaN or infinity from finite numbers."""

    def __init__(self, cls: type) -> None:
        super().__init__()
        self.files, self.place, self.words = sources.files_of(cls), "", ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self.place and isinstance(out, Tensor) and out.is_floating_point() and not _finite(out):
            mine = [f for f in traceback.extract_stack() if f.filename in self.files]
            if mine and all(_finite(a) for a in args if isinstance(a, Tensor) and a.is_floating_point()):
                self.place = f"{Path(mine[-1].filename).name}:{mine[-1].lineno}"
                name = getattr(func, "__name__", "an operation")
                self.words = f"; the first NaN or infinity comes from {name} there"
        return out


def _finite(t: Tensor) -> bool:
    return bool(t.detach().isfinite().all())
