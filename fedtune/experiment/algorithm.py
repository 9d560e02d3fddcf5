"""The base class of all federated-learning algorithms.  Read this before any file in `trainables/`.

An algorithm is a frozen dataclass of pure functions.  Its fields are hyperparameters and nothing else, so it cannot
hide state.  Client code (`loss`, `upload`, `predict`) is written for ONE client, without a client axis; the engine runs
it over all clients at once or one by one.  Server code (`init`, `broadcast`, `aggregate`) sees the client axis first.

Client code should be traceable by `torch.func.vmap`: no `.item()`, no `if tensor`, no boolean indexing; use masks.
Otherwise it runs one client after the other.  It may draw with PyTorch's own functions (dropout, torch.rand, …).

Letters: K clients, m taking part, N padded rows, B batch, C classes, D features, L mixture components.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedtune.core.hyper import check_all, hyper, hyperparameters
from fedtune.core.trees import Ragged, Tree, mean_over_clients, to_all
from fedtune.experiment.model import Model
from fedtune.experiment.phase import Phase, Step
from fedtune.experiment.terms import SAMPLERS, Batch, Client, Data, Distribution, Noise, Task
from fedtune.nn.layers import cross_entropy

if TYPE_CHECKING:
    from fedtune.experiment.scenario import Scenario

__all__ = [
    "DOWN",
    "SAMPLERS",
    "UP",
    "Algorithm",
    "Batch",
    "Client",
    "Data",
    "Distribution",
    "Model",
    "Noise",
    "Phase",
    "Ragged",
    "Step",
    "Task",
    "hyper",
]

DOWN: Literal["down"] = "down"  # the server sends: `broadcast`
UP: Literal["up"] = "up"  # the clients send (`upload`) and the server aggregates (`aggregate`)


@dataclass(frozen=True)
class Algorithm:
    """By itself this is FedAvg over the parts named in `shared`; a subclass overrides what differs.

    >>> from dataclasses import dataclass
    >>> import fedtune
    >>> @dataclass(frozen=True)
    ... class Proximal(fedtune.Algorithm):
    ...     mu: float = fedtune.hyper(0.01, 1e-4, 1.0, log=True)
    ...     shared = ("body", "head")
    ...     def loss(self, m, batch, down):
    ...         pull = sum(((m[name] - was) ** 2).sum() for name, was in down["shared"].items())
    ...         return super().loss(m, batch, down) + self.mu / 2 * pull
    >>> len(fedtune.train(Proximal, "digits-w4", rounds=2, clients=4))
    2
    """

    # whether client code depends on its arguments and fields alone and changes nothing: its steps are recorded and run
    # again (docs/reference/hooks.md); a subclass does not inherit it
    pure: ClassVar[bool] = False
    shared: ClassVar[tuple[str, ...]] = ()  # parts that the server averages, weighted by rows, and sends back
    sends: ClassVar[tuple[str, ...]] = ()  # other server entries that every client receives
    # how the server uses what clients send: "nothing"; "mean": one weighted mean of `shared` and nothing else; "means":
    # several, or weights that depend on rows; "single": single clients' models; "classes": statistics of rows per
    # class; "": a subclass of the user's.  That is what its base class is, `Algorithm` itself "mean", unless it has an
    # init, broadcast, upload, round or aggregate of its own: then "single"
    releases: ClassVar[str] = ""
    schedule: ClassVar[tuple[str, ...]] = ()  # hyperparameters that decide in which round others first matter
    structural: ClassVar[tuple[str, ...]] = ()  # hyperparameters that change the shape of the weights
    # whether its plan depends on the number of rounds, so that a longer run has different first rounds
    depends_on_horizon: ClassVar[bool] = False
    predicts: ClassVar[tuple[str, ...]] = ()  # parts that `predict` uses; () is all of them
    linear_head: ClassVar[bool] = False  # whether it computes with head.weight and head.bias and so needs a linear head
    scored_model: ClassVar[str] = ""  # the model that `predict` scores, in words, if not one of shared and own parts
    # values with which it runs on architectures with different bodies, if its defaults share too much for that
    for_mixed_models: ClassVar[Mapping[str, Any]] = {}
    # named sets of hyperparameters, including the scenario's: "as_text" follows the paper, "as_published" its code
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    as_in_text: ClassVar[bool] = False  # whether the defaults are the paper's text, so that there is no "as_text"
    unlike_text: ClassVar[str] = ""  # how it differs from the paper's text under any hyperparameters
    # for `fedtune check`: values with which rare events happen within three rounds and nothing takes long; and for
    # hyperparameters with a subtle effect, two values whose results differ, and other values needed for that
    checked_with: ClassVar[Mapping[str, Any]] = {}
    contrasts: ClassVar[Mapping[str, tuple[Any, Any, Mapping[str, Any]]]] = {}

    def __post_init__(self) -> None:
        """Validate every hyperparameter against its declaration."""
        check_all(self)

    def build(self, net: nn.Module, task: Task) -> nn.Module:
        """The net with the algorithm's own parts added; if called again with the net, new ones in their place."""
        return net

    def stays(self, net: nn.Module) -> set[str]:
        """The full names of tensors in shared parts that still stay with each client."""
        return set()

    def init(self, task: Task) -> dict[str, Tree]:
        """The server's entries before round 1, besides the shared parts."""
        return {}

    def keep(self, task: Task) -> dict[str, Tree]:
        """A client's state before its first round, without a client axis, never sent; {}: only its own parts."""
        return {}

    def round(self, task: Task) -> tuple[Phase | str, ...]:
        """The actions of round task.t, in order: DOWN, UP, or a Phase of local training."""
        return (DOWN, *self.phases(task), UP)

    def adapt(self, task: Task) -> tuple[Phase, ...]:
        """What a client trains before it is scored, starting from what it would receive now; (): no such training.

        It trains on its training rows, or a pool.  No later round sees the result; its time counts in eval_seconds.
        """
        return ()

    def idle(self, scenario: Scenario) -> dict[str, str]:
        """Hyperparameters that cannot have an effect in this scenario, each with the reason."""
        return {}

    def resolved_defaults(self) -> Mapping[str, Any]:
        """The actual values of defaults that leave a choice open, by name: for example 0 for "same as another"."""
        return {}

    # one client -------------------------------------------------------------------------------------------------

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """The local training of an ordinary round."""
        return (Phase(self.loss),)

    def loss(self, m: Model, batch: Batch, down: dict[str, Tree]) -> Tensor:
        """The loss of one batch, a scalar.  down: what this client received last in this round."""
        return cross_entropy(m.head(m.body(batch.x)), batch.y)

    def receive(self, down: dict[str, Tree]) -> dict[str, Tensor]:
        """The model's tensors that a client replaces by what it received; down has a client axis [m, …]."""
        tensors: dict[str, Tensor] = down.get("shared", {})
        return tensors

    def upload_noise(self, task: Task) -> dict[str, Noise]:
        """The random numbers that `upload` needs, as data.eps."""
        return {}

    def upload(self, m: Model, data: Data, down: dict[str, Tree]) -> dict[str, Tree]:
        """What a client sends, besides its shared parts and, with these, its number of rows."""
        return {}

    def remember(self, m: Model, data: Data, down: dict[str, Tree]) -> dict[str, Tree]:
        """A client's state after its round, in the structure that `keep` returned; data.client.kept: the one before.

        Runs at UP like `upload`, with the same arguments.  A client that does not take part in a round keeps its state.
        """
        return data.client.kept

    def predict(self, m: Model, x: Tensor, down: dict[str, Tree]) -> Tensor | dict[str, Tensor]:
        """Scores [B, C]; the largest wins.  A dict holds several prediction heads: the first counts, all are logged.

        down is what the client would receive now.
        """
        return m.head(m.body(x))

    # server -----------------------------------------------------------------------------------------------------

    def broadcast(self, server: dict[str, Tree], ids: Tensor, task: Task) -> dict[str, Tree]:
        """What clients `ids` [m] receive: {"shared": …} and the entries named in `sends`, with a client axis."""
        entries = ("shared", *self.sends) if self.shared else self.sends
        return {name: to_all(server[name], len(ids)) for name in entries}

    def deployed(self, server: dict[str, Tree], ids: Tensor, task: Task) -> dict[str, Tree]:
        """What `predict` gets as `down` at clients `ids`: what they would receive now.  It is not counted as sent."""
        return self.broadcast(server, ids, task)

    def aggregate(self, server: dict[str, Tree], up: dict[str, Tree], task: Task) -> dict[str, Tree]:
        """The server's entries after aggregating the uploads `up`, each with a client axis [m, …].

        up["ids"] [m] holds the clients' numbers.
        """
        if not self.shared:
            return server
        return server | {"shared": mean_over_clients(up["shared"], weights(up, task))}

    def observe(self, server: dict[str, Tree], val_acc: float, task: Task) -> dict[str, Tree]:
        """The server's entries after it was given the mean validation accuracy of the round's model."""
        return server

    def report(self, server: dict[str, Tree]) -> dict[str, float]:
        """Additional figures for the round's row of metrics."""
        return {}


def weights(up: dict[str, Tree], task: Task) -> Tensor:
    """What each upload counts in a mean of models [m]: its client's rows, or 1."""
    rows: Tensor = up["rows"]
    return rows if task.averaging == "rows" else torch.ones_like(rows)


def first_round(algorithm: Algorithm, name: str) -> int:
    """The first round (1-based) whose evaluation can depend on this hyperparameter."""
    declared = hyperparameters(type(algorithm))
    first = declared[name].first_round if name in declared else 1
    return int(getattr(algorithm, first)()) if isinstance(first, str) else first


def parts(net: nn.Module) -> Iterator[str]:
    """The names of a net's parts."""
    return (name for name, _ in net.named_children())


def part_of(tensor: str) -> str:
    """The part that a tensor belongs to, by its full name: `body` of `body.0.weight`."""
    return tensor.split(".")[0]


def draw(noise: dict[str, Noise], generator: torch.Generator, times: tuple[int, ...], dtype: torch.dtype) -> dict:
    """The requested random numbers, with the axes `times` in front, from one stream (CPU)."""
    return {k: SAMPLERS[n.distribution]((*times, *n.shape), generator=generator, dtype=dtype) for k, n in noise.items()}
