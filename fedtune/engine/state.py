"""What defines a run: its setup, which is constant, and its state, which is everything that changes, from round 0 on.

Clients of an architecture start from one draw of the seed, or each from its own, or with weights from a file.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from fedtune.core import randomness
from fedtune.core.errors import UserError
from fedtune.core.pure import is_declared
from fedtune.core.trees import Executor, Tree, is_shared, take, take_cheaply, to_all, tree_map
from fedtune.data.devices import Devices
from fedtune.data.federation import Federation, Split
from fedtune.experiment import hooks, plans
from fedtune.experiment.algorithm import Algorithm, Client, Task, part_of, parts
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.nn import architectures
from fedtune.nn.architectures import Net

if TYPE_CHECKING:
    from fedtune.experiment.user_metrics import OwnMetric


class Group(NamedTuple):
    """The clients with the same architecture."""

    net: nn.Module  # the structure; its own values are never used
    ids: Tensor  # [K_g] client numbers, ascending
    tensors: dict[str, Tensor]  # the clients' own tensors (parts that are not shared), stacked [K_g, …]
    executor: Executor
    kept: dict[str, Tree] = {}  # what the clients keep between rounds, stacked
    wire: dict[str, Tree] = {}  # what the engine keeps of each client between rounds (residuals of a codec), stacked

    def at(self, index: Tensor) -> Group:
        """Copies of the clients at these positions; frozen tensors stay shared."""
        tensors, kept = take_cheaply(self.tensors, index), take(self.kept, index)
        return self._replace(ids=self.ids[index], tensors=tensors, kept=kept, wire=take(self.wire, index))


class State(NamedTuple):
    """Everything that changes from round to round."""

    server: dict[str, Tree]  # "shared": the averaged parts; and the algorithm's entries
    groups: tuple[Group, ...]
    round: int  # rounds trained so far
    bytes: int  # sent and received so far
    extra: dict[str, Tree] = {}  # what the engine itself keeps (bound of the clipping, clock); no algorithm sees it


class RunSetup(NamedTuple):
    """Everything of a run that does not change from round to round."""

    algorithm: Algorithm
    federation: Federation  # tensors on the device
    scenario: Scenario
    task: Task
    everywhere: Split | None = None  # test rows of all classes, the same for every client
    dtype: torch.dtype = torch.float32  # the floating-point type; rows may be integers (tokens)
    metrics: tuple[OwnMetric, ...] = ()  # the user's own metrics
    devices: Devices | None = None  # None: no device seconds are counted
    draws: tuple[str, ...] = ()  # with privacy: what its draws depend on beside seed and round
    seeds: tuple[int, ...] = ()  # for a joint setup with the clients of several runs: see `seed_stack`

    def task_in(self, t: int) -> Task:
        """The task that an algorithm gets in round t = 1, 2, …"""
        return self.task._replace(t=t)

    def streams(self, ids: Tensor, *address: str | int) -> list[torch.Generator]:
        """The clients' own random streams; that of client k is (seed, address, k)."""
        clients = self.task.clients
        of = [(self.seeds[k // clients], k % clients) if self.seeds else (self.task.seed, k) for k in ids.tolist()]
        return [randomness.stream(seed, *address, k) for seed, k in of]

    def scored_clients(self) -> Tensor:
        """The scored clients, ascending: all, or as many as the scenario says, the same in every round."""
        if not self.scenario.eval_clients:
            return torch.arange(self.task.clients, device=self.federation.x.device)
        order = torch.randperm(self.task.clients, generator=randomness.stream(self.task.seed, "scored"))
        return order[: self.scenario.eval_clients].sort().values.to(self.federation.x.device)


def start(experiment: Experiment, s: RunSetup, nets: list[tuple[Net, list[int], Executor]]) -> State:
    """Round 0 of an experiment; nets as in `common_start`."""
    state = common_start(s, nets)
    for g in state.groups:
        _move_constants(g.net, s.federation.x.device, s.dtype)
    if experiment.start == "own":
        state = _own_draws(s, state)
    if experiment.initial_weights:
        state = _from_weights(s, state, experiment.initial_weights)
    return state


def common_start(s: RunSetup, nets: list[tuple[Net, list[int], Executor]]) -> State:
    """Round 0: clients of an architecture start from the same draw of the seed, shared parts from the first one's.

    nets: the nets, each with its clients and executor.  UserError if shared parts differ in shape.
    """
    device = s.federation.x.device
    forms = [_with_own_parts(s, form) for form, _, _ in nets]
    server, groups = hooks.tree(s.algorithm, "init", s.algorithm.init(with_shapes(s, forms[0]).task), "entries"), []
    for net, (_, ids, executor) in zip(forms, nets, strict=True):
        tensors = {n: _cast(t.detach(), device, s.dtype) for n, t in net.state_dict().items()}
        staying = hooks.stays(s.algorithm, net)
        if s.scenario.batch_norm == "personal":
            staying = staying | {n for n, _ in net.named_buffers()}
        shared_parts = s.scenario.sent(s.algorithm.shared)
        shared = {n: t for n, t in tensors.items() if part_of(n) in shared_parts and n not in staying}
        own = {n: _of_each(s, n, t, len(ids)) for n, t in tensors.items() if n not in shared}
        memory = hooks.tree(s.algorithm, "keep", s.algorithm.keep(with_shapes(s, net).task), "what a client keeps")
        memory = tree_map(lambda t: _cast(t, device, s.dtype), to_all(memory, len(ids)))
        numbers = torch.tensor(sorted(ids), device=device)
        groups.append(Group(net, numbers, own, executor, tree_map(torch.clone, memory)))
        if s.algorithm.shared:
            _require_equal(s.algorithm, server.setdefault("shared", shared), shared, s.federation.some(ids))
    server = tree_map(lambda t: _cast(t, device, s.dtype), server)
    return State(server, tuple(_with_unreceived(s, server, g) for g in groups), 0, 0)


def _with_unreceived(s: RunSetup, server: dict[str, Tree], g: Group) -> Group:
    """Give clients their own copies of shared tensors that they do not receive."""
    names = plans.unreceived(s.algorithm, server, g.ids, with_shapes(s, g.net).task)
    if names and s.scenario.evaluation != "personal":
        raise hooks.wrong(
            s.algorithm,
            "receive",
            f"all shared parts if one global model is scored ({s.scenario.evaluation})",
            f"{names[0]} stays with each client",
            "use --evaluation personal",
        )
    own = {n: _of_each(s, n, server["shared"][n], len(g.ids)) for n in names}
    return g._replace(tensors=g.tensors | own)


def received(s: RunSetup, g: Group, down: dict[str, Tree]) -> dict[str, Tensor]:
    """The tensors of a group's clients after replacing those that they received."""
    alg, tensors = s.algorithm, s.algorithm.receive(down)
    if hook := next((h for h in ("receive", "broadcast", "deployed") if hooks.is_own(alg, h)), None):
        hooks.tensors(partial(hooks.wrong, alg, hook), tensors, g.net, s.dtype, (len(g.ids),))
        if lacking := [n for n in hooks.forms_of(g.net) if n not in g.tensors and n not in tensors]:
            raise hooks.wrong(
                alg,
                hook,
                "all tensors that clients do not keep, in every round",
                f"{lacking[0]} is left out",
                "tensors that are left out in the first rounds stay their own",
            )
    return g.tensors | tensors


def with_shapes(s: RunSetup, net: nn.Module) -> RunSetup:
    """The setup with the shapes of this model's tensors in its task."""
    shapes = {n: t.shape for n, t in net.state_dict().items()}
    trained = tuple(n for n, _ in net.named_parameters() if part_of(n) not in s.scenario.frozen)
    return s._replace(task=s.task._replace(shapes=shapes, parameters=trained))


def no_steps(s: RunSetup, net: nn.Module, ids: Tensor) -> Client:
    """These clients' scalars before the round's first phase, without their rows of each class."""
    zero_steps, zero_path = (
        torch.zeros((), dtype=d, device=ids.device).expand(len(ids)) for d in (torch.int64, s.dtype)
    )
    return Client({}, zero_path, zero_steps, dict.fromkeys(parts(net), zero_path), zero_steps[:, None].expand(-1, 0))


def _with_own_parts(s: RunSetup, form: Net) -> nn.Module:
    """The net with the parts that the algorithm adds; their values are drawn from the seed."""
    with randomness.seeded(randomness.number(s.task.seed, "parts")):
        net = hooks.built(s.algorithm, form, s.task._replace(shapes={}, parameters=()))
    if is_declared(type(s.algorithm)):
        own = [part for part in parts(net) if part not in ("body", "head")]
        net.declared = tuple(dict.fromkeys((*getattr(net, "declared", ()), *own)))  # type: ignore[assignment]
    missing = set(s.algorithm.shared) - set(parts(net))
    assert not missing, f"{type(s.algorithm).__name__} shares parts that the net lacks: {missing}"
    return net


def _of_each(s: RunSetup, name: str, t: Tensor, clients: int) -> Tensor:
    """A tensor for each client: copies, because each client trains its own; views if the part is frozen."""
    views = t.expand(clients, *t.shape)
    return views if part_of(name) in s.scenario.frozen else views.clone()


def _require_equal(alg: Algorithm, first: dict[str, Tensor], other: dict[str, Tensor], ids: str) -> None:
    """UserError unless a group's shared parts have the same shapes as the first group's, because they are averaged."""
    a, b = ({n: tuple(t.shape) for n, t in tree.items()} for tree in (first, other))
    if a != b:
        name = next(n for n in (*a, *b) if a.get(n) != b.get(n))
        raise UserError(
            f"{type(alg).__name__} averages {', '.join(alg.shared)}, so every client must have the same there, but "
            f"clients {ids} have {name} {b.get(name, 'not at all')} and others {a.get(name, 'not at all')}; give "
            "all of them one model, or use an algorithm that shares less"
        )


def _cast(t: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    return t.to(device, dtype if t.is_floating_point() else t.dtype)


def _move_constants(net: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Move buffers that are not in the state_dict to the device of the rows; they are shared and not trained."""
    for module in net.modules():
        for name in module._non_persistent_buffers_set:
            if isinstance(constant := getattr(module, name), Tensor):
                setattr(module, name, constant.to(device, dtype if constant.is_floating_point() else constant.dtype))


def _own_draws(s: RunSetup, state: State) -> State:
    """Draw each client's own parts at the client's own address, as the common draw is at (seed, "net")."""
    groups = []
    for g, member in zip(state.groups, s.task.models, strict=False):  # fewer clients than architectures: fewer groups
        draws = [_draw_tensors(s, member, k, g.tensors) for k in g.ids.tolist()]
        groups.append(g._replace(tensors={n: torch.stack([d[n] for d in draws]).to(t) for n, t in g.tensors.items()}))
    return state._replace(groups=tuple(groups))


def _draw_tensors(s: RunSetup, member: str, client: int, template: dict[str, Tensor]) -> dict[str, Tensor]:
    seed = randomness.number(s.task.seed, "net", client)
    net = architectures.build(member, s.task.shape, s.task.classes, s.task.features, seed)
    with randomness.seeded(randomness.number(s.task.seed, "parts", client)):
        tensors = hooks.built(s.algorithm, net, s.task).state_dict()
    return {n: tensors[n] for n in template}


def _from_weights(s: RunSetup, state: State, reference: str) -> State:
    """Replace initial values by those of FILE.pt[:part]: the server's shared tensors, every client's others."""
    from fedtune.experiment import initial_weights

    name, part = initial_weights.parse(reference)
    weights = initial_weights.find(name)
    shared, groups, fits = dict(state.server.get("shared", {})), [], []
    for g in state.groups:
        ids, own = g.ids.tolist(), dict(g.tensors)
        shapes = {n: t.shape for n, t in shared.items()} | {n: t.shape[1:] for n, t in own.items()}
        target = initial_weights.Target(shapes, shared, ids, g.net.head_was if isinstance(g.net, Net) else None)
        fits.append(initial_weights.fit(weights, target, part))
        for name, file_name in fits[-1].names.items():
            if name in shared:
                shared[name] = weights.common[file_name].to(shared[name], copy=True)
            if name not in own:
                continue
            if file_name in weights.common:
                values = weights.common[file_name].to(own[name], copy=True).expand_as(own[name])
                own[name] = values if is_shared(own[name]) else values.clone()  # a frozen part is shared by all
            else:
                own[name] = torch.stack([weights.clients[k][file_name] for k in ids]).to(own[name])
        groups.append(g._replace(tensors=own))
    initial_weights.require_some(weights, fits)
    server = state.server | ({"shared": shared} if shared else {})
    return state._replace(server=server, groups=tuple(groups))
