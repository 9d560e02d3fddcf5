"""FedPHP: every client keeps a mean of its models over rounds, which predicts, and which the next model learns from.

    down     w
    client   w_k <- w, local epochs on   L = (1 - λ) CE + λ · R(w_k, p_k),    p_k fixed
             transfer="features"   R = MMD² of body(x) and p_k's
             transfer="logits"     R = KL(softmax(p_k's logits / 4) || softmax(logits))
             p_k <- μ_t p_k + (1 - μ_t) w_k,    μ_t = μ · min(1, rounds that k took part in before / expected rounds)
    up       w_k, n_k
    server   w = Σ_k n_k w_k / Σ_k n_k;   p_k, the inherited private model, never leaves its client, and predicts

Li, Zhan, Shao, Wang and Yang, ECML PKDD 2021.  The paper was not at hand: this follows the authors' code
(lxcnju/FedRepo at 617ee01, algorithms/fedphp.py).  "as_published" has the clients' optimiser of its config.py.

As in the code, MMD has five Gaussian kernels.  Their widths are multiples of the mean squared distance of the batch's
features, which counts as a constant.  A client is expected to take part in T · m / K rounds.

Differs from the code: p_k does not exist before the client's first round, so in that round L = CE.  In the code p_k
starts at the common start.  Until a client has a p_k, it is scored with w.  p_k predicts as in an evaluation, with its
own running statistics.

At λ = 0, w is FedAvg's, and p_k is kept beside it.  If μ is 0 too, p_k is the model that the client trained last.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedtune.core.trees import Tree
from fedtune.experiment.algorithm import Algorithm, Batch, Data, Model, Task, hyper
from fedtune.nn.divergences import imitate, mmd
from fedtune.nn.layers import cross_entropy


@dataclass(frozen=True)
class FedPHP(Algorithm):
    """FedPHP as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "mean"

    mu: float = hyper(0.9, 0.0, 0.99, symbol="μ", first_round=2, help="largest weight of the old private model")
    lam: float = hyper(
        0.1, 0.01, 0.9, log=True, extra_values=(0.0,), symbol="λ", first_round=2, help="weight of the term R"
    )
    transfer: str = hyper(
        "features", choices=("features", "logits"), first_round=2, help="what R compares: features, or logits"
    )

    shared = ("body", "head")
    depends_on_horizon = True
    scored_model = "each client's private model, a mean of its models over rounds"
    presets = {"as_published": {"lr": 0.03, "momentum": 0.9, "weight_decay": 1e-5, "clip_norm": 100.0}}

    def keep(self, task: Task) -> dict[str, Tree]:
        """No private model yet; by how much each round brings μ_t to its end."""
        names = [n for n in task.shapes if not n.endswith("num_batches_tracked")]
        expected = max(1.0, task.rounds * (task.taking_part or task.clients) / task.clients)
        model = {n: torch.zeros(task.shapes[n]) for n in names}
        return {"model": model, "rounds": torch.zeros(()), "share": torch.tensor(1 / expected)}

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """CE, and the distance from the private model once there is one."""
        z, state = m.body(batch.x), batch.client.kept
        logits = m.head(z)
        loss = cross_entropy(logits, batch.y)
        if not self.lam:
            return loss
        private, lam = m.still(state["model"]), self.lam * state["rounds"].clamp(max=1)
        features = private.body(batch.x)
        if self.transfer == "logits":
            imitation = imitate(logits, private.head(features) / 4)
        else:
            imitation = mmd(z, features, widths(z.detach(), features))
        return (1 - lam) * loss + lam * imitation

    def remember(self, m: Model, data: Data, down: dict) -> dict[str, Tree]:
        """The private model, nearer to the one that was trained."""
        state = data.client.kept
        mu = self.mu * (state["rounds"] * state["share"]).clamp(max=1)
        model = {n: mu * p + (1 - mu) * m[n] for n, p in state["model"].items()}
        return state | {"model": model, "rounds": state["rounds"] + 1}

    def predict(self, m: Model, x: Tensor, down: dict) -> dict[str, Tensor]:
        """The private model, or the received one as long as there is none; that one is logged."""
        private, received = m.still(m.kept["model"]), m.head(m.body(x))
        own = torch.where(m.kept["rounds"] > 0, private.head(private.body(x)), received)
        return {"own": own, "received": received}


def widths(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """The variances of MMD's kernels: the mean squared distance of two rows of x and y [B, D], /8 to ·2."""
    rows = torch.cat([x, y])
    # the mean over ordered pairs of different rows is twice the variance
    width = 2 * (rows - rows.mean(0)).square().sum() / (len(rows) - 1) + 1e-8
    return tuple(width * 2.0**i for i in (-3, -2, -1, 0, 1))
