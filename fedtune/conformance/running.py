"""Checks that an algorithm runs, stays finite, changes nothing it is given, and draws only from its own streams."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedtune.conformance.check import Note, RunFailed, Violation, check
from fedtune.conformance.subject import Subject, WatchedRun, apart, in_words
from fedtune.conformance.watching import move_streams
from fedtune.core.errors import Diverged
from fedtune.core.trees import Executor, take
from fedtune.engine import engine, repeating
from fedtune.experiment.algorithm import Algorithm, Model
from fedtune.user_code import sources

STEPS = 5  # as which a round counts: it runs up to 200 times
KEEP = "store what changes in the server's entries (`init`, `aggregate`) or a client's (`keep`, `remember`)"


@check("runs", "three rounds run without an error, one client after the other")
def runs(s: Subject) -> Violation | Note | None:
    """In single precision with the loop executor, the plainest way to run."""
    try:
        _ = s.diverged  # another check says where
    except Exception as error:
        raise s.fell(error, s.settings.few) from error
    return None


@check("finite", "losses, parameters and the server's entries stay finite numbers under the defaults", needs=("runs",))
def finite(s: Subject) -> Violation | Note | None:
    """A diverged run is repeated to find the operation that made the first NaN or infinity."""
    if s.diverged is None:
        return None
    fell = s.fell(s.diverged, s.settings.few).violation
    with _watched(s.cls) as first:
        try:
            s.three_rounds()
        except Diverged:
            pass
    return fell._replace(where=first.where, what=fell.what + first.words)


@check(
    "types",
    "tensors that client and server code create have the dtype and device of their operands",
    needs=("runs", "finite"),
)
def types(s: Subject) -> Violation | Note | None:
    """Runs in double precision, where a constant of float32 fails, as a constant on the CPU would fail on a GPU."""
    try:
        s.run(s.settings.few, executor="loop")
    except RunFailed:
        s.in_single_precision()
        raise
    return None


@check(
    "inputs", "no method changes its arguments, and clients that sit a round out stay as they are", needs=("finite",)
)
def inputs(s: Subject) -> Violation | Note | None:
    """Version counters show changes in place; copies of the states show all others."""
    for setting in (s.settings.few, s.settings.averaged):
        run = s.run(setting, executor="loop")
        for hook, what in run.tape.changes:
            return Violation(
                sources.of_hook(s.cls, hook), f"`{hook}` changes {what}, which is an argument", "return a new one"
            )
        if run.spoiled:
            return Violation("", f"a round changes {in_words(min(run.spoiled))} in the previous state", "copy it first")
        if moved := _disturbed(run):
            return Violation(
                sources.of_hook(s.cls, "aggregate", "receive", "predict"),
                f"{in_words(min(moved))} changes in a round in which the client takes no part",
                "leave it alone",
            )
    return None


@check("draws", "nothing draws from the process's random streams", needs=("finite",))
def draws(s: Subject) -> Violation | Note | None:
    """Such numbers differ between executors, workers and resumed runs."""
    run = s.run(s.settings.few, executor="loop")
    if not run.drew:
        return None
    word = {
        "torch": r"torch\.(rand|normal|bernoulli|multinomial|manual_seed)|\.(normal_|uniform_|bernoulli)\(",
        "numpy": r"np\.random|numpy\.random",
        "python": r"\brandom\.\w+\(",
    }
    where = next((place for n in sorted(run.drew) if (place := sources.of_word(s.cls, word[n]))), "")
    return Violation(
        where,
        f"a round draws from the process's random stream of {' and '.join(sorted(run.drew))}",
        "in client code declare random numbers with Noise and take them from batch.eps or data.eps; in server code "
        "make a torch.Generator from task.seed and task.t",
    )


@check("own state", "a round gives the same numbers when it runs again: no state is kept elsewhere", needs=("draws",))
def own_state(s: Subject) -> Violation | Note | None:
    """A round up to 200 times from the same state, then one of a new run."""
    run = s.run(s.settings.few, executor="loop")
    alg, fields = run.sim.setup.algorithm, set(type(run.sim.setup.algorithm).__dataclass_fields__)
    if strange := set(vars(alg)) - fields:
        name = min(strange)
        where = sources.of_word(s.cls, rf"__setattr__|__dict__|\.{name}\b")
        return Violation(where, f"self.{name} is set during a run, but no checkpoint saves it", KEEP)
    if name := repeating.unsteady_round(s.begin(s.settings.few, "loop"), steps=STEPS):
        what = f"the same round trains {in_words(name)} to other values when it runs again"
        return Violation("", f"{what}, so it depends on what no checkpoint saves", KEEP)
    return None


@check(
    "seed",
    "the seed determines the run, whatever else runs, and another seed gives another run",
    needs=("draws", "own state", "inputs", "messages"),
)
def seed(s: Subject) -> Violation | Note | None:
    """A second run of the same seed alternates rounds with a run of another seed."""
    few = s.settings.few
    executors: tuple[Executor, ...] = ("loop", "stack") if s.executor == "stack" else ("loop",)
    for executor in executors:
        want = s.run(few, executor=executor)
        runs = [WatchedRun(s.begin(few, executor, seed=n), want.tape, few) for n in (0, 1)]
        again, other = runs
        for t in range(1, 4):
            move_streams()
            again.train(t)
            other.train(min(t, 2))
        if said := s.difference(again, want, exact=True):
            return Violation(
                sources.of_word(s.cls, r"default_rng|time\(\)|urandom|uuid|secrets|cache"),
                f"the same seed gives different numbers the second time: {said}",
                "take randomness from Noise, or from a generator made of task.seed, and keep no state elsewhere",
            )
        heads = [n for n in want.states[2] if "head" in n and "/kept/" not in n]
        same = heads and set(heads) - apart(other.states[-1], want.states[2])
        if same:
            return Violation(
                "", f"with another seed {in_words(min(same))} is the same", "train the head, or initialise it at random"
            )
    return None


@check("scores", "predict gives each row C scores, independent of the other rows", needs=("finite", "messages"))
def scores(s: Subject) -> Violation | Note | None:
    """Rows are scored alone and together."""
    run = s.run(s.settings.averaged, executor="loop")
    setting, state, where = run.sim.setup, run.sim.state, sources.of_hook(s.cls, "predict")
    alg, group = setting.algorithm, run.sim.state.groups[0]
    group.net.eval()
    ids = group.ids[:1]
    down = alg.deployed(state.server, ids, setting.task_in(state.round + 1))
    tensors = {n: t[0] for n, t in ({n: t[:1] for n, t in group.tensors.items()} | alg.receive(down)).items()}
    x = setting.federation.x[:6]

    def predicted(rows: Tensor) -> dict[str, Tensor]:
        model = Model(group.net, tensors, take(group.kept, 0))
        out = alg.predict(model, rows, take(down, 0))
        return out if isinstance(out, dict) else {"": out}

    with torch.no_grad():
        whole, single = predicted(x), predicted(x[:1])
    for head, z in whole.items():
        name = f"`predict`'s {head}" if head else "`predict`"
        if z.shape != (6, setting.task.classes):
            to_do = "return one score for each row and class"
            return Violation(where, f"{name} has shape {tuple(z.shape)}, not [6, {setting.task.classes}]", to_do)
        if (z.isnan() | (z == torch.inf)).any():
            return Violation(
                where, f"{name} returns scores that are not finite numbers", "keep logarithms and divisions away from 0"
            )
        if not torch.allclose(z[:1], single[head], rtol=1e-4, atol=1e-6):
            return Violation(
                where,
                f"{name} scores a row differently when the batch has other rows",
                "use no mean, sort or norm over the rows: batches are padded, and their size may change",
            )
    return None


def _disturbed(run: WatchedRun) -> set[str]:
    """Tensors of clients that changed in a round in which these clients took no part."""
    found: set[str] = set()
    for t in range(1, len(run.states)):
        chosen = set(engine.participants(run.sim.setup, t).tolist())
        moved = {n for n in apart(run.states[t - 1], run.states[t]) if n.startswith("client ")}
        found |= {n for n in moved if int(n.split("/")[0].split()[1]) not in chosen}
    return found


def overrides(cls: type[Algorithm], hook: str) -> bool:
    """Whether an algorithm has a method of its own for this."""
    return getattr(cls, hook) is not getattr(Algorithm, hook)


class _First:
    """The first operation of an author's code that made NaN or infinity from finite numbers: its place and its name."""

    where = ""
    words = ""


class _FiniteWatch(TorchFunctionMode):
    def __init__(self, cls: type, first: _First) -> None:
        super().__init__()
        self.files, self.first = sources.files_of(cls), first

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self.first.where and isinstance(out, Tensor) and out.is_floating_point():
            given = [a for a in args if isinstance(a, Tensor) and a.is_floating_point()]
            if not out.detach().isfinite().all() and all(a.detach().isfinite().all() for a in given):
                mine = [f for f in traceback.extract_stack() if f.filename in self.files]
                if mine:
                    self.first.where = f"{Path(mine[-1].filename).name}:{mine[-1].lineno}"
                    name = getattr(func, "__name__", "an operation")
                    self.first.words = f"; the first NaN or infinity comes from {name} there"
        return out


@contextmanager
def _watched(cls: type) -> Iterator[_First]:
    """Watch every PyTorch operation within this, for the first that makes NaN or infinity."""
    first = _First()
    with _FiniteWatch(cls, first):
        yield first
