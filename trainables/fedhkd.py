"""FedHKD: FedAvg that also shares "hyper-knowledge": a mean feature and a mean soft prediction per class.

    down     w; mean features H_c and mean predictions Q_c, where a class has them
    client   local steps on
             L = CE + λ · mean_c |softmax(head(H_c) / T) - Q_c|² / C + γ · mean_b |z_b - H_y|² / D,   z = body(x)
             a class without knowledge has no term
    up       w_k;  for the classes that are at least a share ν of its rows: the mean of z plus noise of deviation σ,
             the mean of softmax(logits / T), and its rows
    server   w = Σ_k n_k w_k / Σ_k n_k;  H_c and Q_c likewise over n_k,c, kept from before if no client sent any

Chen et al., ICLR 2023, arXiv:2301.08968.  The paper was not at hand: this follows the authors' code and FedPA's code,
which has FedHKD as a baseline.

Differs:

- Clients compute means in one pass after training, as in the authors' code.  FedPA's code averages while the model is
  still moving ("as_published").
- The server averages knowledge by rows over all clients that sent it.  In the authors' code the last client's replaces
  all others'.
- Noise is drawn for each class.  The authors' code draws one vector for all classes of a client.
- soft="kl" is KL(Q || softmax(head(H_c) / T)), as in the authors' code, but as a mean over classes.
- A class without knowledge has no term.  In FedPA's code its targets are zero vectors, which no option reproduces.

ν is 0.25, as in FedPA's code.  So a client with five or more classes of equal size sends nothing.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedtune.experiment.algorithm import Algorithm, Batch, Data, Model, Noise, Ragged, Task, hyper
from fedtune.experiment.scenario import Scenario
from fedtune.nn.layers import cross_entropy
from fedtune.nn.prototypes import class_means, class_sums, mean_by_count
from fedtune.trainables._released import CLIENTS


@dataclass(frozen=True)
class FedHKD(Algorithm):
    """FedHKD as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "means"

    lam: float = hyper(
        0.05,
        1e-3,
        10.0,
        log=True,
        extra_values=(0.0,),
        symbol="λ",
        first_round=2,
        help="weight of the loss on global soft predictions",
    )
    gamma: float = hyper(
        0.05,
        1e-3,
        10.0,
        log=True,
        extra_values=(0.0,),
        symbol="γ",
        first_round=2,
        help="weight of the pull to global mean features",
    )
    temperature: float = hyper(
        0.5, 0.1, 5.0, log=True, symbol="T", first_round=2, help="temperature of the soft predictions"
    )
    noise: float = hyper(
        0.02,
        1e-3,
        2.0,
        log=True,
        extra_values=(0.0,),
        symbol="σ",
        first_round=2,
        help="standard deviation of the privacy noise on features",
    )
    least_share: float = hyper(
        0.25, 0.0, 0.5, symbol="ν", first_round=2, help="a class below this share of the client's rows is not sent"
    )
    soft: str = hyper(
        "mse", choices=("mse", "kl"), first_round=2, help="loss between soft predictions: squared distance, or KL"
    )
    knowledge: str = hyper(
        "final",
        choices=("final", "running"),
        first_round=2,
        help="class means taken with the trained model, or while it was training",
    )

    shared = ("body", "head")
    sends = ("features", "soft")
    contrasts = {"least_share": (0.0, 0.5, {})}
    presets = {"as_published": CLIENTS | {"knowledge": "running"}}

    def idle(self, scenario: Scenario) -> dict[str, str]:
        """Why no class reaches the least share: every client holds many classes of equal size."""
        fewest = max(2, scenario.ways - scenario.ways_spread)
        if scenario.partition != "ways-shots" or fewest * self.least_share <= 1:
            return {}
        reason = (
            f"with {fewest} or more classes of equal size, none has the share ν = {self.least_share:g} of a "
            "client's rows"
        )
        return dict.fromkeys(("lam", "gamma", "temperature", "noise", "soft", "knowledge"), reason)

    def init(self, task: Task) -> dict:
        """No class has knowledge yet."""
        no_classes = torch.zeros(task.classes, dtype=torch.bool)
        return {
            "features": Ragged(torch.zeros(task.classes, task.features), no_classes),
            "soft": Ragged(torch.zeros(task.classes, task.classes), no_classes),
        }

    def loss(self, m: Model, batch: Batch, down: dict) -> Any:
        """CE, agreement of the head on mean features, pull of the body to them."""
        z = m.body(batch.x)  # [B, D]
        logits = m.head(z)
        loss = cross_entropy(logits, batch.y)
        (features, present), (target, _) = down["features"], down["soft"]  # [C, D], [C], [C, C]
        if self.lam:
            mine = m.head(features) / self.temperature
            distance = (
                ((mine.softmax(1) - target) ** 2).mean(1)
                if self.soft == "mse"
                else (torch.xlogy(target, target) - target * mine.log_softmax(1)).sum(1)
            )
            loss = loss + self.lam * (distance * present).mean()
        if self.gamma:
            loss = loss + self.gamma * (((z - features[batch.y]) ** 2).mean(1) * present[batch.y]).mean()
        if self.knowledge == "final":
            return loss
        every = torch.ones_like(batch.y, dtype=torch.bool)
        inputs = torch.cat([z, self.soften(logits)], 1).detach()
        sums, counts = class_sums(inputs, batch.y, every, len(present))
        return loss, {"sums": sums, "counts": counts}

    def soften(self, logits: Tensor) -> Tensor:
        """Soft predictions, softmax(logits / T)."""
        return (logits / self.temperature).softmax(1)

    def upload_noise(self, task: Task) -> dict[str, Noise]:
        """The noise that an upload adds to mean features for privacy."""
        return {"noise": Noise((task.classes, task.features))}

    def upload(self, m: Model, data: Data, down: dict) -> dict:
        """Means of features (noisy) and of soft predictions, and rows, of the classes it has enough of."""
        classes, features = data.eps["noise"].shape
        z = m.body(data.x)
        means, rows = class_means(torch.cat([z, self.soften(m.head(z))], 1), data.y, data.mask, classes)
        present = rows > 0
        if self.knowledge == "running":
            counts = data.tally["counts"]
            means, present = data.tally["sums"] / counts.clamp(min=1)[:, None], counts > 0
        sent_classes = present & (rows >= self.least_share * rows.sum())
        return {
            "features": Ragged(means[:, :features] + self.noise * data.eps["noise"], sent_classes),
            "soft": Ragged(means[:, features:], sent_classes),
            "counts": Ragged(rows, sent_classes),
        }

    def aggregate(self, server: dict, up: dict, task: Task) -> dict:
        """FedAvg, and the means over all rows of the clients that sent knowledge."""
        rows = up["counts"].values * up["counts"].present  # [m, C]
        knowledge = {}
        for name in self.sends:
            mean, present = mean_by_count(up[name].values, rows)
            previous = server[name]
            knowledge[name] = Ragged(torch.where(present[:, None], mean, previous.values), previous.present | present)
        return super().aggregate(server, up, task) | knowledge
