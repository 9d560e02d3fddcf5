"""The arguments of an algorithm's code, the task, a client, its batch or rows; and what is known of its net before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedtune.core.trees import Tree


class Task(NamedTuple):
    """What an algorithm may know about the scenario and the round."""

    classes: int
    features: int  # D, the width of body(x)
    clients: int  # K
    batch: int  # B
    seed: int
    # shape of a row: (channels, height, width) of an image, (features,) of a vector, (length,) of tokens
    shape: tuple[int, ...] = (1, 8, 8)
    models: tuple[str, ...] = ()  # the scenario's architectures; client i runs number i mod their count
    rounds: int = 1  # T
    taking_part: int = 0  # m, the clients of a round, where chance decides their expected number; 0: unknown
    t: int = 0  # the current round, from 1 on; 0: none yet
    # shapes of the model's tensors by full name; {} in `build`; in `keep` those of the client's own model
    shapes: Mapping[str, torch.Size] = {}
    parameters: tuple[str, ...] = ()  # names of the trained tensors: no running statistics, no frozen part
    averaging: str = "rows"  # what models are averaged over: rows, or clients


class NetStructure(NamedTuple):
    """The structure of a net, without its values."""

    parts: tuple[str, ...]
    shapes: dict[str, torch.Size]  # of every tensor, by its full name
    buffers: frozenset[str]  # names of BatchNorm's running statistics
    head_was: str | None  # the head's name in a user's own module
    stays: frozenset[str]  # tensors of shared parts that stay with each client
    unsent: frozenset[str]  # those of `stays` that the client does not send either
    adapts: bool  # whether a client trains before it is scored


Distribution = Literal["normal", "uniform"]
SAMPLERS: dict[str, Callable[..., Tensor]] = {"normal": torch.randn, "uniform": torch.rand}  # N(0, 1); on [0, 1)


class Noise(NamedTuple):
    """Random numbers that client code requests; they arrive as data, drawn from the client's own stream.

    >>> from fedtune import Noise
    >>> Noise((10, 64))  # in `upload_noise`, or a phase's `noise`
    Noise(shape=(10, 64), distribution='normal')
    """

    shape: tuple[int, ...]
    distribution: Distribution = "normal"


class Client(NamedTuple):
    """What client code may know about its own client.

    "η·K" of a paper is `client.path[part]`: how far SGD moves this part's parameters in all steps of the phase along a
    constant gradient of size one, with momentum and lr_scale; without these it is `lr * steps`.  So an update divided
    by it is a mean of the phase's gradients, except for clipping and weight decay.  Adam's steps have size η per
    coordinate whatever the gradient's size, so such a mean says nothing about the gradient; its path is η per step.
    """

    kept: dict[str, Tree] = {}  # its state between rounds (`keep`, `remember`), as at the beginning of the round
    # [] this phase's learning rate (in `upload`: the last phase's), decayed, before factors of `lr_scale`
    lr: Tensor = torch.zeros(())
    steps: Tensor = torch.zeros((), dtype=torch.int64)  # [] of this phase (in `upload`: of the last phase)
    path: dict[str, Tensor] = {}  # part -> []; 0 for a part that the phase does not train
    counts: Tensor = torch.zeros(0, dtype=torch.int64)  # [C] its training rows of each class


class Batch(NamedTuple):
    """One mini-batch of one client."""

    x: Tensor  # [B, …] images, vectors or tokens, or whatever the phase's pool holds
    y: Tensor  # [B]
    eps: dict[str, Tensor]  # the phase's noise, redrawn for every step
    client: Client = Client()


class Data(NamedTuple):
    """All rows of one client, padded."""

    x: Tensor  # [N, …]
    y: Tensor  # [N]
    mask: Tensor  # [N] bool, False for padding
    eps: dict[str, Tensor]
    tally: dict[str, Tree] = {}  # the tally of this round's last phase that has one
    client: Client = Client()
