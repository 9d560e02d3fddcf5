"""What an algorithm's code is given: the setting, a batch or all rows of a client, and what it may know of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedtune.core.trees import Tree


class Task(NamedTuple):
    """What an algorithm may know of the setting, and of the round."""

    classes: int
    features: int  # D, the width of body(x)
    clients: int  # K
    batch: int  # B
    seed: int
    # of one row: (channels, height, width) of an image, (features,) of a vector, (length,) of tokens
    shape: tuple[int, ...] = (1, 8, 8)
    models: tuple[str, ...] = ()  # the scenario's architectures; client i runs number i mod their count
    rounds: int = 1  # T
    taking_part: int = 0  # m, the clients of a round; 0: not known
    t: int = 0  # the round that is being run, from 1 on; 0: none yet
    # of the model's tensors by full name, own parts included; {} in `build`, in `keep` those of the client's own model
    shapes: Mapping[str, torch.Size] = {}
    parameters: tuple[str, ...] = ()  # those that are trained: neither running statistics nor of a frozen part


Law = Literal["normal", "uniform"]
LAWS: dict[str, Callable[..., Tensor]] = {"normal": torch.randn, "uniform": torch.rand}  # N(0, 1); on [0, 1)


class Noise(NamedTuple):
    """Random numbers that client code asks for; they come as data, from the client's own stream."""

    shape: tuple[int, ...]
    law: Law = "normal"


class Client(NamedTuple):
    """What client code may know of its own client.

    "η·K" of a paper is `client.path[part]`: how far SGD carries this part's parameters in all steps of the phase along
    a gradient of one that stays the same, with its momentum and scale; without these, `lr * steps`.  So a move divided
    by it is a mean of the phase's gradients, but for what clipping and weight decay do.  Adam's steps are about η a
    coordinate whatever the gradient's size, and such a mean tells nothing of it: its path is η a step.
    """

    kept: dict[str, Tree] = {}  # what it keeps between rounds (`keep`, `remember`), as it was when the round began
    # [] the learning rate of this phase (in `upload`: of the round's last), decayed; a part in `lr_scale` times it
    lr: Tensor = torch.zeros(())
    steps: Tensor = torch.zeros((), dtype=torch.int64)  # [] of this phase (in `upload`: of the round's last)
    path: dict[str, Tensor] = {}  # part -> [] as lr and steps; of a part that the phase does not train, 0


class Batch(NamedTuple):
    """One mini-batch of one client."""

    x: Tensor  # [B, …] images, vectors or tokens, or whatever the phase's pool holds
    y: Tensor  # [B]
    eps: dict[str, Tensor]  # the phase's noise, drawn anew for every step
    client: Client = Client()


class Data(NamedTuple):
    """All rows of one client, padded."""

    x: Tensor  # [N, …]
    y: Tensor  # [N]
    mask: Tensor  # [N] bool, False for padding
    eps: dict[str, Tensor]
    tally: dict[str, Tree] = {}  # what the loss tallied in this round's last phase that tallied anything
    client: Client = Client()
