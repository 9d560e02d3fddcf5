"""FedAdam: FedAvg whose server treats the clients' mean update as a gradient for Adam.

    down     w
    client   w_k <- w, local epochs on CE
    up       w_k, n_k
    server   Δ = Σ_k n_k (w_k - w) / Σ_k n_k
             m <- β1 m + (1 - β1) Δ
             v <- β2 v + (1 - β2) Δ²                        adam
                  v - (1 - β2) Δ² sign(v - Δ²)              yogi: v moves by no more than Δ² calls for
                  v + Δ²                                    adagrad
             w <- w + η_s m / (√v + τ),    with m = 0 and v = τ² before round 1, and without bias correction
    rule="sgd"  m <- β1 m + Δ,  w <- w + η_s m:  FedAvgM; at β1 = 0 and η_s = 1 it is FedAvg
    defaults    β1 = 0.9, with adagrad 0 (Reddi, appendix D);  η_s = 0.03, with sgd 1 (Reddi's best: 0.3 to 1)

Reddi et al., ICLR 2021, arXiv:2003.00295, algorithm 2; FedAvgM: Hsu et al. 2019, arXiv:1909.06335, section 4.3.

Differs:

- Δ is weighted by rows, as in the paper's experiments.  Its algorithm takes the plain mean ("as_text").
- The server's Adam does not correct the bias, as in the paper.  The authors' code (google-research/federated at
  2d068f6, optimization/trainer.py) uses Keras's Adam, which does.  No preset reproduces this.

In that code, means are weighted by rows too, and clients run plain SGD ("as_published").  The server takes the mean of
BatchNorm's running statistics, because they are no parameters.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedtune.experiment.algorithm import Algorithm, Task, hyper
from fedtune.experiment.scenario import Scenario


@dataclass(frozen=True)
class FedAdam(Algorithm):
    """FedAdam as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "mean"

    rule: str = hyper("adam", choices=("adam", "yogi", "adagrad", "sgd"), help="the server's optimiser")
    server_lr: float | None = hyper(
        None, 1e-3, 3.0, log=True, symbol="η_s", help="the server's learning rate; None: 1 with sgd, else 0.03"
    )
    beta1: float | None = hyper(
        None, 0.0, 0.99, symbol="β1", help="decay of the server's first moment; None: 0 with adagrad, else 0.9"
    )
    beta2: float = hyper(0.99, 0.9, 0.999, symbol="β2", help="decay of the server's second moment")
    tau: float = hyper(
        1e-3, 1e-8, 1e-1, log=True, symbol="τ", help="degree of adaptivity: added to the root of the second moment"
    )

    shared = ("body", "head")
    presets = {"as_text": {"averaging": "clients", "momentum": 0.0}, "as_published": {"momentum": 0.0}}

    def resolved_defaults(self) -> Mapping[str, float]:
        """The server's rate and its first moment's decay, by the rule."""
        rate = (1.0 if self.rule == "sgd" else 0.03) if self.server_lr is None else self.server_lr
        decay = (0.0 if self.rule == "adagrad" else 0.9) if self.beta1 is None else self.beta1
        return {"server_lr": rate, "beta1": decay}

    def idle(self, scenario: Scenario) -> dict[str, str]:
        """What the rule does without."""
        without = {"sgd": ("beta2", "tau"), "adagrad": ("beta2",)}.get(self.rule, ())
        return dict.fromkeys(without, f"the rule is {self.rule}")

    def init(self, task: Task) -> dict:
        """The server's optimiser has no momentum yet."""
        shapes = {n: task.shapes[n] for n in task.parameters}
        return {
            "first": {n: torch.zeros(shape) for n, shape in shapes.items()},
            "second": {n: torch.full(shape, self.tau**2, dtype=torch.float64) for n, shape in shapes.items()},
        }

    def aggregate(self, server: dict, up: dict, task: Task) -> dict:
        """One step of the server's optimiser."""
        w, mean = server["shared"], super().aggregate(server, up, task)["shared"]
        first, second, shared, own = {}, {}, dict(mean), self.resolved_defaults()
        beta1, rate = own["beta1"], own["server_lr"]
        for name, m in server["first"].items():
            move = mean[name] - w[name]
            second[name] = self.squares(server["second"][name], move**2)
            first[name] = beta1 * m + (move if self.rule == "sgd" else (1 - beta1) * move)
            scale = 1.0 if self.rule == "sgd" else second[name].sqrt() + self.tau
            shared[name] = w[name] + rate * first[name] / scale
        return server | {"shared": shared, "first": first, "second": second}

    def squares(self, v: Tensor, square: Tensor) -> Tensor:
        """The second moment of the clients' mean update, by the rule."""
        if self.rule == "adagrad":
            return v + square
        if self.rule == "yogi":
            return v - (1 - self.beta2) * square * torch.sign(v - square)
        return self.beta2 * v + (1 - self.beta2) * square
