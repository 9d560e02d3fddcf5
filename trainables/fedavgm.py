"""FedAvgM: FedAvg with momentum in the server's updates.

    down, client, up     as FedAvg
    server   Δ = Σ_k n_k (w_k - w) / Σ_k n_k
             m <- β m + Δ
             w <- w + η_s m,    with m = 0 before round 1

Hsu, Qi and Brown 2019, arXiv:1909.06335, section 4.3.  There η_s is 1, and v stands for -m.  η_s is from Reddi et al.
(ICLR 2021).  This is FedAdam with rule="sgd", under its own name and with its own defaults.

A constant Δ moves the server by η_s Δ / (1 - β) a round.  The server takes the mean of BatchNorm's running statistics,
because they are no parameters.  The paper's clients run plain SGD ("as_text").  Its authors released no code.  β = 0
and η_s = 1 is FedAvg.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedtune.experiment.algorithm import hyper
from fedtune.trainables.fedadam import FedAdam


@dataclass(frozen=True)
class FedAvgM(FedAdam):
    """FedAvgM as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "mean"

    server_lr: float = hyper(1.0, 0.01, 3.0, log=True, symbol="η_s", help="the server's learning rate")
    beta1: float = hyper(0.9, 0.0, 0.997, symbol="β", help="the server's momentum")
    # what FedAdam's other rules have
    rule: ClassVar[str] = "sgd"  # type: ignore[misc]
    beta2: ClassVar[float] = 0.0  # type: ignore[misc]
    tau: ClassVar[float] = 0.0  # type: ignore[misc]

    presets = {"as_text": {"momentum": 0.0}}
