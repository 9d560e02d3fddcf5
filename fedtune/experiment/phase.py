"""Phases, by which an algorithm describes its clients' local training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from torch import Tensor

from fedtune.core.trees import Tree
from fedtune.experiment.model import Model
from fedtune.experiment.terms import Batch, Data, Noise

# the loss of a batch, optionally with a tally, which is summed over the steps and given to `upload` as data.tally
Loss = Callable[[Model, Batch, dict[str, Tree]], Tensor | tuple[Tensor, dict[str, Tree]]]


class Step(NamedTuple):
    """A second step on every batch of a phase, after the first (or the last repeated) one, with its own optimiser."""

    loss: Callable[[Model, Batch, dict[str, Tree]], Tensor]
    train: tuple[str, ...]  # names of parts that the phase trains too
    optimizer: Literal["sgd", "adam"]  # plain: neither momentum nor weight decay
    lr: float | None  # None: the phase's


# returns tensors, by full names, that replace the client's; its arguments: the model and what the client received
Setter = Callable[[Model, dict[str, Tree]], dict[str, Tensor]]
# the same; its arguments: the model, all rows of the client, and what it received
Reader = Callable[[Model, Data, dict[str, Tree]], dict[str, Tensor]]


class Phase(NamedTuple):
    """Local training: which loss trains which parts, on which rows, for how long.

    Every phase starts with a new optimiser.  Parts that are not trained are frozen: no gradient, no running statistics.
    Phase(loss, steps=0, begin=…) trains nothing: it only sets tensors between two phases, or at the end of a round.

    >>> from dataclasses import dataclass
    >>> from fedtune import Algorithm, Phase
    >>> @dataclass(frozen=True)
    ... class HeadFirst(Algorithm):
    ...     shared = ("body",)
    ...     def phases(self, task):
    ...         return Phase(self.loss, ("head",), epochs=1), Phase(self.loss, ("body",), lr=0.01)
    >>> [phase.train for phase in HeadFirst().phases(None)]
    [('head',), ('body',)]
    """

    loss: Loss
    train: tuple[str, ...] = ()  # names of parts; () is all of them
    # passes over the rows (for the client's own rows: local_steps mini-batches each, if set); None: the scenario's
    epochs: int | None = None
    steps: int | None = None  # the number of steps, in place of epochs
    lr: float | None = None  # None: the scenario's
    noise: dict[str, Noise] = {}  # per step: batch.eps
    # makes the rows, if not the client's training rows; called again before every pass
    pool: Callable[[dict[str, Tree], dict[str, Tensor]], Data] | None = None
    pool_noise: dict[str, Noise] = {}
    lr_scale: Mapping[str, float] = {}  # factors on lr by part; such parts are clipped separately
    # bound on a client's gradient norm (each part in `lr_scale`, and all others together); 0: none
    clip: float | None = None  # None: the scenario's clip_norm
    after: Step | None = None
    batches: int = 1  # mini-batches that a step gets, one after the other: batch.x [batches · B, …]
    repeat: int = 1  # steps in a row on the same mini-batch; `after` follows the last of them
    momentum: float | None = None  # SGD's momentum; None: the scenario's
    plain: bool = False  # SGD without momentum and weight decay, whatever the scenario's optimiser
    share: float = 1.0  # share of a client's rows, redrawn for every phase; at least one row
    # which of its own rows a client trains on: from their places 0, 1, … [n] to bool [n]; None: all
    rows: Callable[[Tensor], Tensor] | None = None
    # sets tensors before `begin`, from all of the client's rows, in evaluation mode; of any part that is not frozen
    read: Reader | None = None
    begin: Setter | None = None  # sets tensors before the first step, of any part that is not frozen
    project: Setter | None = None  # sets tensors after every step, of the trained parts
    # the least and largest value of a trained part's parameters: they are cut after every step, before `project`
    bounds: Mapping[str, tuple[float, float]] = {}
    # whether a client stops early: called after every pass (every step, in a phase with `steps`) with the mean losses
    # of the latest passes [window], oldest first, NaN before the first; None: no client stops
    until: Callable[[Tensor, Model], Tensor] | None = None
    window: int = 1
