"""CCVR: FedAvg, whose head is calibrated on virtual features, drawn from a Gaussian of each class.

    down     w
    client   per own class c, of the features z = body(x) under w:  mean μ_k,c, covariance Σ_k,c;   N_k,c its rows
             then w_k <- w, local epochs on CE
    up       w_k, n_k;  μ_k,c, the upper triangle of Σ_k,c, and N_k,c
    server   μ_c, Σ_c of all rows of c, pooled from the clients';   r draws from N(μ_c, Σ_c + ε I) for every class c
             epochs on CE over these draws train a copy of w's head;  body of w and this head predict
             w = Σ_k n_k w_k / Σ_k n_k,  as FedAvg: the calibrated head is never trained further

Luo et al., NeurIPS 2021, arXiv:2106.05001, algorithm 1.  The paper was not at hand: this follows a description of it.
No code of its authors is known.  "flbench" has the values of FL-bench (KarhouTam/FL-bench at 01fb003,
src/server/ccvr.py).

Differs:

- The paper calibrates once, after FedAvg's last round.  Here the server calibrates in every round, because every round
  is scored.  So in every round a client also sends the moments of its features.
- Calibration is one round late.  Clients compute features under the model that they received.  So what is scored after
  round t is FedAvg's model of round t - 1, with a calibrated head.  The accuracy of round t's mean is logged as
  "averaged".

The moments are those of the round's participants.  ε is a share of the class's mean variance.  It makes sampling
possible where a covariance comes from few rows.  If ε is too small for that, it is multiplied by ten until it suffices,
and "raised_floors" counts the classes with a raised ε.

r = 0 is FedAvg.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedtune.core import randomness
from fedtune.core.trees import to_all
from fedtune.experiment.algorithm import Data, Model, Ragged, Task, hyper
from fedtune.nn.heads import moments, pooled_moments, roots, symmetric, upper
from fedtune.trainables._heads import FitsHead, normal


@dataclass(frozen=True)
class CCVR(FitsHead):
    """CCVR as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "means"

    virtual: int = hyper(100, 10, 2000, log=True, extra_values=(0,), symbol="r", help="virtual features per class")
    variance_floor: float = hyper(
        1e-2, 1e-6, 1.0, log=True, symbol="ε", help="added variance, as a multiple of the class's mean variance"
    )

    shared = ("body", "head")
    unlike_text = "the model of every round is calibrated, a round later; the paper calibrates the last one only"
    presets = {"flbench": {"virtual": 200, "head_optimizer": "sgd", "head_epochs": 1, "head_lr": 0.01}}
    checked_with = {"virtual": 10, "head_epochs": 1}

    def upload(self, m: Model, data: Data, down: dict) -> dict:
        """Moments of the features of the model as it was received."""
        if not self.virtual:
            return {}
        z = Model(m.net, m.tensors | down["shared"]).body(data.x)
        means, covariances, counts = moments(z, data.y, data.mask, len(m["head.bias"]))
        present = counts > 0
        return {
            "means": Ragged(means, present),
            "covariances": Ragged(upper(covariances), present),
            "counts": Ragged(counts, present),
        }

    def aggregate(self, server: dict, up: dict, task: Task) -> dict:
        """FedAvg; and the received model with its head calibrated."""
        state = super().aggregate(server, up, task)
        if not self.virtual:
            return state
        model, stream = server["shared"], randomness.stream(task.seed, "virtual", task.t)
        head = {n: model[f"head.{n}"] for n in ("weight", "bias")}
        present = up["counts"].present.any(0)
        x, raised = self.draws(up, stream)
        fitted = self.fitted(head, x, present, stream)
        calibrated = model | {f"head.{n}": t for n, t in fitted.items()}
        return state | {"calibrated": calibrated, "raised": (raised & present).sum()}

    def draws(self, up: dict, stream: torch.Generator) -> tuple[Tensor, Tensor]:
        """r virtual features of every class [C, r, D], and whether ε had to be raised for it [C]; valid only for
        classes that some client holds.
        """
        means, triangles, counts = (up[n].values for n in ("means", "covariances", "counts"))
        _, classes, width = means.shape
        mean, covariance = pooled_moments(means, symmetric(triangles, width), counts)
        min_variance = self.variance_floor * covariance.diagonal(dim1=1, dim2=2).mean(1) + 1e-6  # [C]
        factors, floors = roots(covariance, min_variance)
        x = mean[:, None] + normal((classes, self.virtual, width), mean, stream) @ factors.to(mean).mT
        return x, floors > min_variance

    def report(self, server: dict) -> dict[str, float]:
        """For how many classes ε had to be raised."""
        return {"raised_floors": int(server["raised"])} if "raised" in server else {}

    def deployed(self, server: dict, ids: Tensor, task: Task) -> dict:
        """The round's mean, and the calibrated model."""
        scored = {n: server[n] for n in ("shared", "calibrated") if n in server}
        return to_all(scored, len(ids))

    def predict(self, m: Model, x: Tensor, down: dict) -> Tensor | dict[str, Tensor]:
        """The calibrated model; the round's mean is logged."""
        averaged = m.head(m.body(x))
        if "calibrated" not in down:
            return averaged
        calibrated = Model(m.net, m.tensors | down["calibrated"])
        return {"calibrated": calibrated.head(calibrated.body(x)), "averaged": averaged}
