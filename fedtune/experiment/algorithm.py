"""The one abstraction: what a federated-learning algorithm is.  Read this before any file in `trainables/`.

An algorithm is a frozen dataclass of pure functions.  Its fields are hyperparameters and nothing else, so it cannot
hide state, and a checkpoint is the engine's `State` and nothing else.  Client code (`loss`, `upload`, `predict`) is
written for ONE client, without a client axis; the engine runs it over all clients at once or one by one.  Server code
(`init`, `broadcast`, `aggregate`) sees the client axis first.

Client code should be traceable by `torch.func.vmap`: no `.item()`, no `if tensor`, no boolean indexing; use masks.
What is not runs one client after the other.  It may draw with PyTorch's own functions (dropout, torch.rand, …).

Letters: K clients, m taking part, N padded rows, B batch, C classes, D features, L mixture components.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedtune.core.hyper import check_all, hyper, knobs
from fedtune.core.trees import Ragged, Tree, mean_over_clients, to_all
from fedtune.experiment.model import Model
from fedtune.experiment.phase import Phase, Step
from fedtune.experiment.terms import LAWS, Batch, Client, Data, Law, Noise, Task
from fedtune.nn.layers import cross_entropy

if TYPE_CHECKING:
    from fedtune.experiment.scenario import Scenario

__all__ = [
    "DOWN",
    "LAWS",
    "UP",
    "Algorithm",
    "Batch",
    "Client",
    "Data",
    "Law",
    "Model",
    "Noise",
    "Phase",
    "Ragged",
    "Step",
    "Task",
    "hyper",
]

DOWN: Literal["down"] = "down"  # the server sends: `broadcast`
UP: Literal["up"] = "up"  # the clients send: `upload`, and the server takes it in: `aggregate`


@dataclass(frozen=True)
class Algorithm:
    """As it stands this is FedAvg over the parts named in `shared`; a subclass says what differs."""

    # whether client code depends on its arguments and fields alone and changes nothing, so that its steps are recorded
    # and run again (docs/your-own.md); every class says it for itself, as it is not inherited
    pure: ClassVar[bool] = False
    shared: ClassVar[tuple[str, ...]] = ()  # parts that the server averages by rows and sends back
    sends: ClassVar[tuple[str, ...]] = ()  # other server entries that every client receives
    schedule: ClassVar[tuple[str, ...]] = ()  # hyperparameters on which first-effect rounds depend
    structural: ClassVar[tuple[str, ...]] = ()  # hyperparameters that change the shape of the weights
    # whether it plans over all rounds, so that the first rounds of a longer run are others
    depends_on_horizon: ClassVar[bool] = False
    predicts: ClassVar[tuple[str, ...]] = ()  # parts that `predict` uses; () is all of them
    linear_head: ClassVar[bool] = False  # whether it computes with head.weight and head.bias: no other head will do
    scored_model: ClassVar[str] = ""  # the model that `predict` scores, in words, if not one of shared and own parts
    # values under which it runs on architectures that differ in their bodies, where its defaults share too much
    for_mixed_models: ClassVar[Mapping[str, Any]] = {}
    # hyperparameters by a name, the scenario's too: "as_text" is what the paper says to the letter, where the defaults
    # are not, and "as_published" what the released code does
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    # for `fedtune check`: values under which what is rare happens within three rounds and nothing takes long; and for
    # hyperparameters whose effect is subtle two values that differ, with what else must hold for that
    checked_with: ClassVar[Mapping[str, Any]] = {}
    contrasts: ClassVar[Mapping[str, tuple[Any, Any, Mapping[str, Any]]]] = {}

    def __post_init__(self) -> None:
        """Validate every hyperparameter against its declaration."""
        check_all(self)

    def build(self, net: nn.Module, task: Task) -> nn.Module:
        """The net with the algorithm's own parts added (a projection, an auxiliary model, a fixed frame).

        It may be asked twice with one net: what it adds replaces what it added.
        """
        return net

    def stays(self, net: nn.Module) -> set[str]:
        """Tensors of shared parts that stay with each client all the same, by their full names."""
        return set()

    def init(self, task: Task) -> dict[str, Tree]:
        """The server's entries before round 1, besides the shared parts."""
        return {}

    def keep(self, task: Task) -> dict[str, Tree]:
        """What one client keeps before its first round, without a client axis; {}: nothing but its own parts.

        It stays with the client: in checkpoints, and counted nowhere as sent.
        """
        return {}

    def round(self, task: Task) -> tuple[Phase | str, ...]:
        """What happens in round task.t, in order: DOWN, UP, or a Phase of local training."""
        return (DOWN, *self.phases(task), UP)

    def adapt(self, task: Task) -> tuple[Phase, ...]:
        """What a client trains before it is scored, from what it would receive now; (): it is scored as it is.

        On its training rows, or a pool.  Neither the server nor a later round sees it, its draws are its own, and its
        time is in eval_seconds.
        """
        return ()

    def idle(self, scenario: Scenario) -> dict[str, str]:
        """Hyperparameters that can have no effect in this scenario, each with the reason."""
        return {}

    def resolved_defaults(self) -> Mapping[str, Any]:
        """What values that leave a choice open come to, by name: 0 for "as others say", for instance."""
        return {}

    # one client -------------------------------------------------------------------------------------------------

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """The local training of an ordinary round."""
        return (Phase(self.loss),)

    def loss(self, m: Model, batch: Batch, down: dict[str, Tree]) -> Tensor:
        """The loss of one batch, a scalar.  down: what this client last received in this round."""
        return cross_entropy(m.head(m.body(batch.x)), batch.y)

    def receive(self, down: dict[str, Tree]) -> dict[str, Tensor]:
        """Tensors of the model that a client takes over from what it received; down with a client axis [m, …]."""
        taken: dict[str, Tensor] = down.get("shared", {})
        return taken

    def upload_noise(self, task: Task) -> dict[str, Noise]:
        """The random numbers that `upload` wants in data.eps."""
        return {}

    def upload(self, m: Model, data: Data, down: dict[str, Tree]) -> dict[str, Tree]:
        """What a client sends besides its shared parts and, with these, its number of rows."""
        return {}

    def remember(self, m: Model, data: Data, down: dict[str, Tree]) -> dict[str, Tree]:
        """What a client keeps after its round, of the form that `keep` gave; data.client.kept is what it kept before.

        Runs at UP beside `upload`, with the same arguments.  Whoever sits a round out keeps what it has.
        """
        return data.client.kept

    def predict(self, m: Model, x: Tensor, down: dict[str, Tree]) -> Tensor | dict[str, Tensor]:
        """Scores [B, C], the largest wins.  A dict holds several ways to predict: the first counts, all are logged.

        down is what the client would receive now.
        """
        return m.head(m.body(x))

    # server -----------------------------------------------------------------------------------------------------

    def broadcast(self, server: dict[str, Tree], ids: Tensor, task: Task) -> dict[str, Tree]:
        """What clients `ids` [m] receive: {"shared": …} and the entries named in `sends`, with a client axis."""
        named = ("shared", *self.sends) if self.shared else self.sends
        return {name: to_all(server[name], len(ids)) for name in named}

    def deployed(self, server: dict[str, Tree], ids: Tensor, task: Task) -> dict[str, Tree]:
        """What `predict` sees at clients `ids`: what they would receive now.  Nobody counts it as sent."""
        return self.broadcast(server, ids, task)

    def aggregate(self, server: dict[str, Tree], up: dict[str, Tree], task: Task) -> dict[str, Tree]:
        """The server's entries after it took in the uploads `up`, each with a client axis [m, …].

        up["ids"] [m] says who sent them.
        """
        if not self.shared:
            return server
        return server | {"shared": mean_over_clients(up["shared"], up["rows"])}

    def observe(self, server: dict[str, Tree], val_acc: float, task: Task) -> dict[str, Tree]:
        """The server's entries after it heard how the round's model does on the clients' validation rows."""
        return server

    def report(self, server: dict[str, Tree]) -> dict[str, float]:
        """Further figures for the round's row of metrics."""
        return {}


def first_round(algorithm: Algorithm, name: str) -> int:
    """The first round (1-based) whose evaluation can depend on this hyperparameter."""
    declared = knobs(type(algorithm))
    first = declared[name].first_round if name in declared else 1
    return int(getattr(algorithm, first)()) if isinstance(first, str) else first


def parts(net: nn.Module) -> Iterator[str]:
    """The names of a net's parts."""
    return (name for name, _ in net.named_children())


def part_of(tensor: str) -> str:
    """The part that a tensor belongs to, by its full name: `body` of `body.0.weight`."""
    return tensor.split(".")[0]


def draw(noise: dict[str, Noise], generator: torch.Generator, times: tuple[int, ...], dtype: torch.dtype) -> dict:
    """The asked-for random numbers, with the axes `times` in front, from one stream (CPU)."""
    return {k: LAWS[n.law]((*times, *n.shape), generator=generator, dtype=dtype) for k, n in noise.items()}
