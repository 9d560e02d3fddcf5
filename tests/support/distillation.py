"""Steps of nets that teach one another, by hand."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedtune.experiment.scenario import Scenario
from fedtune.nn import architectures

MIXED = Scenario(model="htmini3", features=12)
WHOLE = {"batch": 24, "momentum": 0.0, "lr": 0.1}  # 24 is a multiple of the clients' 4, 8 and 6 rows: one step on all


def nets_of(sim: Any, k: int, small: str) -> tuple[architectures.Net, architectures.Net, dict[str, Tensor]]:
    """Client k's own net and its `meme` or `mentee`, as ordinary modules, and all tensors that it has."""
    task, group = sim.setup.task, next(g for g in sim.state.groups if k in g.ids.tolist())
    tensors = sim.state.server.get("shared", {}) | {n: t[group.ids.tolist().index(k)] for n, t in group.tensors.items()}
    names = task.models[k % len(task.models)], getattr(sim.setup.algorithm, small) or task.models[0]
    own, other = (architectures.build(n, task.shape, task.classes, task.features) for n in names)
    return part_of(own, tensors), part_of(other, tensors, f"{small}."), tensors


def part_of(net: architectures.Net, tensors: dict[str, Tensor], prefix: str = "") -> architectures.Net:
    net = net.double()
    net.load_state_dict({n: tensors[prefix + n].clone() for n in net.state_dict()})
    return net


def grads_of(loss: Tensor, net: torch.nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(net.parameters()), retain_graph=True))


def cut(grads: list[Tensor], bound: float) -> list[Tensor]:
    """As torch.nn.utils.clip_grad_norm_."""
    norm = np.sqrt(sum((g.numpy() ** 2).sum() for g in grads))
    return [g * min(1.0, bound / (norm + 1e-6)) if bound else g for g in grads]


def stepped(net: torch.nn.Module, grads: list[Tensor], lr: float) -> dict[str, Tensor]:
    pairs = zip(net.named_parameters(), grads, strict=True)
    return {n: (p - lr * g).detach() for (n, p), g in pairs}


def divergence(target: Tensor, logits: Tensor, over: str = "rows") -> Tensor:
    """PyTorch's own; over elements it is what its reduction "mean" gives, the codes' default."""
    each = F.kl_div(logits.log_softmax(1), target.log_softmax(1), log_target=True, reduction="none")
    return each.mean() if over == "elements" else each.sum(1).mean()
