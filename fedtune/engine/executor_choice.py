"""Choose how to run clients of a user's code, stacked or one by one: the code is tried once, and its model is timed.

This happens in the process that starts a run, before its first round.  The result becomes the run's `executor`: workers
use it, the record stores it, and `resume` and `replay` read it from there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

from torch import Tensor, nn

from fedtune.core.errors import Diverged, UserError
from fedtune.core.process import one_thread
from fedtune.core.pure import is_declared, is_known
from fedtune.core.terminal import say
from fedtune.core.trees import Executor
from fedtune.data.federation import Federation, Split
from fedtune.engine import repeating, stacked_step
from fedtune.engine.client_errors import OtherNumbers, Unstackable, place, reason
from fedtune.experiment import registry
from fedtune.experiment.experiment import Experiment
from fedtune.nn import catalogue
from fedtune.nn.net import hook_of

Simulate = Callable[[Experiment, dict[str, Any], Federation], Any]

FRESH = "keep it in the model or in the algorithm's state, which are new in every trial"
KEPT = "keep in buffers (register_buffer) what a client is to keep, and draw with torch"
STATE = "store what changes in a client's state (`keep`, `remember`) or the server's (`init`, `aggregate`)"
SAME = "let its Python ask nothing of tensors but shapes and types (no requires_grad, register_hook), nor the time"
MOVED, ROUNDED = 1e-2, 1e-5  # of how far a number has moved, and of itself: what rounding may be
ROUNDS = 2  # that are tried: the second one receives what the first one sent
ROWS = 6  # of a client, in a trial
CLIENTS = 10  # at least two of each architecture, in a measurement
# of a client in a round that is tried or timed: in the second one nearly all are replayed, if they can be; an odd
# number, so that what is another at every second step is so at another client's
STEPS = 5
MANY_STEPS = 50  # of a client in a round that runs again and again


def choose_executor(experiment: Experiment, config: dict[str, Any], data: Federation, simulate: Simulate) -> Experiment:
    """The experiment with an executor that can run its code; on a CPU the faster one for a user's model.

    simulate: makes a simulation.  UserError for code that must be stacked (`--executor stack`) and cannot be, or that
    does not run at all.
    """
    own_model = any(map(catalogue.is_own, catalogue.members(experiment.scenario.model)))
    own_code = not registry.find(experiment.algorithm).__module__.startswith("fedtune.trainables.")
    if experiment.executor in ("rule", "loop") or not (own_model or own_code):
        return experiment
    with one_thread():
        try:
            why = _try(experiment, config, data, simulate)
        except Unstackable as error:
            if experiment.executor == "stack":
                raise
            say(
                "note: clients run one after the other (executor loop), because "
                f"{'client code at ' * (':' in error.where)}{error.where} {error.why}"
            )
            return replace(experiment, executor="loop")
        found = experiment.executor
        if found != "stack":
            # on a GPU a loop is bound by kernel launches
            found = "rule" if not own_model else "stack"
            if own_model and experiment.device == "cpu":
                found = _faster(experiment, config, data, simulate)
        if why and found != "loop":
            say(f"note: steps run eagerly, which is slower, because {why}; see docs/reference/hooks.md")
        return replace(experiment, executor=found)


def _try(experiment: Experiment, config: dict[str, Any], data: Federation, simulate: Simulate) -> str:
    """Train a few clients on a few rows, one by one and stacked; returns why steps run eagerly, if they do.

    Unstackable if only the run one by one works.  Code is judged by its numbers alone, never by how it is written.
    """
    small = _of_some(data, 2 * len(catalogue.members(experiment.scenario.model)), ROWS)
    train = partial(_trained, experiment, config, small, simulate=simulate)
    alone = train("loop")
    author = _author(alone)
    unsteady = _unsteady(experiment, config, small, simulate)
    anew = train("loop")
    if name := repeating.different(alone.numbers | alone.metrics, anew.numbers | anew.metrics):
        raise UserError(
            f"the same rows must give the same numbers, but when they run again, {author} gives {_short(name)} another "
            f"value; {FRESH}, and read neither the time nor a file that changes"
        )
    if unsteady:
        _refuse_memory(alone, author, unsteady)
    for hook in filter(None, map(hook_of, alone.nets)):
        raise Unstackable(hook, "has a hook, which may keep what it sees", KEPT)
    try:
        stacked = train("stack")
    except (Unstackable, OtherNumbers):
        raise
    except UserError as error:  # of code that runs alone
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise Unstackable(place(cause), reason(cause, certain=True)) from error
    if name := alone.other_than(stacked):
        raise Unstackable(author, f"trains {_short(name)} to other values than alone", SAME)
    return next((why for net in stacked.nets for why in stacked_step.reasons(net)), "")


def _unsteady(experiment: Experiment, config: dict[str, Any], data: Federation, simulate: Simulate) -> str:
    """A tensor or metric that gets another value when a round runs again; "" if none does, or training diverges."""
    for steps in (MANY_STEPS, STEPS):
        simulation = _begun(experiment, config, data, "loop", simulate, steps)
        with suppress(Diverged):  # which is no fault of the code
            return repeating.unsteady_round(simulation, max(3, repeating.CALLS // (steps * data.clients)))
    return ""


def _refuse_memory(alone: _Trained, author: str, name: str) -> NoReturn:
    """OtherNumbers or Unstackable for code that gives a number another value when a round runs again.

    Stacked, what it remembers would change once for all clients instead of once for each.
    """
    algorithm = alone.algorithm
    if is_declared(algorithm) and not alone.own_model:
        raise OtherNumbers(
            f"algorithm {algorithm.__name__} says pure = True, but when a round runs again, {author} gives "
            f"{_short(name)} another value; {STATE}, or do not say that it is pure (docs/reference/hooks.md)"
        )
    what = f"gives {_short(name)} another value when a round runs again: it remembers something"
    raise Unstackable(author, what, KEPT if is_known(algorithm.__module__) else STATE)


@dataclass(frozen=True, kw_only=True)
class _Trained:
    """What the first rounds of a simulation trained."""

    algorithm: type
    nets: list[nn.Module]
    own_model: bool
    start: dict[str, Tensor]
    numbers: dict[str, Tensor]
    metrics: dict[str, Tensor]  # of the last round

    def other_than(self, other: _Trained) -> str:
        """A tensor that the other trained to other values; "" if there is none.

        Values are other values if they differ by more than rounding, relative to how far training moved them.
        """
        for name, value in other.numbers.items():
            one = self.numbers[name]
            if one.shape != value.shape or _apart(one, value, self.start.get(name, one)):
                return name
        return ""


def _trained(
    experiment: Experiment, config: dict[str, Any], data: Federation, executor: Executor, *, simulate: Simulate
) -> _Trained:
    """The first rounds of a simulation."""
    simulation = _begun(experiment, config, data, executor, simulate)
    start, row = repeating.trained_numbers(simulation), dict[str, Any]()
    with suppress(Diverged):  # which is no fault of the code
        for _ in range(ROUNDS):
            row = simulation.step()
    return _Trained(
        algorithm=type(simulation.setup.algorithm),
        nets=[g.net for g in simulation.state.groups],
        own_model=any(map(catalogue.is_own, simulation.setup.task.models)),
        start=start,
        numbers=repeating.trained_numbers(simulation),
        metrics=repeating.metrics(row),
    )


def _author(trained: _Trained) -> str:
    """Which of the algorithm and the model are the user's own."""
    own = [] if is_known(trained.algorithm.__module__) else ["the algorithm"]
    return " or ".join(own + ["the model"] * trained.own_model)


