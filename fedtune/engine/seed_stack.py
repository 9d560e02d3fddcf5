"""Runs of one configuration on several seeds: each has its own server, and their clients train as one stack.

A stacked step of a small net costs more in dispatch than in arithmetic, so a hundred clients take little longer than
twenty.  In a joint `RunSetup`, client i is client i mod K of run i div K.  Draws come from `RunSetup.streams`, which
belong to single clients, so a run's numbers are the same as alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from fedtune.core.errors import Diverged
from fedtune.core.pure import is_declared
from fedtune.core.trees import Ragged, Tree, join, leaves, take
from fedtune.data import federation
from fedtune.engine import executors
from fedtune.engine.client_errors import OtherNumbers, Unstackable
from fedtune.engine.state import Group, RunSetup, State
from fedtune.experiment.algorithm import Algorithm
from fedtune.experiment.experiment import Experiment, dtype_of, shape_of, task_of
from fedtune.nn import architectures
from fedtune.user_code import user_imports


class Work(NamedTuple):
    """Some clients of one run for which code is to run, and the code's other arguments, with a client axis."""

    run: int  # its place among the runs
    group: int  # the place of the clients' group among the run's groups
    g: Group
    trees: Tree


Plan = TypeVar("Plan", bound=tuple[Any, ...])
Code = Callable[[RunSetup, Group, Tree], Tree]  # (setup, clients, their trees) -> a tree with a client axis


