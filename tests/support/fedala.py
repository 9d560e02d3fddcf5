"""FedALA as somebody would bring it: clients learn how much of the received head they mix into their own.

    client   θ <- the received body;  W in [0, 1]^|head| learns on a share of the rows, by plain SGD:
             minimise CE at head ŵ = w + (w_received - w) ⊙ W, until its losses settle, at its first round; later once
             head <- ŵ; local epochs on CE
    server   mean by rows; W = 1 is FedAvg
(Zhang et al., FedALA: adaptive local aggregation for personalized federated learning, AAAI 2023.)
"""

from dataclasses import dataclass

import torch
from torch import nn

from fedtune import Algorithm, Phase, hyper
from fedtune.nn.layers import cross_entropy

HEAD = ("head.weight", "head.bias")


@dataclass(frozen=True)
class FedALA(Algorithm):
    """Adaptive local aggregation of the head."""

    eta: float = hyper(1.0, 0.01, 10.0, log=True, extra_values=(0.0,), help="rate of the weights W")
    sampled: float = hyper(0.8, 0.1, 1.0, help="share of the rows that W learns on")
    settled: float = hyper(0.1, 0.001, 1.0, log=True, help="standard deviation of losses below which W has settled")
    passes: int = hyper(20, 1, 100, help="passes that W learns at most")

    shared = ("body", "head")
    linear_head = True
    contrasts = {"settled": (0.001, 1.0, {"passes": 20}), "passes": (1, 20, {"settled": 0.001})}

    def build(self, net, task):
        """W beside the head, ones."""
        net.mix = nn.Linear(task.features, task.classes)
        for p in net.mix.parameters():
            nn.init.ones_(p)
        return net

    def keep(self, task):
        """Whether W has settled once."""
        return {"settled": torch.zeros(())}

    def receive(self, down):
        """The body; the own head stays."""
        return {n: t for n, t in down["shared"].items() if n not in HEAD}

    def mixed(self, m, down):
        """ŵ."""
        own, theirs = ({n: of[n] for n in HEAD} for of in (m.tensors, down["shared"]))
        return {n: own[n] + (theirs[n] - own[n]) * m["mix" + n.removeprefix("head")] for n in HEAD}

    def weights_loss(self, m, batch, down):
        """CE of the mixed head."""
        head = self.mixed(m, down)
        return cross_entropy(m.body(batch.x) @ head["head.weight"].T + head["head.bias"], batch.y)

    def clamped(self, m, down):
        """W in [0, 1]."""
        return {n: m[n].clamp(0, 1) for n in ("mix.weight", "mix.bias")}

    def stops(self, losses, m):
        """After one pass, but for the first round: once the losses of ten passes are alike."""
        return (losses.std() < self.settled) | (m.kept["settled"] > 0)

    def mixing(self):
        """W, then the head."""
        learn = Phase(
            self.weights_loss,
            ("mix",),
            epochs=self.passes,
            lr=self.eta,
            momentum=0.0,
            share=self.sampled,
            project=self.clamped,
            until=self.stops,
            window=10,
        )
        return learn, Phase(self.loss, steps=0, begin=self.mixed)

    def phases(self, task):
        """Mix, then train; W stays."""
        return (*self.mixing(), Phase(self.loss, ("body", "head")))

    def remember(self, m, data, down):
        """From now on one pass is enough."""
        return {"settled": torch.ones_like(m.kept["settled"])}

    def adapt(self, task):
        """Scored with the mixed head."""
        return self.mixing()
