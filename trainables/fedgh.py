"""FedGH: clients of any architecture share one head, which the server trains on their mean features of every class.

    down     the head
    client   head_k <- head;  local epochs on CE over body and head together
    up       p_k,c the mean feature of class c at client k, after training, for the classes it has
    server   S epochs over the received pairs (p_k,c, c), shuffled, in batches of B: plain SGD of the head on CE

Yi, Wang, Liu, Shi and Yu, ACM MM 2023, arXiv:2303.13137.  The paper was not at hand: this follows a description of it
and PFLlib's and HtFLlib's codes.  The server's rate is 1 in PFLlib ("as_published") and 0.01 in HtFLlib ("htfllib").

A client predicts with its own body and the server's head.  Bodies may differ as long as their features have one width.

A special case is FedAvg with one step per round on all rows: the body is frozen, each client has one row per class, and
B is at least the number of received pairs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from fedtune.core import randomness
from fedtune.experiment.algorithm import Algorithm, Data, Model, Ragged, Task, hyper
from fedtune.nn.heads import descend
from fedtune.nn.prototypes import class_means


@dataclass(frozen=True)
class FedGH(Algorithm):
    """FedGH as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "classes"

    server_epochs: int = hyper(1, 1, 100, log=True, symbol="S", help="the server's epochs on the received class means")
    server_lr: float = hyper(0.01, 1e-3, 1.0, log=True, help="the head's learning rate at the server")

    sends = ("head",)
    linear_head = True
    scored_model = "each client's own body with the server's head"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as_published": {"server_lr": 1.0, "momentum": 0.0},
        "htfllib": {"server_lr": 0.01, "momentum": 0.0},
    }

    def init(self, task: Task) -> dict:
        """A head with PyTorch's default start."""
        with randomness.seeded(randomness.number(task.seed, "head")):
            head = nn.Linear(task.features, task.classes)
        return {"head": {n: t.detach() for n, t in head.named_parameters()}}

    def receive(self, down: dict) -> dict[str, Tensor]:
        """Clients replace their head by the received one."""
        return {f"head.{n}": t for n, t in down["head"].items()}

    def upload(self, m: Model, data: Data, down: dict) -> dict:
        """Class means of the classes that the client holds."""
        protos, counts = class_means(m.body(data.x), data.y, data.mask, len(m["head.bias"]))
        return {"protos": Ragged(protos, counts > 0)}

    def aggregate(self, server: dict, up: dict, task: Task) -> dict:
        """The head after its epochs on the class means."""
        protos, present = up["protos"]  # [m, C, D], [m, C]
        start, rows = (server["head"]["weight"], server["head"]["bias"]), (protos[present], present.nonzero()[:, 1])
        stream = randomness.stream(task.seed, "head", task.t)
        weight, bias = descend(*start, *rows, self.server_epochs, task.batch, self.server_lr, stream)
        return {"head": {"weight": weight, "bias": bias}}
