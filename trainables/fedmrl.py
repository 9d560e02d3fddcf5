"""FedMRL: a small common net helps each client's own one: their features are joined and read at two widths.

    down     the small net: body' of d features, head'
    client   small_k <- small;  per batch one step of everything on   L = CE(head(r), y) + m · CE(head'(r_1..d), y)
             r = P [body'(x), body(x)] of D features, as many as the own body's;  P linear, each client's own
    up       small_k, n_k
    server   the mean of the small nets weighted by rows;  own net and P never leave their client; head(r) predicts

Yi, Yu, Wang, Liu and Li, NeurIPS 2024, arXiv:2406.00488.  The paper was not at hand: this follows a description of it
and HtFLlib's code.  As in a matryoshka, the smaller representation is within the larger one: head' reads the first d
features of those that head reads.  The paper gives both losses the same weight, m = 1.

Differs: the mean is weighted by rows.  HtFLlib's is plain ("as_published", "htfllib"); its d is D / 4, as here.

If m = 0 and P always passes on the own features alone, it is Local.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedtune.core import randomness
from fedtune.core.trees import mean_over_clients
from fedtune.experiment.algorithm import Algorithm, Batch, Model, Phase, Task, hyper
from fedtune.nn import architectures, catalogue
from fedtune.nn.layers import Linear, cross_entropy


@dataclass(frozen=True)
class FedMRL(Algorithm):
    """FedMRL as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "mean"

    small: str = hyper(
        "", choices=("", *catalogue.WIDTHS), help="architecture of the common net; empty: the scenario's first model"
    )
    width: float = hyper(0.25, 0.05, 1.0, symbol="d/D", help="features of the common net, as a share of the own one's")
    coarse: float = hyper(
        1.0, 0.1, 10.0, log=True, extra_values=(0.0,), symbol="m", help="weight of the common head's loss"
    )
    projection_rate: float = hyper(
        1.0, 0.1, 10.0, log=True, extra_values=(0.0,), help="factor on lr for the projection; 0: it stays as it began"
    )
    weighing: str = hyper(
        "rows", choices=("rows", "clients"), help="weights of common nets in the mean: by rows, or equal"
    )

    shared = ("small",)
    structural = ("small", "width")
    scored_model = "each client's own model on its and the common model's features"
    presets = dict.fromkeys(("as_published", "htfllib"), {"weighing": "clients", "momentum": 0.0})

    def build(self, net: nn.Module, task: Task) -> nn.Module:
        """Add the small net, with the same values everywhere, and the projection."""
        d, start = max(1, round(self.width * task.features)), randomness.number(task.seed, "small")
        small = architectures.build(self.small or task.models[0], task.shape, task.classes, d, start)
        d = next(small.head.parameters()).shape[1]  # a user's model may have a width of its own
        net.add_module("small", small)
        net.add_module("projection", Linear(d + task.features, task.features))
        return net

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Everything at once."""
        return (Phase(self.loss, lr_scale={"projection": self.projection_rate}),)

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """The losses of both heads."""
        fine, coarse = self.scores(m, batch.x)
        return cross_entropy(fine, batch.y) + self.coarse * cross_entropy(coarse, batch.y)

    def scores(self, m: Model, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the own head, and of the common one."""
        joined = torch.cat([m.part("small.body")(x), m.body(x)], 1)
        r = m.part("projection")(joined)  # [B, D]
        return m.head(r), m.part("small.head")(r[:, : joined.shape[1] - r.shape[1]])

    def predict(self, m: Model, x: Tensor, down: dict) -> dict[str, Tensor]:
        """The own head; the common one is logged."""
        fine, coarse = self.scores(m, x)
        return {"own": fine, "small": coarse}

    def aggregate(self, server: dict, up: dict, task: Task) -> dict:
        """The mean of the clients' small nets."""
        weight = up["rows"] if self.weighing == "rows" else torch.ones_like(up["rows"])
        return server | {"shared": mean_over_clients(up["shared"], weight)}
