"""FML: every client trains a net of its own and a small common one, the meme, and each learns from the other.

    down     meme
    client   meme_k <- meme;  per batch one step of both nets on   L + L',   p, p' their softmaxes
             own net   L  = α CE(own)  + (1 - α) KL(p' || p)
             meme      L' = β CE(meme) + (1 - β) KL(p || p')
             each net's gradient is clipped to the norm `clip`
    up       meme_k
    server   the plain mean of the memes, 1/M;   the own net never leaves its client, and it is what predicts

Shen et al. 2020, arXiv:2006.16765.  The paper was not at hand: this follows a description of it and PFLlib's and
HtFLlib's codes.

Memes count alike whatever their clients' rows, as in the codes.  weighing="rows" weighs them as FedAvg does.  The
number of rows is sent in both cases.  Gradients are clipped as in the codes.

Differs from the codes:

- Each net minimises its own loss, in which the other net's softmax is a constant.  In the codes both losses move both
  nets (coupled=True).
- KL is a mean over rows.  The codes also divide by the number of classes (kl_over="elements").

"as_published" is PFLlib and HtFLlib.  α = β = 1 is Local training next to FedAvg of the meme.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedtune.core import randomness
from fedtune.core.trees import mean_over_clients
from fedtune.experiment.algorithm import Algorithm, Batch, Model, Phase, Task, hyper
from fedtune.experiment.scenario import Scenario
from fedtune.nn import architectures, catalogue
from fedtune.nn.divergences import imitate
from fedtune.nn.layers import cross_entropy


@dataclass(frozen=True)
class FML(Algorithm):
    """FML as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "mean"

    labels_own: float = hyper(
        0.5, 0.0, 1.0, symbol="α", help="weight of the labels in the personal net's loss; the rest is KL"
    )
    labels_meme: float = hyper(
        0.5, 0.0, 1.0, symbol="β", help="weight of the labels in the meme's loss; the rest is KL"
    )
    meme: str = hyper(
        "", choices=("", *catalogue.WIDTHS), help="architecture of the common net; empty: the scenario's first model"
    )
    clip: float = hyper(
        10.0, 0.1, 100.0, log=True, extra_values=(0.0,), help="clipping of each net's gradient norm; 0: none"
    )
    coupled: bool = hyper(False, help="let a loss also train the net that it learns from")
    kl_over: str = hyper(
        "rows", choices=("rows", "elements"), help="KL is averaged over rows, or over rows and classes"
    )
    weighing: str = hyper(
        "clients", choices=("clients", "rows"), help="weights of memes in the mean: equal, or by rows"
    )

    shared = ("meme",)
    predicts = ("body", "head")
    structural = ("meme",)
    presets = dict.fromkeys(
        ("as_published", "htfllib"), {"coupled": True, "kl_over": "elements", "momentum": 0.0, "batch_norm": "personal"}
    )

    def idle(self, scenario: Scenario) -> dict[str, str]:
        """What its own hyperparameters say."""
        return {"clip_norm": "clip bounds each net's gradient", "averaging": "weighing says how memes are averaged"}

    def build(self, net: nn.Module, task: Task) -> nn.Module:
        """Add the meme, with the same values everywhere."""
        start = randomness.number(task.seed, "meme")
        name = self.meme or task.models[0]
        net.add_module("meme", architectures.build(name, task.shape, task.classes, task.features, start))
        return net

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Both nets at once, each clipped by itself."""
        return (Phase(self.loss, lr_scale={"meme": 1.0}, clip=self.clip),)

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """The sum L + L' of both nets' losses."""
        own, meme = m.head(m.body(batch.x)), m.part("meme")(batch.x)
        return self.blend(self.labels_own, own, meme, batch.y) + self.blend(self.labels_meme, meme, own, batch.y)

    def blend(self, labels: float, logits: Tensor, teacher: Tensor, y: Tensor) -> Tensor:
        """The loss of one net from the labels and from the other net."""
        loss = labels * cross_entropy(logits, y)
        return loss + (1 - labels) * imitate(logits, teacher, self.coupled, self.kl_over) if labels < 1 else loss

    def predict(self, m: Model, x: Tensor, down: dict) -> dict[str, Tensor]:
        """The own net; the meme is logged."""
        return {"own": m.head(m.body(x)), "meme": m.part("meme")(x)}

    def aggregate(self, server: dict, up: dict, task: Task) -> dict:
        """The mean of the clients' memes."""
        weight = up["rows"] if self.weighing == "rows" else torch.ones_like(up["rows"])
        return server | {"shared": mean_over_clients(up["shared"], weight)}