class SeedStack(NamedTuple):
    """The setups of several runs, and the joint setup of all their clients."""

    setups: tuple[RunSetup, ...]
    joint: RunSetup | None = None  # None: every run's clients work by themselves
    limits: tuple[int, ...] = ()  # for each group: the most clients in a stack

    def run(self, works: Sequence[Work], code: Code) -> list[Tree | Diverged]:
        """The code's results for the clients of each work, or how they diverged.

        As many works as a stack should hold run at once; if that fails, each alone, as one of them may be the cause.
        """
        results: list[Tree | Diverged] = []
        for batch in self._batches(works):
            if len(batch) > 1:
                try:
                    results += self._run_together(batch, code)
                    continue
                except (OtherNumbers, Unstackable):
                    raise
                except Exception:
                    pass
            for w in batch:
                try:
                    results.append(code(self.setups[w.run], w.g, w.trees))
                except Diverged as error:
                    results.append(error)
        return results

    def _run_together(self, works: Sequence[Work], code: Code) -> list[Tree]:
        assert self.joint
        results = code(self.joint, self._joined(works), one_after_another([w.trees for w in works]))
        ends = accumulate((len(w.g.ids) for w in works), initial=0)
        return [take(results, slice(a, b)) for a, b in pairwise(ends)]

    def _batches(self, works: Sequence[Work]) -> list[Sequence[Work]]:
        """Works grouped into stacks: as few stacks as the limits allow, of similar size."""
        if self.joint is None or len(works) < 2 or not _same_structure(works):
            return [[w] for w in works]
        first = works[0]
        numbers = sum(t.numel() for t in leaves((first.g.tensors, first.g.kept, first.trees)))
        of_client = max(1, numbers // max(1, len(first.g.ids)))
        limit = min(self.limits[first.group], executors.NUMBERS_AT_ONCE // of_client)
        at_once = max(1, limit // max(len(w.g.ids) for w in works))
        stacks = -(-len(works) // at_once)
        return [works[len(works) * i // stacks : len(works) * (i + 1) // stacks] for i in range(stacks)]

    def _joined(self, works: Sequence[Work]) -> Group:
        first, clients = works[0].g, self.setups[0].task.clients
        ids = torch.cat([w.g.ids + w.run * clients for w in works])
        tensors, kept = (one_after_another(t) for t in zip(*((w.g.tensors, w.g.kept) for w in works), strict=True))
        return first._replace(ids=ids, tensors=tensors, kept=kept)


def stacked(setups: Sequence[RunSetup], states: Sequence[State]) -> SeedStack:
    """The runs of one experiment on several seeds, their clients stacked if that is faster."""
    first, groups = setups[0], states[0].groups
    if len(setups) == 1 or not _of_one_kind(setups, states):
        return SeedStack(tuple(setups))
    limits = tuple(_at_once(first, i, g) for i, g in enumerate(groups))
    if not any(limits):
        return SeedStack(tuple(setups))
    joint = federation.joined([s.federation for s in setups])
    runs, begin = [], 0
    for s in setups:  # each run's rows become a view of the joint rows
        f, part = s.federation, slice(begin, begin + len(s.federation.x))
        runs.append(s._replace(federation=f._replace(x=joint.x[part], y=joint.y[part]), algorithm=first.algorithm))
        begin += len(f.x)
    everywhere = [s.everywhere for s in setups if s.everywhere]
    joint_rows = federation.joined_split(everywhere, [len(s.federation.x) for s in setups]) if everywhere else None
    seeds = tuple(s.task.seed for s in setups)
    joint_setup = runs[0]._replace(federation=joint, everywhere=joint_rows, seeds=seeds)
    return SeedStack(tuple(runs), joint_setup, limits)


def seeds_at_once(experiment: Experiment, config: dict[str, Any]) -> int:
    """How many seeds of an experiment one stack should hold; 1: every seed runs alone."""
    _, scenario = experiment.resolve(config)
    (shape, classes), dtype = shape_of(scenario), dtype_of(scenario)
    task = task_of(scenario, classes, shape, experiment.seed, dtype)
    arguments = task.shape, task.classes, task.features, dtype, task.batch, experiment.device, experiment.executor
    clients = -(-scenario.participants // len(task.models))  # clients of one architecture in a round
    return max(1, min(clients_at_once(member, *arguments) for member in task.models) // clients)


@lru_cache(maxsize=64)  # a family has many members, a comparison many runs
def clients_at_once(
    member: str,
    shape: architectures.Shape,
    classes: int,
    features: int,
    dtype: torch.dtype,
    batch: int,
    device: str,
    executor: str,
) -> int:
    """How many clients of an architecture one stack should hold if several runs can share it; 0: runs stay alone."""
    net = architectures.build(member, shape, classes, features)
    if executors.choose(executor, net, device) == "loop":
        return 0
    return executors.clients_at_once(net, torch.zeros(1, *shape, dtype=dtype), batch, device)


def _at_once(s: RunSetup, i: int, g: Group) -> int:
    """How many clients of a group one stack should hold; 0 if that is fewer than two runs have."""
    x, task = s.federation.x, s.task
    dtype = torch.float32 if x.is_floating_point() else x.dtype
    arguments = task.shape, task.classes, task.features, dtype, task.batch, x.device.type, g.executor
    limit = clients_at_once(task.models[i], *arguments)
    return limit if limit >= 2 * min(len(g.ids), s.scenario.participants) else 0


def by_plan(plans: Mapping[int, Plan]) -> Iterator[tuple[Plan, list[int]]]:
    """Group the runs by the plan of their round; all have the same one unless an algorithm uses the seed."""
    remaining = dict(plans)
    while remaining:
        plan = next(iter(remaining.values()))
        runs = [i for i, p in remaining.items() if _form(p) == _form(plan)]
        yield plan, runs
        remaining = {i: p for i, p in remaining.items() if i not in runs}


def _form(plan: Any) -> Any:
    """A key for plans: two `partial` objects of the same function and arguments are equal."""
    if isinstance(plan, tuple):
        return tuple(map(_form, plan))
    if isinstance(plan, partial):
        return plan.func, _form(plan.args), {n: _form(v) for n, v in plan.keywords.items()}
    return id(plan) if isinstance(plan, Tensor) else plan


def _of_one_kind(setups: Sequence[RunSetup], states: Sequence[State]) -> bool:
    """Whether runs differ only in the values of their tensors, and not in algorithm, number of clients or constants."""
    first = setups[0]
    kinds = [(s.federation.clients, s.task.clients) for s in setups]
    if any(kind != (first.task.clients, first.task.clients) for kind in kinds):
        return False
    if not all(_same_algorithm(s.algorithm, first.algorithm) for s in setups):
        return False
    nets = [[g.net for g in state.groups] for state in states]
    return all(len(run_nets) == len(nets[0]) and all(map(_same_constants, run_nets, nets[0])) for run_nets in nets)


def _same_algorithm(a: Algorithm, b: Algorithm) -> bool:
    """Whether one may stand for the other: a user's has modules of its own in each run, which a pure one ignores."""
    kinds = [(user_imports.kind(type(of)), vars(of)) for of in (a, b)]
    return a == b or (is_declared(type(a)) and kinds[0] == kinds[1])


def _same_constants(a: nn.Module, b: nn.Module) -> bool:
    """Whether two nets have the same modules, with the same tensors that are not in a state_dict."""
    modules, others = ([(n, m, _constants(m)) for n, m in net.named_modules()] for net in (a, b))
    return len(modules) == len(others) and all(
        n == k
        and user_imports.kind(type(m)) == user_imports.kind(type(o))
        and c.keys() == d.keys()
        and all(torch.equal(c[i], d[i]) for i in c)
        for (n, m, c), (k, o, d) in zip(modules, others, strict=True)
    )


def _constants(module: nn.Module) -> dict[str, Tensor]:
    buffers = {n: module._buffers[n] for n in module._non_persistent_buffers_set}
    return {n: t for n, t in (vars(module) | buffers).items() if isinstance(t, Tensor)}


def _same_structure(works: Sequence[Work]) -> bool:
    """Whether the arguments of all works have the same structure, so that they can be joined into one tree."""
    forms = [_shapes((w.g.tensors, w.g.kept, w.trees)) for w in works]
    return works[0].g.executor == "stack" and all(form == forms[0] for form in forms)


def _shapes(tree: Tree) -> Any:
    """The structure of a tree, without its client axis and without the length of its tables."""
    if isinstance(tree, dict):
        return {n: _shapes(t) for n, t in tree.items()}
    if isinstance(tree, Ragged):
        axes = tree.present.dim()
        return "a table", axes, tree.values.shape[axes:], tree.values.dtype
    return tuple(map(_shapes, tree)) if isinstance(tree, tuple) else (tree.shape[1:], tree.dtype)


def one_after_another(trees: Sequence[Tree]) -> Tree:
    """As `trees.join`, but shorter tables are padded to the longest with absent entries."""
    first = trees[0]
    if len(trees) == 1:
        return first
    if isinstance(first, dict):
        return {n: one_after_another([t[n] for t in trees]) for n in first}
    if isinstance(first, Ragged):
        longest = [max(lengths) for lengths in zip(*(t.present.shape[1:] for t in trees), strict=True)]
        return join([_lengthened(t, longest) for t in trees])
    if isinstance(first, tuple):
        return type(first)(*map(one_after_another, zip(*trees, strict=True)))
    return torch.cat(list(trees))


def _lengthened(table: Ragged, shape: Sequence[int]) -> Ragged:
    """The table padded with absent entries to a client's full shape."""
    if list(table.present.shape[1:]) == list(shape):
        return table
    present = table.present.new_zeros(len(table.present), *shape)
    values = table.values.new_zeros(*present.shape, *table.values.shape[present.dim() :])
    filled = tuple(map(slice, table.present.shape))
    values[filled], present[filled] = table.values, table.present
    return Ragged(values, present)
