"""FedSAM: FedAvg whose clients take sharpness-aware steps: along the gradient at the nearby point of highest loss.

    down     w
    client   w_k <- w, local work; a step on a mini-batch D:
             w̃ = w_k + ρ g / |g|,   g = ∇f(w_k; D),   |g| the norm over all parameters
             w_k <- w_k - η ∇f(w̃; D)
    up       w_k, n_k
    server   w = Σ_k n_k w_k / Σ_k n_k

Qu et al., ICML 2022, arXiv:2206.02618: its FedSAM, not its MoFedSAM, from a description of the paper.  Its code is not
at hand.

As in Foret et al., ICLR 2021, no gradient flows through w̃, and w̃ = w_k if g is 0.  Momentum and weight decay act on
the step from w_k.  The training loss is the loss at w̃, and running statistics come from the pass at w̃ alone.

Differs: the mean is weighted by rows.  The paper's is plain, and its clients run plain SGD ("as_text").  The server's
rate η_g is fixed at 1.

ρ = 0 is FedAvg.
"""

from dataclasses import dataclass

from torch import Tensor

from fedtune.experiment.algorithm import Algorithm, Batch, Model, hyper
from fedtune.nn.layers import cross_entropy


@dataclass(frozen=True)
class FedSAM(Algorithm):
    """FedSAM as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "mean"

    rho: float = hyper(
        0.05, 0.001, 1.0, log=True, extra_values=(0.0,), symbol="ρ", help="length of the step uphill; 0 is FedAvg"
    )

    shared = ("body", "head")
    presets = {"as_text": {"averaging": "clients", "momentum": 0.0}}

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """CE a step of length ρ uphill; its gradient is the step's."""
        return self.f(self.uphill(m, batch, down) if self.rho else m, batch)

    def uphill(self, m: Model, batch: Batch, down: dict) -> Model:
        """The model at w̃."""
        names = [n for n, _ in m.net.named_parameters() if n in down["shared"]]  # not what is frozen
        g = m.gradient(lambda at: self.f(at, batch), names)
        norm = sum(t.square().sum() for t in g.values()) ** 0.5
        return m.at({n: m[n] + self.rho * g[n] / norm.clamp(min=1e-12) for n in names})

    def f(self, m: Model, batch: Batch) -> Tensor:
        """CE on a mini-batch."""
        return cross_entropy(m.head(m.body(batch.x)), batch.y)
