"""Choose how to run clients of a user's code, stacked or one by one: the code is tried once, and its model is timed.

This happens in the process that starts a run, before its first round.  The result becomes the run's `executor`: workers
use it, the record stores it, and `resume`, `extend` and `replay` read it from there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedtune.core.errors import Diverged, UserError
from fedtune.core.pure import is_declared, is_known
from fedtune.core.terminal import say
from fedtune.core.threads import one_thread
from fedtune.core.trees import Executor, named
from fedtune.data.federation import Federation, Split
from fedtune.engine import hidden_state, stacked_step
from fedtune.engine.client_errors import NotPure, Unstackable, place, reason
from fedtune.engine.hidden_state import Written
from fedtune.experiment import registry
from fedtune.experiment.experiment import Experiment
from fedtune.nn import catalogue
from fedtune.nn.net import hook_of
from fedtune.user_code import sources

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
                "note: clients run one after the other (executor loop), because client code at "
                f"{error.where} {error.why}"
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
    """Run a few clients on a few rows, one by one and stacked; returns why steps run eagerly, if they do.

    Unstackable if only the run one by one works.
    """
    small = _of_some(data, 2 * len(catalogue.members(experiment.scenario.model)), ROWS)
    watched = _Watched(simulate)
    with Written() as written:
        _rounds(experiment, config, small, "loop", watched, watched.look)
    if written.files:
        raise _outliving(written.where, f"writes {written.files[0]}")
    watched.require_nothing_outlives()
    watched.require_nothing_kept()
    stacked = _Watched(simulate)
    try:
        _rounds(experiment, config, small, "stack", stacked)
    except (Unstackable, NotPure):
        raise
    except UserError as error:  # of code that runs alone
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise Unstackable(place(cause), reason(cause, certain=True)) from error
    if name := watched.other_than(stacked):
        again = _Watched(simulate)
        _rounds(experiment, config, small, "loop", again)
        if other := watched.other_than(again):
            raise UserError(
                f"the same rounds must give the same numbers, but when they run again, {watched.whose} trains {other} "
                "to other values; it must keep nothing that outlives a trial, and read neither the time nor a file "
                "that changes"
            )
        raise Unstackable(watched.whose, f"trains {name} to other values than alone", SAME)
    return next((why for net in stacked.nets for why in stacked_step.reasons(net)), "")


def _outliving(where: str, what: str) -> UserError:
    return UserError(
        f"a trial's numbers must not depend on those before it, but client code at {where} {what}, which "
        f"outlives a trial; {FRESH}"
    )


class _Watched:
    """Makes simulations, and watches what their nets store outside tensors: all clients share one net."""

    def __init__(self, simulate: Simulate) -> None:
        self.simulate, self.start = simulate, dict[str, Tensor]()
        self.made: Any = None
        self.algorithm: type = type(None)
        self.nets, self.before = list[nn.Module](), list[dict[str, str]]()
        self.outside: list[dict[str, str]] = []  # the process, before each round and after the last
        self.fields: list[dict[str, str]] = []  # the algorithm's object, then too

    def __call__(self, *given: Any) -> Any:
        """The simulation."""
        made = self.made = self.simulate(*given)
        self.start = {n: t.clone() for n, t in self._numbers().items()}
        self.nets, self.algorithm = [g.net for g in made.state.groups], type(made.setup.algorithm)
        self.before = [*map(hidden_state.of_net, self.nets)]
        self.look()
        return made

    def look(self) -> None:
        """Take fingerprints of the algorithm's object and of everything that outlives a trial."""
        classes = [self.algorithm, *(type(m) for net in self.nets for m in net.modules())]
        self.outside.append(hidden_state.of_process(*classes))
        fields = vars(self.made.setup.algorithm)
        self.fields.append({f"self.{name}": hidden_state.fingerprint(value) for name, value in fields.items()})

    def require_nothing_outlives(self) -> None:
        """UserError for state that changes and outlives the trial: the next trial would start with it."""
        if len(self.outside) < 2:
            return
        first, last, now = self.outside[0], *self.outside[-2:]
        if len(self.outside) > ROUNDS and (names := hidden_state.changed(last, now)):
            raise _outliving(self._place(names[0]), f"changes {names[0]}")
        if names := hidden_state.changed(first, now):
            raise Unstackable(self._place(names[0]), f"changes {names[0]}, which all clients share", KEPT)

    def _place(self, name: str) -> str:
        """The first line of the user's file that contains the last part of a name; else the model or the algorithm."""
        *_, last = re.findall(r"\w+", name.split(",")[0])
        word = rf"\b{last}\b"
        classes = dict.fromkeys([*(type(m) for net in self.nets for m in net.modules()), self.algorithm])
        own = [cls for cls in classes if not is_known(cls.__module__)]
        found = next(filter(None, (sources.of_word(cls, word) for cls in own)), "")
        return found or (self.algorithm.__name__ if self.algorithm in own else "the model")

    def require_nothing_kept(self) -> None:
        """Unstackable if the algorithm's object or a net has changed; NotPure if the algorithm is declared pure.

        Stacked, they change once for all clients instead of once for each.
        """
        before = {name: value for fields in reversed(self.fields[:2]) for name, value in fields.items()}
        if names := [name for name, value in before.items() if self.fields[-1].get(name) != value]:
            where = self._place(names[0])
            if is_declared(self.algorithm):
                raise NotPure(
                    f"algorithm {self.algorithm.__name__} says pure = True, but its code at {where} changes "
                    f"{names[0]}; {STATE}, or do not say that it is pure (docs/reference/hooks.md)"
                )
            raise Unstackable(where, f"changes {names[0]}, which all clients share", STATE)
        for net, before in zip(self.nets, self.before, strict=True):
            if hook := hook_of(net):
                raise Unstackable(hook, "has a hook, which may keep what it sees", KEPT)
            if names := hidden_state.changed(before, hidden_state.of_net(net)):
                raise Unstackable(_of_attribute(net, names[0]), f"changes {names[0]}, which all clients share", KEPT)

    def _numbers(self) -> dict[str, Tensor]:
        """The server's entries, the clients' tensors, and the number of rounds."""
        state = self.made.state
        found = {"server": state.server, "clients": tuple((g.tensors, g.kept) for g in state.groups)}
        return named(found) | {"rounds": torch.tensor(state.round)}

    def other_than(self, other: _Watched) -> str:
        """A tensor that the same rounds trained to other values; "" if there is none.

        Values count as different if they differ by more than rounding, relative to how far training moved them.
        """
        if not (self.made and other.made):
            return ""
        ours = self._numbers()
        for name, value in other._numbers().items():
            one = ours[name]
            if one.shape != value.shape or _apart(one, value, self.start.get(name, one)):
                return name.rpartition("/")[2]
        return ""

    @property
    def whose(self) -> str:
        """Which of the algorithm and the model are the user's own."""
        own = [] if is_known(self.algorithm.__module__) else ["the algorithm"]
        return " or ".join(own + ["the model"] * any(map(catalogue.is_own, self.made.setup.task.models)))


