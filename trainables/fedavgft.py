"""FedAvg-FT: FedAvg, but each client fine-tunes the received model on its own rows before it is scored.

    down, client, up, server     as FedAvg
    scored   w_k <- w, τ epochs on CE;  neither the server nor any later round sees it

The usual personal baseline; McMahan et al., AISTATS 2017, arXiv:1602.05629, and, for the tuning, Wang et al. 2019,
arXiv:1910.10252.  Fine-tuning is repeated for every evaluation: its time is in eval_seconds; a deployment pays it once
per client.  τ = 0 is FedAvg.
"""

from dataclasses import dataclass

from fedtune.experiment.algorithm import Algorithm, Phase, Task, hyper


@dataclass(frozen=True)
class FedAvgFT(Algorithm):
    """FedAvg-FT as described in its module: hyperparameters, client and server code."""

    pure = True

    tune_epochs: int = hyper(
        1, 1, 20, extra_values=(0,), symbol="τ", help="fine-tuning epochs before a client is evaluated"
    )
    tune: str = hyper("all", choices=("all", "head"), help="what fine-tuning trains")
    tune_lr: float | None = hyper(None, 1e-4, 1.0, log=True, help="learning rate of fine-tuning; none: the clients' lr")

    shared = ("body", "head")

    def adapt(self, task: Task) -> tuple[Phase, ...]:
        """Local epochs on the client's own rows."""
        parts = ("head",) if self.tune == "head" else ()
        tuning = Phase(self.loss, train=parts, epochs=self.tune_epochs, lr=self.tune_lr)
        return (tuning,) if self.tune_epochs else ()
