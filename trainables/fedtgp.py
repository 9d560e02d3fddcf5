"""FedTGP: FedProto whose server trains the prototypes, so that they stay apart.

    down     T_c of all C classes, once there are any
    client   local epochs on   L = CE(head(z), y) + λ · |z - T_y|² / D,   z = body(x)
    up       p_k,c the mean feature of class c at client k, after training, for the classes it has
    server   T_c = MLP(e_c),  e [C, D] and the MLP (D -> D, ReLU, D -> D) trained and kept over rounds
             δ = min(max_c min_{c' ≠ c} |q_c - q_c'|, τ),   q_c the plain mean of the p_k,c;  0 for a single class
             S epochs over the received pairs (p, y), shuffled, in batches of B, by plain SGD on
             CE(l, y),   l_c = -(|p - T_c| + δ [c = y]),   over all C classes

Zhang et al., AAAI 2024, arXiv:2401.03230, and its code (TsingZ0/FedTGP), from descriptions of both.  As in the code,
one margin δ holds for all classes.  The nearest T_c of all classes predicts; the head's prediction is logged beside it.
A class that no client holds has a T_c too, which is only pushed away.

Differs from the code:

- |.| is at least 1e-6.  In the code, its gradient can be NaN at 0.
- Prototypes are means over all rows.  The code drops a short last batch.
- q_c may be a mean over rows (weighting="rows").  In the code it is the plain mean over clients.

With server_epochs=0, T_c = q_c wherever there is one.  With weighting="rows" too, this is FedProto.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtune.core import randomness
from fedtune.experiment.algorithm import Data, Model, Ragged, Task, hyper
from fedtune.nn.prototypes import mean_by_count, nearest_other, pairwise_distance
from fedtune.trainables.fedproto import FedProto

Net = dict[str, Tensor]


@dataclass(frozen=True)
class FedTGP(FedProto):
    """FedTGP as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "classes"
    unlike_text = ""

    lam: float = hyper(
        10.0, 0.1, 50.0, log=True, extra_values=(0.0,), symbol="λ", first_round=2, help="weight of the prototype pull"
    )
    weighting: str = hyper(
        "clients", choices=("clients", "rows"), help="class means behind the margin: averaged over clients, or rows"
    )
    tau: float = hyper(
        100.0, 0.1, 1000.0, log=True, extra_values=(0.0,), symbol="τ", help="upper bound of the margin; 0: none"
    )
    server_epochs: int = hyper(
        100,
        1,
        1000,
        log=True,
        extra_values=(0,),
        symbol="S",
        help="the server's epochs on the received prototypes; 0: plain means",
    )
    server_lr: float = hyper(0.01, 1e-4, 1.0, log=True, help="the server's learning rate")

    checked_with = {"server_epochs": 10}
    presets = dict.fromkeys(("as_published", "htfllib"), {"momentum": 0.0})

    def init(self, task: Task) -> dict:
        """No client has sent a prototype; embeddings and MLP have PyTorch's default start."""
        c, d = task.classes, task.features
        with randomness.seeded(randomness.number(task.seed, "prototypes")):
            layers = {"embedding": nn.Embedding(c, d), "in": nn.Linear(d, d), "out": nn.Linear(d, d)}
        net = {f"{part}.{n}": t.detach() for part, layer in layers.items() for n, t in layer.named_parameters()}
        return super().init(task) | {"net": net}

    def upload(self, m: Model, data: Data, down: dict) -> dict:
        """Class means; with the number of rows only if means are weighted by rows."""
        up = super().upload(m, data, down)
        return up if self.weighting == "rows" else {"protos": up["protos"]}

    def aggregate(self, server: dict, up: dict, task: Task) -> dict:
        """Train the prototypes T on the received class means."""
        protos, sent = up["protos"]  # [m, C, D], [m, C]
        votes = up.get("counts", Ragged(sent.long(), sent))
        if not self.server_epochs:
            return server | super().aggregate(server, up | {"counts": votes}, task)
        means, present = mean_by_count(protos, votes.values * sent)
        stream = randomness.stream(task.seed, "prototypes", task.t)
        net = self.trained(
            server["net"], protos[sent], sent.nonzero()[:, 1], self.gap(means, present), task.batch, stream
        )
        state = {"protos": Ragged(prototypes(net), torch.ones_like(present)), "net": net}
        return state | self.holders(server, up)

    def gap(self, means: Tensor, present: Tensor) -> Tensor:
        """δ, the adaptive margin with its bound."""
        nearest = nearest_other(means, present)
        widest = nearest.masked_fill(nearest.isinf(), 0).max()
        return widest.clamp(max=self.tau) if self.tau else widest

    def trained(self, net: Net, protos: Tensor, y: Tensor, gap: Tensor, batch: int, stream: torch.Generator) -> Net:
        """S epochs over the prototypes [n, D] of classes y [n]."""
        net = {n: t.clone().requires_grad_() for n, t in net.items()}
        leaves, classes = list(net.values()), len(net["embedding.weight"])
        for _ in range(self.server_epochs):
            for some in torch.randperm(len(y), generator=stream).to(y.device).split(batch):
                made = prototypes(net)
                slope = contrast_slope(protos[some], F.one_hot(y[some], classes), made.detach(), gap)
                with torch.no_grad():
                    torch._foreach_add_(leaves, torch.autograd.grad(made, leaves, slope), alpha=-self.server_lr)
        return {n: t.detach() for n, t in net.items()}


def prototypes(net: Net) -> Tensor:
    """The trained prototypes T [C, D]."""
    hidden = F.linear(net["embedding.weight"], net["in.weight"], net["in.bias"]).relu()
    return F.linear(hidden, net["out.weight"], net["out.bias"])


def contrast_slope(p: Tensor, own: Tensor, made: Tensor, gap: Tensor) -> Tensor:
    """The slope by T [C, D] of the mean cross-entropy of l_c = -(|p - T_c| + δ own_c); p [B, D], own [B, C] one-hot.

    By hand, as autograd's bookkeeping takes half the time of steps as small as these; a test compares.
    """
    distances = pairwise_distance(p, made)
    pull = (own - (-distances - gap * own).softmax(1)) / distances / len(p)  # [B, C]: the slope by |p - T_c|, over it
    return pull.sum(0)[:, None] * made - pull.T @ p
