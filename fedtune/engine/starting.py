"""Initial values other than the seed's common draw: a draw per client, or weights from a file."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedtune.core import randomness
from fedtune.core.trees import Executor, is_shared
from fedtune.engine import engine
from fedtune.engine.engine import RunSetup, State
from fedtune.experiment import hooks
from fedtune.experiment.experiment import Experiment
from fedtune.nn import architectures
from fedtune.nn.architectures import Net


def start(experiment: Experiment, s: RunSetup, nets: list[tuple[Net, list[int], Executor]]) -> State:
    """Round 0 for an experiment; nets as in `engine.start`."""
    state = engine.start(s, nets)
    for g in state.groups:
        _move_constants(g.net, s.federation.x.device, s.dtype)
    if experiment.start == "own":
        state = own_draws(s, state)
    if experiment.initial_weights:
        state = from_weights(s, state, experiment.initial_weights)
    return state


def _move_constants(net: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Move buffers that are not in the state_dict to the device of the rows; they are shared and not trained."""
    for module in net.modules():
        for name in module._non_persistent_buffers_set:
            if isinstance(constant := getattr(module, name), Tensor):
                setattr(module, name, constant.to(device, dtype if constant.is_floating_point() else constant.dtype))


def own_draws(s: RunSetup, state: State) -> State:
    """Draw each client's own parts at the client's own address, as the common draw is at (seed, "net")."""
    groups = []
    for g, member in zip(state.groups, s.task.models, strict=False):  # fewer clients than architectures: fewer groups
        draws = [_draw_tensors(s, member, k, g.tensors) for k in g.ids.tolist()]
        groups.append(g._replace(tensors={n: torch.stack([d[n] for d in draws]).to(t) for n, t in g.tensors.items()}))
    return state._replace(groups=tuple(groups))


def _draw_tensors(s: RunSetup, member: str, client: int, template: dict[str, Tensor]) -> dict[str, Tensor]:
    """One client's own tensors."""
    seed = randomness.number(s.task.seed, "net", client)
    net = architectures.build(member, s.task.shape, s.task.classes, s.task.features, seed)
    with randomness.seeded(randomness.number(s.task.seed, "parts", client)):
        tensors = hooks.built(s.algorithm, net, s.task).state_dict()
    return {n: tensors[n] for n in template}


def from_weights(s: RunSetup, state: State, reference: str) -> State:
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
