"""FedRep: FedPer whose clients first fit the head to the common body, then the body to the head.

    down     body
    client   body_k <- body;  τ epochs on CE move the head, body frozen;  then the scenario's local work moves the
             body, head frozen
    up       body_k, n_k
    server   the mean of the bodies weighted by rows

Collins et al., ICML 2021, arXiv:2102.07078, algorithm 1.

Differs: the mean is weighted by rows.  The paper's is plain ("as_text").  Also, while the body is frozen, its running
statistics do not move.
"""

from dataclasses import dataclass

from fedtune.experiment.algorithm import Algorithm, Phase, Task, hyper


@dataclass(frozen=True)
class FedRep(Algorithm):
    """FedRep as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "mean"

    head_epochs: int = hyper(1, 1, 10, symbol="τ", help="epochs that train the head before the body")

    shared = ("body",)
    presets = {"as_text": {"averaging": "clients"}}

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Train the head first, then the body."""
        return (
            Phase(self.loss, train=("head",), epochs=self.head_epochs),
            Phase(self.loss, train=("body",)),
        )
