"""Per-FedAvg: a common model that becomes good after one step on a client's own rows.

    down     w
    client   w_k <- w, local work; a step takes mini-batches D, D', D'' of its rows:
             w̃ = w_k - α ∇f(w_k; D),   g = ∇f(w̃; D')
             w_k <- w_k - η (g - α h),   h = (∇f(w_k + δ g; D'') - ∇f(w_k - δ g; D'')) / 2δ;  first order: h = 0
    up       w_k, n_k
    server   w = Σ_k n_k w_k / Σ_k n_k
    scored   w - α ∇f(w; D), one step on a mini-batch, or tune_epochs epochs of such steps;  no later round sees it

Fallah et al., NeurIPS 2020, arXiv:2002.07948, algorithm 1 and section 5, from a description of the paper.  η, the
clients' lr, is the paper's β.

Differs: the mean is weighted by rows.  The paper's is plain (averaging="clients").

A step takes two or three mini-batches, so an epoch has a half or a third of FedAvg's steps.  With batches="same", D =
D' = D'', it has as many.  Running statistics come from the pass at w̃.  "as_published" is PFLlib (d832e76,
clientperavg.py): first order, two passes over the rows in a round.

At α = 0 it is FedAvg whose steps use D' alone.  With tune_epochs and tune_lr above 0, it is FedAvg-FT.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedtune.experiment.algorithm import Algorithm, Batch, Model, Phase, Task, hyper
from fedtune.nn.layers import cross_entropy


@dataclass(frozen=True)
class PerFedAvg(Algorithm):
    """Per-FedAvg as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "mean"

    inner_lr: float = hyper(0.01, 1e-4, 1.0, log=True, extra_values=(0.0,), symbol="α", help="rate of the inner step")
    hessian: str = hyper(
        "difference",
        choices=("difference", "none"),
        help="the term of second order: a difference of gradients, or none",
    )
    delta: float = hyper(
        1e-3,
        1e-5,
        0.1,
        log=True,
        symbol="δ",
        help="step of that difference: of the gradients at w_k + δ g and w_k - δ g",
    )
    batches: str = hyper(
        "separate", choices=("separate", "same"), help="a mini-batch for each gradient of a step, or one for all"
    )
    tune_epochs: int = hyper(
        0, 1, 50, extra_values=(0,), symbol="τ", help="epochs of adaptation before a client is scored; 0: one step"
    )
    tune_lr: float | None = hyper(None, 1e-5, 1.0, log=True, help="learning rate of the adaptation; None: α")

    shared = ("body", "head")
    checked_with = {"inner_lr": 0.1}
    contrasts = {"delta": (1e-5, 0.1, {"inner_lr": 1.0})}
    presets = {
        "as_text": {"momentum": 0.0, "averaging": "clients"},
        "as_published": {"hessian": "none", "momentum": 0.0, "inner_lr": 0.005, "lr": 0.005, "local_epochs": 2},
    }

    def resolved_defaults(self) -> Mapping[str, Any]:
        """The rate of the adaptation."""
        return {} if self.tune_lr is not None else {"tune_lr": self.inner_lr}

    @property
    def taken(self) -> int:
        """The mini-batches of a step."""
        return 1 if self.batches == "same" else 2 if self.hessian == "none" else 3

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Meta-steps."""
        return (Phase(self.meta_loss, batches=self.taken),)

    def meta_loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """The loss on D' an inner step away; its gradient is the outer step's."""
        parts = [*zip(batch.x.chunk(self.taken), batch.y.chunk(self.taken), strict=True)]
        inner, outer, last = (parts * 3)[:3]
        names = [n for n, _ in m.net.named_parameters() if n in down["shared"]]  # not what is frozen
        g = m.gradient(lambda at: self.f(at, *inner), names)
        away = m.at({n: m[n] - self.inner_lr * g[n] for n in names})
        loss = self.f(away, *outer)
        if self.hessian == "none":
            return loss
        g = away.gradient(lambda at: self.f(at, *outer), names)
        ahead, behind = (
            m.at({n: m[n] + by * g[n] for n in names}).gradient(lambda at: self.f(at, *last), names)
            for by in (self.delta, -self.delta)
        )
        h = {n: (ahead[n] - behind[n]) / (2 * self.delta) for n in names}
        bent = sum((h[n] * (m[n] - m[n].detach())).sum() for n in names)  # its value is 0, and its gradient h
        return loss - self.inner_lr * bent

    def f(self, m: Model, x: Tensor, y: Tensor) -> Tensor:
        """The loss f(w; D)."""
        return cross_entropy(m.head(m.body(x)), y)

    def adapt(self, task: Task) -> tuple[Phase, ...]:
        """The inner step, or epochs of it, on CE."""
        lr = self.inner_lr if self.tune_lr is None else self.tune_lr
        return (Phase(self.loss, epochs=self.tune_epochs, steps=None if self.tune_epochs else 1, lr=lr),)
