"""FedBN: FedAvg whose clients keep their BatchNorm layers to themselves.

    down     w without BatchNorm
    client   w_k <- w, with the client's own BatchNorm layers;  local epochs on CE
    up       w_k without BatchNorm, n_k
    server   the mean weighted by rows

BatchNorm's weights and biases stay with the client, and so do its running statistics.  (The scenario's field
batch_norm="personal" keeps the statistics only.)  Without BatchNorm in the model it is FedAvg.

Li et al., ICLR 2021, arXiv:2102.07623, algorithm 1.

Differs: the mean is weighted by rows.  The paper's is plain, and so is its code's (med-air/FedBN at 2fa38ad,
federated/fed_digits.py, line 247), whose clients all have equally many rows.
"""

from dataclasses import dataclass

from torch import nn

from fedtune.experiment.algorithm import Algorithm
from fedtune.experiment.scenario import Scenario
from fedtune.nn.layers import batch_norm_tensors


@dataclass(frozen=True)
class FedBN(Algorithm):
    """FedBN as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "mean"

    shared = ("body", "head")
    presets = {
        "as_text": {"averaging": "clients"},
        "as_published": {"averaging": "clients", "lr": 0.01, "batch": 32, "momentum": 0.0},
    }
    scored_model = "the averaged model with each client's own BatchNorm layers"

    def stays(self, net: nn.Module) -> set[str]:
        """The BatchNorm layers, whole."""
        return batch_norm_tensors(net)

    def idle(self, scenario: Scenario) -> dict[str, str]:
        """Running statistics have nothing to be averaged with."""
        return {"batch_norm": "BatchNorm stays with the client, running statistics included"}