def _short(name: str) -> str:
    return name.rpartition("/")[2]


def _apart(one: Tensor, other: Tensor, start: Tensor) -> bool:
    one, other, start = one.double(), other.double(), start.double()  # what is true or false, too
    moved = one - start if start.shape == one.shape else one
    all_of = (one - other, moved, one)
    difference, far, size = (float(t.nan_to_num().abs().amax()) if t.numel() else 0.0 for t in all_of)
    return difference > MOVED * far + ROUNDED * size


def _faster(experiment: Experiment, config: dict[str, Any], data: Federation, simulate: Simulate) -> Executor:
    """The executor that takes less time for a round of a few steps."""
    some = _of_some(data, max(CLIENTS, 2 * len(catalogue.members(experiment.scenario.model))))
    seconds: dict[Executor, float] = {}
    for executor in ("stack", "loop"):
        seconds[executor] = min(_rounds(experiment, config, some, executor, simulate), default=0.0)
    best: Executor = "loop" if seconds["loop"] < seconds["stack"] else "stack"
    other: Executor = "stack" if best == "loop" else "loop"
    if seconds[best]:
        ratio = seconds[other] / seconds[best]
        say(f"note: executor {best} for {experiment.scenario.model}: {ratio:.1f} times as fast as {other}, as measured")
    return best


def _rounds(
    experiment: Experiment, config: dict[str, Any], data: Federation, executor: Executor, simulate: Simulate
) -> list[float]:
    """The seconds of each of the first rounds; fewer if training diverges, which is no fault of the code."""
    simulation, seconds = _begun(experiment, config, data, executor, simulate), list[float]()
    with suppress(Diverged):
        for _ in range(ROUNDS):
            seconds.append(simulation.step()["seconds"])
    return seconds


def _begun(
    experiment: Experiment,
    config: dict[str, Any],
    data: Federation,
    executor: Executor,
    simulate: Simulate,
    steps: int = STEPS,
) -> Any:
    """A simulation of all these clients with so many steps a round, ready for its first round."""
    # the rows are there: a partition file, which says how many clients there are, is asked no more
    scenario = experiment.scenario.override(
        clients=data.clients, partition="iid", participation=1.0, eval_clients=0, all_classes=0
    )
    few = replace(experiment, scenario=scenario, executor=executor, device="cpu")
    return simulate(few, config | {"local_steps": steps}, data)


def _of_some(data: Federation, clients: int, rows: int | None = None) -> Federation:
    """The first clients, and the first rows of each."""

    def some(split: Split) -> Split:
        return Split(split.rows[:clients, :rows], split.counts[:clients].clip(max=rows))

    return data._replace(train=some(data.train), val=some(data.val), test=some(data.test))
