"""FedBABU: a common body trained under a fixed random head; each client fine-tunes both before it is scored.

    once     a common random head; it never moves and is never sent
    down     body
    client   body_k <- body;  local epochs on CE move the body, head frozen
    up       body_k, n_k
    server   the mean of the bodies weighted by rows
    scored   w_k <- (body, head), τ epochs on CE at a rate of their own move both;  no later round sees it

Oh, Kim and Yun, ICLR 2022, arXiv:2106.06042.  Its abstract says that clients tune the head alone (tune="head",
"as_text").  The authors' code and PFLlib tune body and head, which is the default here.

Differs: the mean is weighted by rows.  The code's (main_fed.py, line 103) is plain; its clients all have equally many
rows.

Clients fine-tune again for every evaluation, which counts as eval_seconds.  In a deployment each client would do it
once.  With update="all", clients also train and send the head.  This is FedAvg-FT, and at τ = 0 FedAvg.
"""

from dataclasses import dataclass

from fedtune.experiment.algorithm import Phase, Task, hyper
from fedtune.trainables._tuning import FineTunes


@dataclass(frozen=True)
class FedBABU(FineTunes):
    """FedBABU as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "mean"

    update: str = hyper("body", choices=("body", "all"), help="what clients train and send")

    structural = ("update",)
    presets = {
        **FineTunes.presets,
        "as_text": {"tune": "head"},
        "as_published": {"averaging": "clients", "momentum": 0.9},
    }

    @property
    def shared(self) -> tuple[str, ...]:  # type: ignore[override]
        """The parts that rounds train."""
        return ("body",) if self.update == "body" else ("body", "head")

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Local training of what is shared."""
        return (Phase(self.loss, train=self.shared),)
