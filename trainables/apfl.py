"""APFL: each client predicts with a mixture of its own model and the common one, which is FedAvg's.

    down     w
    client   w_k <- w;  per mini-batch one step of both models on   L + L'
             common   L  = CE(w_k)
             own      L' = CE(v̄_k),   v̄_k = α v_k + (1 - α) w_k,   w_k fixed
             adaptive α <- α - η (∂L'/∂α + κ α), within [0, 1];   ∂L'/∂α = (v_k - w_k) · ∇CE(v̄_k)
    up       w_k, n_k
    server   w = Σ_k n_k w_k / Σ_k n_k;   v_k and an adaptive α never leave their client
    scored   v̄_k, with w as it would be received now

Deng, Kamani and Mahdavi 2020, arXiv:2003.13461, algorithm 1 and section 4.2, from a description of the paper.

Differs:

- The mean is weighted by rows.  The paper's is plain (averaging="clients").
- An adaptive α moves in every step, as the parameters do: with the clients' lr, momentum and weight decay.  In the
  authors' code (MLOPTPSU/FedTorch at 1edcfbf, apfl.py) it moves in a round's first step only.
- v_k's gradient is taken with w_k before its step, as in the paper.  In the authors' code, w_k has stepped before.

"as_published" takes three things from the authors' code.  It mixes the models' logits instead of their weights, learns
α, and decays α by κ = 0.02.  Nothing here follows PFLlib, which trains v_k alone and mixes at the end of a round.

α = 0 is FedAvg, α = 1 Local training next to FedAvg.  A step computes the gradients of two models, so a round costs
twice FedAvg's.  An adaptive α also costs a pass over v_k - w_k in every step, and its clamping to [0, 1].
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedtune.experiment.algorithm import Batch, Model, Phase, Task, hyper
from fedtune.nn.layers import cross_entropy
from fedtune.trainables._two_models import TwoModels


@dataclass(frozen=True)
class APFL(TwoModels):
    """APFL as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "mean"

    mix: float = hyper(0.5, 0.0, 1.0, symbol="α", help="weight of the own model in the mixture; adaptive: at the start")
    adaptive: bool = hyper(False, help="let each client learn its α")
    mix_decay: float = hyper(
        0.0, 1e-3, 1.0, log=True, extra_values=(0.0,), symbol="κ", help="L2 penalty on an adaptive α"
    )
    mixed: str = hyper("weights", choices=("weights", "logits"), help="the models' weights are mixed, or their logits")

    structural = ("adaptive",)
    contrasts = {"mix_decay": (0.0, 1.0, {"adaptive": True})}
    presets = {
        "as_text": {"momentum": 0.0, "averaging": "clients"},
        "as_published": {"mixed": "logits", "adaptive": True, "mix_decay": 0.02},
    }

    def build(self, net: nn.Module, task: Task) -> nn.Module:
        """Add the common model, and α where it is learnt."""
        if self.adaptive:
            net.add_module("alpha", nn.ParameterDict({"own": nn.Parameter(torch.tensor(self.mix))}))
        return super().build(net, task)

    def alpha(self, m: Model) -> Tensor | float:
        """The weight of the own model."""
        return m["alpha.own"] if self.adaptive else self.mix

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Both models, and α, at once, each clipped by itself."""
        (both,) = super().phases(task)
        if not self.adaptive:
            return (both,)
        return (both._replace(lr_scale={"common": 1.0, "alpha": 1.0}, bounds={"alpha": (0.0, 1.0)}),)

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """The sum L + L' of both models' losses: each moves its own model."""
        common = self.common(m, batch.x)
        loss = cross_entropy(common, batch.y) + cross_entropy(self.mixture(m, batch.x, common.detach()), batch.y)
        return loss + self.mix_decay / 2 * m["alpha.own"] ** 2 if self.adaptive else loss

    def mixture(self, m: Model, x: Tensor, common: Tensor) -> Tensor:
        """Logits of v̄_k; common: those of w_k."""
        alpha = self.alpha(m)
        if self.mixed == "logits":
            return torch.lerp(common, m.head(m.body(x)), alpha)
        mean = m.at({n: torch.lerp(m[f"common.{n}"].detach(), m[n], alpha) for n in self.own(m)})
        return mean.head(mean.body(x))

    def predict(self, m: Model, x: Tensor, down: dict) -> dict[str, Tensor]:
        """The predictions of the mixture; those of the common model are logged too."""
        common = self.common(m, x)
        return {"mixed": self.mixture(m, x, common), "common": common}
