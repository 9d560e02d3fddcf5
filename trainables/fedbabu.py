"""FedBABU: a common body trained under a fixed random head; each client fine-tunes both before it is scored.

    once     a common random head; it never moves and is never sent
    down     body
    client   body_k <- body;  local epochs on CE move the body, head frozen
    up       body_k, n_k
    server   the mean of the bodies weighted by rows
    scored   w_k <- (body, head), τ epochs on CE at a rate of their own move both;  no later round sees it

Oh, Kim and Yun, ICLR 2022, arXiv:2106.06042.  Its abstract has the head alone tuned, which is tune="head"; its code
and PFLlib tune body and head, which is the default.  Differs: the mean is by rows (its code, main_fed.py, line 103:
plain, of clients with as many rows each).  Tuning is repeated for every evaluation: its time is in eval_seconds; a
deployment pays it once per client.  update="all" trains and sends the head too: FedAvg-FT, and with τ = 0 FedAvg.
"""

from dataclasses import dataclass

from fedtune.experiment.algorithm import Phase, Task, hyper
from trainables._tuning import FineTunes


@dataclass(frozen=True)
class FedBABU(FineTunes):
    """FedBABU as described in its module: hyperparameters, client and server code."""

    pure = True

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