def _apart(one: Tensor, other: Tensor, start: Tensor) -> bool:
    one, other, start = one.double(), other.double(), start.double()  # what is true or false, too
    moved = one - start if start.shape == one.shape else one
    all_of = (one - other, moved, one)
    difference, far, size = (float(t.nan_to_num().abs().amax()) if t.numel() else 0.0 for t in all_of)
    return difference > MOVED * far + ROUNDED * size


def _of_attribute(net: nn.Module, name: str) -> str:
    """The first line in the author's file that names an attribute of one of the net's modules; else the model."""
    path, _, attribute = name.rpartition(".")
    layer = dict(net.named_modules()).get(path, net)
    return sources.of_word(type(layer), rf"\.{re.escape(attribute)}\b") or "the model"


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
    experiment: Experiment,
    config: dict[str, Any],
    data: Federation,
    executor: Executor,
    simulate: Simulate,
    after_each: Callable[[], None] = lambda: None,
) -> list[float]:
    """The seconds of each of the first rounds; fewer if training diverges, which is no fault of the code."""
    # the rows are there: a partition file, which says how many clients there are, is asked no more
    scenario = experiment.scenario.override(
        clients=data.clients, partition="iid", participation=1.0, eval_clients=0, all_classes=0
    )
    given = replace(experiment, scenario=scenario, executor=executor, device="cpu")
    seconds: list[float] = []
    with suppress(Diverged):
        simulation = simulate(given, config | {"local_steps": STEPS}, data)
        for _ in range(ROUNDS):
            seconds.append(simulation.step()["seconds"])
            after_each()
    return seconds


def _of_some(data: Federation, clients: int, rows: int | None = None) -> Federation:
    """The first clients, and the first rows of each."""

    def some(split: Split) -> Split:
        return Split(split.rows[:clients, :rows], split.counts[:clients].clip(max=rows))

    return data._replace(train=some(data.train), val=some(data.val), test=some(data.test))
