"""LG-FedAvg: a common head on personal representations (bodies).

    down     head
    client   head_k <- head, local epochs on CE over body and head together
    up       head_k, n_k
    server   the mean of the heads weighted by rows; the body stays with the client for ever

Liang et al. 2020, arXiv:2001.01523, algorithm 1.

Differs:

- The last linear layer is shared, as in PFLlib and HtFLlib.  (FL-bench does the reverse and shares the first layers.)
- Clients do not start from a FedAvg model, as they do in the paper.
- The paper's auxiliary loss on the representation is left out.

averages="model" is FedAvg.
"""

from dataclasses import dataclass

from fedtune.experiment.algorithm import Algorithm, hyper


@dataclass(frozen=True)
class LGFedAvg(Algorithm):
    """LG-FedAvg as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "mean"
    unlike_text = "clients do not start from a FedAvg model, and representations have no loss of their own"

    averages: str = hyper(
        "head", choices=("head", "model"), help="what the server averages: the head, or the model (FedAvg)"
    )

    structural = ("averages",)

    @property
    def shared(self) -> tuple[str, ...]:  # type: ignore[override]
        """The parts that the server averages: the head, or the whole model."""
        return ("head",) if self.averages == "head" else ("body", "head")
