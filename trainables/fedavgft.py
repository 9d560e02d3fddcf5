"""FedAvg-FT: FedAvg, but each client fine-tunes the received model on its own rows before it is scored.

    down, client, up, server     as FedAvg
    scored   w_k <- w, τ epochs on CE;  neither the server nor any later round sees it

The usual personal baseline; McMahan et al., AISTATS 2017, arXiv:1602.05629, and, for the tuning, Wang et al. 2019,
arXiv:1910.10252, who leave τ and its rate open: the defaults are those of FedBABU's code, where it is a baseline.
Fine-tuning is repeated for every evaluation: its time is in eval_seconds; a deployment pays it once per client.  τ = 0
is FedAvg.
"""

from dataclasses import dataclass

from trainables._tuning import FineTunes


@dataclass(frozen=True)
class FedAvgFT(FineTunes):
    """FedAvg-FT as described in its module: hyperparameters, client and server code."""

    pure = True
    as_in_text = True

    shared = ("body", "head")
