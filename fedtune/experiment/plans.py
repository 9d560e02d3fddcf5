"""The plan of a round, and what is trained before scoring, from the algorithm; a user's plan is checked first."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from fedtune.core.errors import UserError, shown
from fedtune.core.trees import Tree, in_words
from fedtune.experiment.algorithm import DOWN, UP, Algorithm, Noise, Phase, Step, Task, part_of, parts
from fedtune.experiment.hooks import Checked, broadcast, is_own, stays, tree, wrong
from fedtune.user_code import user_errors

_DECIDE = ("receive", "broadcast", "round")  # methods that decide which client receives what
FIRST_ROUNDS = 20  # rounds that are checked for shared tensors that clients do not receive


def unreceived(alg: Algorithm, server: dict[str, Tree], ids: Tensor, task: Task) -> list[str]:
    """The shared tensors that clients do not receive at the start of one of the first rounds: they stay their own."""
    if not server.get("shared") or not _decides(alg):
        return []
    received: list[Mapping[str, Any]] = []
    for t in range(1, min(task.rounds, FIRST_ROUNDS) + 1):
        now = task._replace(t=t)
        got = alg.receive(broadcast(alg, "broadcast", server, ids, now)) if plan(alg, now)[:1] == (DOWN,) else {}
        received.append(got if isinstance(got, dict) else server["shared"])  # errors are reported in their round
    return [n for n in server["shared"] if any(n not in got for got in received)]


def _decides(alg: Algorithm) -> bool:
    return is_own(alg, *_DECIDE) or type(alg).receive is not Algorithm.receive


def not_given(alg: Algorithm, net: nn.Module, task: Task) -> set[str]:
    """Names of a net's shared tensors that clients do not receive, without a server."""
    if not _decides(alg):
        return set()
    with user_errors.reported(passing=(UserError,)):
        tensors, names = net.state_dict(), tuple(n for n, _ in net.named_parameters())
        stay, shapes = stays(alg, net), {n: t.shape for n, t in tensors.items()}
        clients = min(task.clients, 2)  # enough for names; a server may keep something for every pair of clients
        task = task._replace(shapes=shapes, parameters=names, clients=clients)
        shared = {n: t for n, t in tensors.items() if part_of(n) in alg.shared and n not in stay}
        server = tree(alg, "init", alg.init(task), "entries") | {"shared": shared}
        return {*unreceived(alg, server, torch.zeros(1, dtype=torch.int64), task)}


def plan(alg: Algorithm, task: Task) -> tuple[Phase | str, ...]:
    """The actions of a round."""
    if is_own(alg, "round", "phases"):
        if type(alg).round is Algorithm.round:
            _phases(alg, "phases", alg.phases(task))
        return _phases(alg, "round", alg.round(task), (DOWN, UP))
    return tuple(alg.round(task))


def adapting(alg: Algorithm, task: Task) -> tuple[Phase, ...]:
    """The phases that are trained before scoring."""
    phases = alg.adapt(task)
    return _phases(alg, "adapt", phases) if is_own(alg, "adapt") else phases  # type: ignore[return-value]


def _phases(alg: Algorithm, hook: str, actions: Checked, signs: tuple[str, ...] = ()) -> tuple[Phase | str, ...]:
    """Phases, and the actions (signs) that may stand between them."""
    must = f"a tuple of {' and '.join([*map(repr, signs), 'Phase(…)'])}"
    if isinstance(actions, Phase):
        raise wrong(alg, hook, must, "returns a single Phase", "write (Phase(…),) with the comma")
    if not isinstance(actions, tuple | list):
        raise wrong(alg, hook, must, f"returns {in_words(actions)}")
    for action in actions:
        if isinstance(action, Phase):
            _require_fields(alg, hook, action)
        elif not (isinstance(action, str) and action in signs):
            raise wrong(alg, hook, must, f"it contains {in_words(action)}")
    return tuple(actions)


def _is_count(v: Any) -> bool:
    return v is None or (isinstance(v, int) and not isinstance(v, bool) and v >= 0)


def _is_number(v: Any) -> bool:
    return v is None or (isinstance(v, Real) and 0 <= float(v) < math.inf)


def _is_range(v: Any) -> bool:
    return isinstance(v, tuple) and len(v) == 2 and v[0] <= v[1]


# what fields of a phase must be, and in words
RULES: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (("loss",), callable, "a function"),
    (("pool", "rows", "read", "begin", "project", "until"), lambda v: v is None or callable(v), "a function"),
    (("train",), lambda v: isinstance(v, tuple | list) and all(isinstance(n, str) for n in v), "a tuple of parts"),
    (("epochs", "steps"), _is_count, "a whole number"),
    (("window", "batches", "repeat"), lambda v: _is_count(v) and (v or 0) >= 1, "a whole number from 1 on"),
    (("lr", "clip"), _is_number, "0 or more"),
    (("momentum",), lambda v: _is_number(v) and (v or 0) < 1, "at least 0 and below 1"),
    (("share",), lambda v: v is not None and _is_number(v) and 0 < v <= 1, "above 0 and at most 1"),
    (("plain",), lambda v: isinstance(v, bool), "True or False"),
    (("lr_scale",), lambda v: isinstance(v, Mapping), "numbers by part"),
    (("bounds",), lambda v: isinstance(v, Mapping) and all(map(_is_range, v.values())), "(least, most) by part"),
    (("after",), lambda v: v is None or isinstance(v, Step), "a Step"),
    (
        ("noise", "pool_noise"),
        lambda v: isinstance(v, dict) and all(isinstance(e, Noise) for e in v.values()),
        "Noise by name",
    ),
)


def _require_fields(alg: Algorithm, hook: str, phase: Phase) -> None:
    """UserError for a phase that cannot be run."""
    for name, holds, rule in ((name, holds, rule) for names, holds, rule in RULES for name in names):
        value = getattr(phase, name)
        if not holds(value):
            comma = "; write ('body',) with the comma" if name == "train" and isinstance(value, str) else ""
            raise wrong(alg, hook, f"phases whose {name} is {rule}", f"it is {in_words(value)}{comma}")


def require_parts(alg: Algorithm, phase: Phase, net: nn.Module) -> None:
    """UserError for a phase that names a part the net does not have: it would silently train nothing."""
    if is_own(alg, "round", "phases", "adapt"):
        names = [*parts(net)]
        for name in (*phase.train, *phase.lr_scale, *phase.bounds, *(phase.after.train if phase.after else ())):
            if name not in names:
                hook = next(h for h in ("phases", "round", "adapt") if is_own(alg, h))
                raise wrong(alg, hook, f"phases of the net's parts, {', '.join(names)}", f"names {shown(name)}")
