"""FedPer: a common body, and a personal head for each client.

    down     body
    client   body_k <- body, local epochs on CE over body and head together
    up       body_k, n_k
    server   the mean of the bodies weighted by rows; the head stays with the client for ever

Arivazhagan et al. 2019, arXiv:1912.00818, algorithm 1.

The head is the last linear layer, as in PFLlib.  In FedProto's code all linear layers are personal, so its table counts
fewer numbers as sent.
"""

from dataclasses import dataclass

from fedtune.experiment.algorithm import Algorithm


@dataclass(frozen=True)
class FedPer(Algorithm):
    """FedPer as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "mean"
    as_in_text = True

    shared = ("body",)
