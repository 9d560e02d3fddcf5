"""A phase of local training, as an algorithm says what its clients do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from torch import Tensor

from fedtune.core.trees import Tree
from fedtune.experiment.model import Model
from fedtune.experiment.terms import Batch, Data, Noise

# the loss of a batch; or with it a tally, which is summed over the steps and handed to `upload` as data.tally
Loss = Callable[[Model, Batch, dict[str, Tree]], Tensor | tuple[Tensor, dict[str, Tree]]]


class Step(NamedTuple):
    """A second step on every batch of a phase, with an optimiser of its own: it sees what the first step left."""

    loss: Callable[[Model, Batch, dict[str, Tree]], Tensor]
    train: tuple[str, ...]  # names of parts that the phase trains too
    optimizer: Literal["sgd", "adam"]  # plain: neither momentum nor weight decay
    lr: float | None  # None: the phase's


# tensors of the model, by full names, that take the place of a client's: of what it is and received
Setter = Callable[[Model, dict[str, Tree]], dict[str, Tensor]]


class Phase(NamedTuple):
    """Local training: which loss moves which parts, over what, for how long.

    Every phase starts a new optimiser.  Parts that are not trained are frozen: no gradient, no running statistics.
    Phase(loss, steps=0, begin=…) trains nothing: it sets tensors between two phases, or at a round's end.
    """

    loss: Loss
    train: tuple[str, ...] = ()  # names of parts; () is all of them
    # passes over the rows (of the client's own: local_steps mini-batches each, if set); None: the scenario's local work
    epochs: int | None = None
    steps: int | None = None  # or so many steps
    lr: float | None = None  # None: the scenario's
    noise: dict[str, Noise] = {}  # per step: batch.eps
    # what the rows are, if not the client's training rows: drawn anew before every pass
    pool: Callable[[dict[str, Tree], dict[str, Tensor]], Data] | None = None
    pool_noise: dict[str, Noise] = {}
    lr_scale: Mapping[str, float] = {}  # parts that learn at so many times the rate, and are clipped by themselves
    clip: float = 0.0  # bound on the norm of a client's gradient, of each part in `lr_scale` and of the others; 0: none
    after: Step | None = None
    momentum: float | None = None  # of SGD; None: the scenario's
    share: float = 1.0  # of a client's rows, drawn anew for every phase: at least one of them
    begin: Setter | None = None  # what is set before the first step, of any part that is not frozen
    project: Setter | None = None  # what is set after every step, of the parts that are trained
    # whether a client stops, asked after every pass (of a phase with `steps`, after every step), of the mean losses of
    # its latest passes [window], the last one last, and nan before the first; who stops holds still.  None: nobody
    until: Callable[[Tensor, Model], Tensor] | None = None
    window: int = 1
