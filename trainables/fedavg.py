"""FedAvg: the server's model is the mean of the clients' models, weighted by their rows.

    down     w
    client   w_k <- w, local epochs on CE
    up       w_k, n_k
    server   w = Σ_k n_k w_k / Σ_k n_k

McMahan et al., AISTATS 2017, arXiv:1602.05629, algorithm 1.

Differs: BatchNorm's running statistics are averaged as the weights are.  Published codes leave them at the client, and
the paper does not mention them.
"""

from dataclasses import dataclass

from fedtune.experiment.algorithm import Algorithm
from fedtune.trainables._released import CLIENTS


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """FedAvg as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "mean"
    as_in_text = True

    shared = ("body", "head")
    presets = {"as_published": CLIENTS}
