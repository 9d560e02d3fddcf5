"""Where an algorithm comes to rest: a convex problem, clients of different classes, many steps on all rows a round."""

from functools import cache
from typing import Any

import torch
from torch import nn

from support.helpers import DIGITS, client_net, own_rows, play, random_federation, simulate

DECAY = 0.1  # of the weights: so that the losses have a minimum


@cache
def slope_at_rest(name: str, **config: Any) -> float:
    """The norm of the gradient, by the head, of the clients' mean loss where the algorithm came to rest.

    The body is frozen, so the problem is convex; clients hold different classes, so their own minima differ.
    """
    data = random_federation([8, 8], [[0, 1], [2, 3]])
    fixed = {"batch": 8, "local_steps": 5, "lr": 0.4, "momentum": 0.0, "weight_decay": DECAY, "body_lr_scale": 0.0}
    sim = simulate(name, DIGITS, data, executor="loop", **fixed, **config)
    play(sim, 60)
    total = []
    for k in range(2):
        net, (x, y) = client_net(sim, k), own_rows(sim, k)
        loss = nn.functional.cross_entropy(net(x), y)
        loss = loss + DECAY / 2 * sum((p**2).sum() for p in net.head.parameters())
        total.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.head.parameters()))]))
    return ((total[0] + total[1]) / 2).norm().item()
