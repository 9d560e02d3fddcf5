"""pFedMe: clients train models of their own under a pull towards the common model, which in turn moves towards them.

    down     w
    client   w_k <- w,  θ_k <- w;  per mini-batch D of its rows
             K steps    θ_k <- θ_k - η (∇f(θ_k; D) + λ (θ_k - w_k))
             then       w_k <- w_k - η_w λ (w_k - θ_k)
    up       w_k, n_k
    server   w <- (1 - β) w + β Σ_k n_k w_k / Σ_k n_k;   θ_k stays with its client, and it is what predicts

Dinh, Tran and Nguyen, NeurIPS 2020, arXiv:2006.08848, algorithm 1, from a description of the paper.  η is the clients'
lr.  The paper solves for θ_k up to a given accuracy.  Here, as in the authors' code (CharlieDinh/pFedMe at 0468164,
userpFedMe.py), θ_k makes K steps, and starts from w in every round.

Differs:

- The mean is weighted by rows.  The paper's is plain (averaging="clients").
- The clients' momentum is not reset between mini-batches.  The authors' code and PFLlib do not use momentum.

Running statistics of w_k are those of θ_k.  "as_published" is PFLlib (d832e76, clientpFedMe.py, main.py), which also
decays θ_k by 1e-3.

A round has K gradient steps where FedAvg's has one, and costs K times as much.  With K = 1, η_w λ = 1 and β = 1, the
common model is FedAvg's.  θ_k is then the model that FedAvg's client sends.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedtune.experiment.algorithm import Batch, Model, Phase, Step, Task, hyper, part_of
from fedtune.nn.layers import cross_entropy, is_statistic
from fedtune.trainables._two_models import TwoModels


@dataclass(frozen=True)
class PFedMe(TwoModels):
    """pFedMe as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "mean"

    lam: float = hyper(15.0, 0.1, 100.0, log=True, symbol="λ", help="pull of the own model towards the common one")
    inner_steps: int = hyper(5, 1, 20, symbol="K", help="steps of the own model on every mini-batch")
    common_lr: float = hyper(0.005, 1e-4, 1.0, log=True, symbol="η_w", help="learning rate of the common model")
    server_step: float = hyper(1.0, 0.1, 2.0, symbol="β", help="the server's step towards the clients' mean")

    checked_with = {"inner_steps": 2}
    contrasts = {"inner_steps": (1, 2, {})}
    presets = {
        "as_text": {"momentum": 0.0, "averaging": "clients"},
        "as_published": {"momentum": 0.0, "lr": 0.01, "lam": 1.0, "weight_decay": 1e-3},
    }

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """K steps of the own model on a mini-batch, then one of the common model."""
        trained = {part_of(n) for n in task.parameters} & {*self.predicts}
        has_statistics = any(map(is_statistic, task.shapes))
        step = Phase(
            self.loss,
            repeat=self.inner_steps,
            after=Step(self.envelope, ("common",), "sgd", self.common_lr),
            begin=partial(self.start, tuple(sorted(trained))),
            project=self.statistics if has_statistics else None,
        )
        return (step,)

    def start(self, parts: tuple[str, ...], m: Model, down: dict) -> dict[str, Tensor]:
        """θ_k <- w, but for frozen parts."""
        received = {n.removeprefix("common."): t for n, t in down["shared"].items()}
        return {n: t for n, t in received.items() if part_of(n) in parts}

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """CE of the own model, and the pull to w_k."""
        distances = sum(((m[n] - m[f"common.{n}"].detach()) ** 2).sum() for n in self.own(m))
        return cross_entropy(m.head(m.body(batch.x)), batch.y) + self.lam / 2 * distances

    def envelope(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """What w_k descends on: its gradient is λ (w_k - θ_k)."""
        distances = [((m[f"common.{n}"] - m[n].detach()) ** 2).sum() for n in self.own(m)]
        return self.lam / 2 * torch.stack(distances).sum()

    def statistics(self, m: Model, down: dict) -> dict[str, Tensor]:
        """The own model's running statistics, for the common one."""
        return {f"common.{n}": t for n, t in m.tensors.items() if is_statistic(n) and part_of(n) in self.predicts}

    def aggregate(self, server: dict, up: dict, task: Task) -> dict:
        """A step of β towards the mean."""
        mean, old = super().aggregate(server, up, task)["shared"], server["shared"]
        moved = {n: t.lerp(mean[n], self.server_step) if t.is_floating_point() else mean[n] for n, t in old.items()}
        return server | {"shared": moved}

    def predict(self, m: Model, x: Tensor, down: dict) -> dict[str, Tensor]:
        """The predictions of the client's own model; those of the common model are logged too."""
        return {"own": m.head(m.body(x)), "common": self.common(m, x)}
