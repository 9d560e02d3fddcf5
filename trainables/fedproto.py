"""FedProto: clients of any architecture agree on one feature vector per class.

    down     p̄, where a class has one.  Weights never leave a client.
    client   local epochs on   L = CE(head(z), y) + λ · |z - p̄_y|² / D,   z = body(x);  no target, no pull
    up       p_k,c the mean feature of class c at client k, n_k,c its rows, for the classes the client has
    server   p̄_c = Σ_k n_k,c p_k,c / Σ_k n_k,c, kept from the round before if nobody saw c

Tan et al., AAAI 2022, arXiv:2105.00243, equations 3 to 8.

Differs:

- The paper's equation 6 also divides by the number of clients that hold c.  No code does.
- Clients weigh n_k,c in the mean.  In the authors' code they count alike (weighting="clients").
- Prototypes are means over the trained model's features.  The authors' code collects features while the model is still
  moving.
- A row's class is that of the nearest prototype among all classes, as in FedSA's and PFLlib's codes.  The authors' code
  considers the client's own classes only (among="own"), so it can never predict a foreign class.

The accuracy of the head's prediction is logged too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedtune.core.trees import put
from fedtune.experiment.algorithm import Algorithm, Batch, Data, Model, Ragged, Task, hyper
from fedtune.nn.layers import cross_entropy
from fedtune.nn.prototypes import class_means, mean_by_count


@dataclass(frozen=True)
class FedProto(Algorithm):
    """FedProto as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "classes"
    unlike_text = "equation 6 also divides by the number of clients that hold a class, which no code does"

    lam: float = hyper(
        1.0, 0.01, 50.0, log=True, extra_values=(0.0,), symbol="λ", first_round=2, help="weight of the prototype pull"
    )
    weighting: str = hyper(
        "rows",
        choices=("rows", "clients"),
        first_round=1,
        help="prototypes are averaged over all rows, or over clients",
    )
    predictor: str = hyper("nearest", choices=("nearest", "head"), help="nearest prototype, or the head's argmax")
    among: str = hyper(
        "all", choices=("all", "own"), help="classes that can be predicted: all seen so far, or the client's own"
    )

    sends = ("protos",)
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as_published": {"weighting": "clients", "among": "own"},
        "htfllib": {"lam": 10.0, "weighting": "clients", "momentum": 0.0},
    }

    def init(self, task: Task) -> dict:
        """No class has a prototype yet."""
        no_classes = torch.zeros(task.classes, dtype=torch.bool)
        own = {"own": no_classes.repeat(task.clients, 1)} if self.among == "own" else {}  # which classes a client holds
        return {"protos": Ragged(torch.zeros(task.classes, task.features), no_classes)} | own

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """CE plus the pull (Eq. 7, 8), mean over dimensions as in every published code."""
        z = m.body(batch.x)  # [B, D]
        protos, present = down["protos"]
        pull = ((z - protos[batch.y]) ** 2).mean(1) * present[batch.y]  # [B]
        return cross_entropy(m.head(z), batch.y) + self.lam * pull.mean()

    def upload(self, m: Model, data: Data, down: dict) -> dict:
        """Class means and counts of the classes that the client holds."""
        classes = down["protos"].present.shape[0]
        protos, counts = class_means(m.body(data.x), data.y, data.mask, classes)
        present = counts > 0
        return {"protos": Ragged(protos, present), "counts": Ragged(counts, present)}

    def aggregate(self, server: dict, up: dict, task: Task) -> dict:
        """The mean over rows (or clients); a class that nobody saw keeps its prototype."""
        counts = up["counts"].values  # [m, C]
        weight = counts if self.weighting == "rows" else (counts > 0).to(counts)
        mean, present = mean_by_count(up["protos"].values, weight)  # [m, C, D] -> [C, D]
        old = server["protos"]
        state = {"protos": Ragged(torch.where(present[:, None], mean, old.values), old.present | present)}
        return state | self.holders(server, up)

    def holders(self, server: dict, up: dict) -> dict:
        """Which classes a client holds, by what it last sent."""
        return {"own": put(server["own"], up["ids"], up["protos"].present)} if self.among == "own" else {}

    def deployed(self, server: dict, ids: Tensor, task: Task) -> dict:
        """Prototypes; the client's own classes, which it knows by itself."""
        own = {"own": server["own"][ids]} if self.among == "own" else {}
        return self.broadcast(server, ids, task) | own

    def predict(self, m: Model, x: Tensor, down: dict) -> dict[str, Tensor]:
        """Minus the distance to each known prototype; the head's logits while there is none."""
        z = m.body(x)
        protos, present = down["protos"]
        logits = m.head(z)
        distances = ((z[:, None] - protos) ** 2).sum(2).clamp(min=1e-12).sqrt()  # [B, C]
        present = present & down["own"] if self.among == "own" else present
        scores = torch.where(present.any(), (-distances).masked_fill(~present, -torch.inf), logits)
        ways = {"nearest": scores, "head": logits}
        return {self.predictor: ways.pop(self.predictor)} | ways
