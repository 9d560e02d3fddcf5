"""Choose how to run clients of a user's code, stacked or one by one: the code is tried once, and its model is timed.

It is judged by its numbers: code that remembers gives others when the same call is made many times.
This happens before a run's first round.  The result becomes its `executor`: workers use it, and the record stores it.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedtune import tracing
from fedtune.core.about import page
from fedtune.core.errors import Diverged, UserError
from fedtune.core.process import one_thread
from fedtune.core.pure import is_declared, is_known
from fedtune.core.terminal import say
from fedtune.core.trees import Executor, named
from fedtune.data.federation import Federation, Split
from fedtune.engine import stacked_code
from fedtune.engine.client_errors import OtherNumbers, Unstackable, place, reason
from fedtune.experiment.experiment import Experiment
from fedtune.nn import catalogue
from fedtune.nn.net import hook_of

Simulate = Callable[[Experiment, dict[str, Any], Federation], Any]
Begin = Callable[..., Any]  # (executor, steps a round) -> a simulation of some clients, ready for its first round

SAME = "let its Python ask nothing of tensors but shapes and types (no requires_grad, register_hook), nor the time"
MOVED, ROUNDED = 1e-2, 1e-5  # of how far a number has moved, and of itself: what rounding may be
ROUNDS = 2  # that are tried: the second one receives what the first one sent
ROWS = 6  # of a client, in a trial
CLIENTS = 10  # at least two of each architecture, in a measurement
# of a client in a round that is tried or timed: in the second one nearly all are replayed, if they can be; an odd
# number, so that what is another at every second step is so at another client's
STEPS = 5
MANY_STEPS = 50  # of a client in a round that runs again and again
CLOCK = ("seconds", "eval_seconds")
CALLS, SECONDS = 1000, 2.0  # at most; seconds of this thread's processor time
KEEP = "keep what changes in a client's state (`keep`, `remember`), the server's (`init`, `aggregate`) or in buffers"
ROUNDING = 1e-6  # of a tensor's largest number


def choose_executor(experiment: Experiment, config: dict[str, Any], data: Federation, simulate: Simulate) -> Experiment:
    """The experiment with an executor that can run its code; on a CPU the faster one for a user's model.

    simulate: makes a simulation.  UserError for code that must be stacked and cannot be, or that does not run at all.
    """
    model = experiment.scenario.model
    own_model = any(map(catalogue.is_own, members := catalogue.members(model)))
    if experiment.executor in ("rule", "loop"):
        return experiment

    def of_some(clients: int, rows: int | None = None) -> Begin:
        return partial(_begun, experiment, config, _of_some(data, clients, rows), simulate)

    with one_thread():
        try:
            why = _try(of_some(2 * len(members), ROWS), own_model)
        except Unstackable as error:
            if experiment.executor == "stack":
                raise
            say(f"note: clients run one after the other (executor loop), because {str(error).splitlines()[0]}")
            return replace(experiment, executor="loop")
        found = experiment.executor
        if found != "stack":
            # on a GPU a loop is bound by kernel launches
            found = "rule" if not own_model else "stack"
            if own_model and experiment.device == "cpu":
                found = _faster(model, of_some(max(CLIENTS, 2 * len(members))))
        if why and found != "loop":
            say(f"note: steps run eagerly, which is slower, because {why}; see {page('reference/hooks')}")
        return replace(experiment, executor=found)


def _try(begin: Begin, own_model: bool) -> str:
    """Train a few clients on a few rows, one by one and stacked; returns why steps run eagerly, if they do.

    Unstackable if only the run one by one works.  Code is judged by its numbers alone, never by how it is written.
    """
    alone = begin("loop")
    start, algorithm = trained_numbers(alone), type(alone.setup.algorithm)
    trained = _trained(alone)
    author = " or ".join(["the algorithm"] * (not is_known(algorithm.__module__)) + ["the model"] * own_model)
    unsteady = _unsteady(begin)
    if name := different(trained, _trained(begin("loop"))):
        raise UserError(
            f"the same rows must give the same numbers, but when they run again, {author} gives {_short(name)} another "
            f"value; {KEEP}, which are new in every trial, and read neither the time nor a file that changes"
        )
    if unsteady:  # stacked, what it remembers would change once for all clients instead of once for each
        what = f"gives {_short(unsteady)} another value when a round runs again: it remembers something"
        if is_declared(algorithm) and not own_model:
            raise OtherNumbers(
                f"algorithm {algorithm.__name__} says pure = True, but {what}; {KEEP} ({page('reference/hooks')})"
            )
        raise Unstackable(author, what, KEEP)
    for hook in filter(None, (hook_of(g.net) for g in alone.state.groups)):
        raise Unstackable(hook, "has a hook, which may keep what it sees", KEEP)
    try:
        _trained(stacked := begin("stack"))
    except (Unstackable, OtherNumbers):
        raise
    except UserError as error:  # of code that runs alone
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise Unstackable(place(cause), reason(cause)) from error
    for name, other in trained_numbers(stacked).items():
        if _apart(trained[name], other, start.get(name, trained[name])):
            raise Unstackable(author, f"trains {_short(name)} to other values than alone", SAME)
    return next((why for g in stacked.state.groups for why in stacked_code.reasons(g.net)), "")


def _unsteady(begin: Begin) -> str:
    """A tensor or metric that gets another value when a round runs again; "" if none does, or training diverges."""
    for steps in (MANY_STEPS, STEPS):
        simulation = begin("loop", steps)
        with suppress(Diverged):  # which is no fault of the code
            times = max(3, CALLS // (steps * simulation.setup.task.clients))
            return unsteady_round(simulation, times)
    return ""


def _trained(simulation: Any) -> dict[str, Tensor]:
    """The numbers of a simulation after its first rounds, and the metrics of the last."""
    rows = _rounds(simulation)
    return trained_numbers(simulation) | (metrics(rows[-1]) if rows else {})


def _rounds(simulation: Any) -> list[dict[str, Any]]:
    """The rows of the first rounds; fewer if training diverges, which is no fault of the code."""
    rows: list[dict[str, Any]] = []
    with suppress(Diverged):
        for _ in range(ROUNDS):
            rows.append(simulation.step())
    return rows


def _short(name: str) -> str:
    return name.rpartition("/")[2]


def _apart(one: Tensor, other: Tensor, start: Tensor) -> bool:
    """Whether values differ by more than rounding, relative to how far training moved them."""
    if one.shape != other.shape:
        return True
    one, other, start = one.double(), other.double(), start.double()  # what is true or false, too
    moved = one - start if start.shape == one.shape else one
    all_of = (one - other, moved, one)
    difference, far, size = (float(t.nan_to_num().abs().amax()) if t.numel() else 0.0 for t in all_of)
    return difference > MOVED * far + ROUNDED * size


def _faster(model: str, begin: Begin) -> Executor:
    executors: tuple[Executor, ...] = ("stack", "loop")
    seconds = {e: min((row["seconds"] for row in _rounds(begin(e))), default=0.0) for e in executors}
    best, other = sorted(executors, key=lambda e: seconds[e])
    if seconds[best]:
        ratio = seconds[other] / seconds[best]
        say(f"note: executor {best} for {model}: {ratio:.1f} times as fast as {other}, as measured")
    return best


def _begun(
    experiment: Experiment,
    config: dict[str, Any],
    data: Federation,
    simulate: Simulate,
    executor: Executor,
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
    def some(split: Split) -> Split:
        return Split(split.rows[:clients, :rows], split.counts[:clients].clip(max=rows))

    return data._replace(train=some(data.train), val=some(data.val), test=some(data.test))


def unsteady(call: Callable[[], Mapping[str, Tensor]], calls: int) -> str:
    """The name of the first number that differs when a call is made again, up to so many times; "" if none does."""
    first, began = call(), time.thread_time()
    for _ in range(calls - 1):
        if name := different(first, call()):
            return name
        if time.thread_time() - began > SECONDS:
            break
    return ""


def different(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> str:
    """The first name whose numbers are not the same, but for rounding; "" if all are."""
    names = [*first, *(n for n in second if n not in first)]
    return next((n for n in names if n not in first or n not in second or not _same(first[n], second[n])), "")


def _same(first: Tensor, second: Tensor) -> bool:
    if first.shape != second.shape:
        return False
    if torch.equal(first, second):
        return True
    first, second = first.double(), second.double()
    bound = ROUNDING * float(first.nan_to_num().abs().amax())
    return torch.allclose(first, second, rtol=0.0, atol=bound, equal_nan=True)


def trained_numbers(simulation: Any) -> dict[str, Tensor]:
    """Copies of the server's entries and the clients' tensors, by name, and the round."""
    state = simulation.state
    tree = {"server": state.server, "clients": tuple((g.tensors, g.kept) for g in state.groups)}
    return {n: t.clone() for n, t in named(tree).items()} | {"round": torch.tensor(state.round)}


def metrics(row: Mapping[str, Any]) -> dict[str, Tensor]:
    """A round's metrics by name, without its seconds."""
    return {f"the round/{n}": torch.tensor(v) for n, v in row.items() if n not in CLOCK and isinstance(v, float)}


def unsteady_round(simulation: Any, times: int) -> str:
    """The first tensor or metric that gets another value when a round is run again from the same state; "" if none.

    times: how often it runs at most.  Raises what the first round raises; a later one that diverges has no numbers.
    """
    start, rounds = copy.deepcopy(simulation.state_dict()), 0

    def round_again() -> dict[str, Tensor]:
        nonlocal rounds
        rounds += 1
        simulation.load_state_dict(copy.deepcopy(start))
        try:
            row = simulation.step()
        except Diverged:
            if rounds == 1:
                raise
            return {}
        return trained_numbers(simulation) | metrics(row)

    with tracing.eager():
        return unsteady(round_again, times)
