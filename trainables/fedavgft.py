"""FedAvg-FT: FedAvg, but each client fine-tunes the received model on its own rows before it is scored.

    down, client, up, server     as FedAvg
    scored   w_k <- w, τ epochs on CE;  neither the server nor any later round sees it

The usual baseline for personalized methods.  FedAvg: McMahan et al., AISTATS 2017, arXiv:1602.05629.  Fine-tuning: Wang
et al. 2019, arXiv:1910.10252.  That paper leaves τ and the rate open.  The defaults are from FedBABU's code, which has
this baseline.

Clients fine-tune again for every evaluation, which counts as eval_seconds.  In a deployment each client would do it
once.  τ = 0 is FedAvg.
"""

from dataclasses import dataclass

from fedtune.trainables._tuning import FineTunes


@dataclass(frozen=True)
class FedAvgFT(FineTunes):
    """FedAvg-FT as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "mean"
    as_in_text = True

    shared = ("body", "head")
