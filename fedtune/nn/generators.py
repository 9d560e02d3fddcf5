"""Generators of features: the server trains them on the clients' heads, and clients train on generated features.

A net is a dict of tensors, so it is sent, saved and stacked like everything else.
Zhu et al. (FedGen), ICML 2021, arXiv:2105.10056, and its code, which FedPA's and FedGenP's codes extend.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtune.core import randomness

Net = dict[str, Tensor]
# returns the loss and None, or features and the loss's gradient with respect to them
Loss = Callable[[Net, int], tuple[Tensor, Tensor | None]]

_ROWS = 2**22  # logits held at once while the server trains personal generators


def new_net(noise: int, classes: int, hidden: int, features: int, heads: int, seed: int) -> Net:
    """[ε, onehot(y)] -> hidden, BatchNorm, ReLU -> features (`heads` times as many), with PyTorch's default start."""
    with randomness.seeded(seed):
        first, norm = nn.Linear(noise + classes, hidden), nn.BatchNorm1d(hidden)
        layers = {"in": first, "norm": norm, "out": nn.Linear(hidden, heads * features)}
    tensors = {f"{part}.{n}": t.detach() for part, layer in layers.items() for n, t in layer.state_dict().items()}
    return {n: t for n, t in tensors.items() if t.is_floating_point()}  # without BatchNorm's counter, which is not used


def generate(net: Net, noise: Tensor, y: Tensor, training: bool = False) -> Tensor:
    """Features h [B, D] from noise [B, Z] and labels y [B].  Training updates BatchNorm's statistics in place."""
    return features_of(net, net_inputs(noise, y, net["in.weight"].shape[1] - noise.shape[1]), training)


def net_inputs(noise: Tensor, y: Tensor, classes: int) -> Tensor:
    """A net's input: noise [..., Z] concatenated with the one-hot labels y [...]."""
    return torch.cat([noise, F.one_hot(y, classes).to(noise)], -1)


def features_of(net: Net, x: Tensor, training: bool) -> Tensor:
    """A net's features [B, D] for its inputs.  Training updates BatchNorm's statistics in place."""
    x = F.linear(x, net["in.weight"], net["in.bias"])
    mean, var, scale, shift = (net[f"norm.{n}"] for n in ("running_mean", "running_var", "weight", "bias"))
    x = F.batch_norm(x, mean, var, scale, shift, training)
    return F.linear(F.relu(x), net["out.weight"], net["out.bias"])


def draw_labels(weights: Tensor, u: Tensor) -> Tensor:
    """Labels [B] from uniform numbers u [B] and class weights [C] of any positive scale; never a class of weight 0."""
    mass = weights.cumsum(0)
    picked = (mass <= (u * mass[-1])[:, None]).sum(1)
    return picked.minimum((mass < mass[-1]).sum())  # rounding must not select a class after the last one with mass


def label_counts(y: Tensor, mask: Tensor, classes: int) -> Tensor:
    """The number of rows of each class, [C].  y [N], mask [N] bool."""
    return (F.one_hot(y, classes) * mask[:, None]).sum(0)


def label_share(counts: Tensor) -> Tensor:
    """p[k, y] = n_k,y / Σ_k n_k,y of counts [m, C]; 0 if no client has the class."""
    return counts.double() / counts.sum(0).clamp(min=1)  # whole numbers would divide to float32


def head_losses(shared: dict[str, Tensor], h: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of rows h [B, D] under every uploaded head at once, [m, B]."""
    weight, bias = shared["head.weight"].transpose(0, 1), shared["head.bias"].T  # [C, m, D], [C, m]
    # Classes first: one matrix product for all heads, and a softmax over columns, many times as fast as over rows.
    logits = (weight.flatten(0, 1) @ h.T + bias.reshape(-1, 1)).view(*bias.shape, -1)  # [C, m, B]
    return -logits.log_softmax(0).gather(0, y.expand(1, bias.shape[1], -1))[0]


def intra_inter_distance(h: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean Euclidean distance between rows of the same class, and of different classes.  h [N, D], y [N]."""
    distance, same_class = torch.cdist(h, h), y[:, None] == y
    same_others = same_class & ~torch.eye(len(y), dtype=torch.bool, device=y.device)
    return distance[same_others].mean(), distance[~same_class].mean()


def _moving(net: Net) -> list[str]:
    """The names of trained tensors.  The bias before BatchNorm cancels, and Adam would amplify its rounding."""
    return [n for n in net if "running" not in n and n != "in.bias"]


def start_memory(net: Net, clients: int | None = None) -> dict[str, Tensor]:
    """Adam's initial state for a net, or for `clients` separate nets."""
    numbers, lead = sum(net[n].numel() for n in _moving(net)), () if clients is None else (clients,)
    return {"step": torch.zeros(lead), "first": torch.zeros(*lead, numbers), "second": torch.zeros(*lead, numbers)}


def descend(
    net: Net,
    memory: dict[str, Tensor],
    loss: Loss,
    steps: int,
    lr: float,
    weight_decay: float = 0.0,
    optimizer: str = "adam",
) -> tuple[Net, dict[str, Tensor]]:
    """`steps` optimiser steps on loss(net, step), for one net or for a stack of nets, whose losses are then summed.

    As torch.optim's Adam (L2 penalty in the gradient) or SGD, but stacked nets have their own step counts.
    """
    lead = memory["step"].dim()
    moving = _moving(net)
    sizes = [net[n].shape[lead:].numel() for n in moving]
    net = {n: t.clone() for n, t in net.items()}
    flat = torch.cat([net[n].flatten(lead) for n in moving], -1)  # [(K,) P]: one optimiser step, few operations
    views = {n: t.view(net[n].shape) for n, t in zip(moving, flat.split(sizes, -1), strict=True)}
    leaves = {n: t.detach().requires_grad_() for n, t in views.items()}  # views, so they follow changes of flat
    step, first, second = (memory[n].clone() for n in ("step", "first", "second"))
    at = step + torch.arange(1, steps + 1, device=step.device).view(-1, *[1] * lead)  # [S, (K)]
    rate, spread = (lr / (1 - 0.9**at))[..., None], (1 - 0.999**at).rsqrt()[..., None]
    for s in range(steps):
        value, slope = loss(net | leaves, s)
        grads = torch.autograd.grad(value, list(leaves.values()), slope)
        grad = torch.cat([g.flatten(lead) for g in grads], -1)
        if weight_decay:
            grad.add_(flat, alpha=weight_decay)
        if optimizer == "sgd":
            flat.sub_(grad, alpha=lr)
            continue
        first.lerp_(grad, 0.1)
        second.mul_(0.999).addcmul_(grad, grad, value=0.001)
        flat.addcdiv_(first, second.sqrt().mul_(spread[s]).add_(1e-8).div_(rate[s]), value=-1)
    step = step if optimizer == "sgd" else step + steps
    return net | {n: t.clone() for n, t in views.items()}, {"step": step, "first": first, "second": second}


def chunks(nets: int, numbers: int) -> list[slice]:
    """Slices of nets (each needs `numbers` logits) that the server trains at once."""
    step = max(1, _ROWS // numbers)
    return [slice(i, min(i + step, nets)) for i in range(0, nets, step)]


def entropy_cap(factor: float, classes: int) -> float:
    """A bound on a cross-entropy, as a multiple of ln C; 0 means no bound."""
    return factor * math.log(classes) if factor else math.inf
