"""FedBABU: a common body trained under a fixed random head; each client fine-tunes its own head before it is scored.

    once     a common random head; it never moves and is never sent
    down     body
    client   body_k <- body;  local epochs on CE move the body, head frozen
    up       body_k, n_k
    server   the mean of the bodies weighted by rows
    scored   w_k <- (body, head), τ epochs on CE move the head (tune="all": both);  no later round sees it

Oh, Kim and Yun, ICLR 2022, arXiv:2106.06042; the mean is by rows.  Tuning is repeated for every evaluation: its time is
in eval_seconds; a deployment pays it once per client.  update="all" trains and sends the head too: FedAvg-FT, and with
τ = 0 FedAvg.
"""

from dataclasses import dataclass

from fedtune.experiment.algorithm import Algorithm, Phase, Task, hyper


@dataclass(frozen=True)
class FedBABU(Algorithm):
    """FedBABU as described in its module: hyperparameters, client and server code."""

    pure = True

    tune_epochs: int = hyper(
        5, 1, 20, extra_values=(0,), symbol="τ", help="fine-tuning epochs before a client is evaluated"
    )
    tune: str = hyper("head", choices=("head", "all"), help="what fine-tuning trains")
    tune_lr: float | None = hyper(None, 1e-4, 1.0, log=True, help="learning rate of fine-tuning; none: the clients' lr")
    update: str = hyper("body", choices=("body", "all"), help="what clients train and send")

    structural = ("update",)
    checked_with = {"tune_epochs": 1}

    @property
    def shared(self) -> tuple[str, ...]:  # type: ignore[override]
        """The parts that rounds train."""
        return ("body",) if self.update == "body" else ("body", "head")

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Local training of what is shared."""
        return (Phase(self.loss, train=self.shared),)

    def adapt(self, task: Task) -> tuple[Phase, ...]:
        """Local epochs on the client's own rows."""
        parts = ("head",) if self.tune == "head" else ()
        tuning = Phase(self.loss, train=parts, epochs=self.tune_epochs, lr=self.tune_lr)
        return (tuning,) if self.tune_epochs else ()
