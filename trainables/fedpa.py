"""FedPA: prototypes regularize the body, and generated features the head; the generator seeks hard features.

    down     w; after the first round also prototypes φ, the generator G and the label distribution p̃
    client   local steps on
             L = CE + λ_ge(t) · CE(head(G(ε, ỹ)), ỹ) + λ_po(t) · mean_b |z_b - φ_y|,   z = body(x),   ỹ ~ p̃
             G is fixed; a class without a prototype has no pull
    up       w_k;  φ_k,c the mean feature of class c, and n_k,c its rows, for the classes it has
    server   w = Σ_k n_k w_k / Σ_k n_k
             φ_c = Σ_k n_k,c φ_k,c / Σ_k n_k,c,   kept from before if no client of the round has c
             then steps of G on
             γ_fid(t) · fidelity + γ_div(t) · diversity - γ_ad(t) · min(mean_b |h_b - φ_y|, cap),   h = G(ε, y),   y ~ p̃
             fidelity = 1/m Σ_k mean_b p_k,y CE(head_k(h), y)
             p_k,y = n_k,y / Σ_k n_k,y,   client k's share of the rows of class y
    weights  λ_ge(t) = λ_ge · d^t,   λ_po(t) = max(floor, λ_po · d^t),   γ(t) = γ · d^t
             each has a decay d of its own;   floor <= λ_po;   0 switches a term off

Jiang et al., "FedPA", equations 2 and 5 to 12, algorithm 1.

Differs from the paper:

- Distances to prototypes are mean squares, as in the authors' code.  λ_po = 5 is meant for these.  With the paper's
  norm (distance="l2"), such a weight pulls features almost into a point.
- The term with the minus sign is at most the mean distance between prototypes of different classes.  Paper and code
  have no bound (bounded=False).
- Diversity is a mean over pairs.  A pair's distances are means over dimensions, because norms would make the exponent
  so large that no gradient is left.  The paper divides by B² (Eq. 7, pairs_over="batch"), which makes the exponent
  about C times smaller.
- Prototypes are computed by the trained model, over all rows.

"as_text" trains for 20 epochs a round, as the text says.  The scenarios with FedPA's setting train for 20 mini-batches,
as the code does.  The ablations of table IV are gamma_ad=0, lam_ge=0 and lam_po=0.  Two things of the code are not
reproduced: classes that no client has get zero vectors as prototypes, and a client counts the rows drawn in the round
instead of all its rows.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedtune.core.trees import to_all
from fedtune.experiment.algorithm import Batch, Data, Model, Ragged, Task, hyper
from fedtune.nn.generator_losses import Term, diversity, fidelity, remoteness, total
from fedtune.nn.generators import draw_labels, generate, label_share
from fedtune.nn.layers import cross_entropy
from fedtune.nn.prototypes import class_means, class_sums, mean_by_count, mean_distance, row_distance
from fedtune.trainables._generative import Generative
from fedtune.trainables._released import CLIENTS, GENERATOR


@dataclass(frozen=True)
class FedPA(Generative):
    """FedPA as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "classes"

    lam_po: float = hyper(
        5.0,
        1e-3,
        20.0,
        log=True,
        extra_values=(0.0,),
        symbol="λ_po",
        first_round=2,
        help="weight of the pull to prototypes",
    )
    po_decay: float = hyper(0.98, 0.9, 1.0, first_round=2, help="factor on λ_po after every round")
    po_floor: float = hyper(0.15, 0.0, 1.0, first_round="floor_round", late=True, help="lower bound of λ_po")
    lam_ge: float = hyper(
        25.0,
        0.1,
        100.0,
        log=True,
        extra_values=(0.0,),
        symbol="λ_ge",
        first_round=2,
        help="weight of the loss on generated features",
    )
    ge_decay: float = hyper(0.98, 0.9, 1.0, first_round=2, help="factor on λ_ge after every round")
    gamma_fid: float = hyper(
        25.0, 0.5, 100.0, log=True, symbol="γ_fid", first_round=2, help="weight of the fidelity loss"
    )
    fid_decay: float = hyper(0.98, 0.9, 1.0, first_round=3, help="factor on γ_fid after every round")
    gamma_div: float = hyper(
        1.0,
        1e-2,
        10.0,
        log=True,
        extra_values=(0.0,),
        symbol="γ_div",
        first_round=2,
        help="weight of the diversity loss",
    )
    div_decay: float = hyper(1.0, 0.9, 1.0, first_round=3, help="factor on γ_div after every round")
    gamma_ad: float = hyper(
        0.15,
        1e-3,
        2.0,
        log=True,
        extra_values=(0.0,),
        symbol="γ_ad",
        first_round=2,
        help="weight of the push away from prototypes, which makes hard features",
    )
    ad_decay: float = hyper(1.0, 0.9, 1.0, first_round=3, help="factor on γ_ad after every round")
    bounded: bool = hyper(True, first_round=2, help="bound the push away at the mean distance between prototypes")
    distance: str = hyper(
        "mse", choices=("l2", "mse"), first_round=2, help="distance to a prototype: L2 norm, or mean square"
    )
    pairs: str = hyper(
        "same",
        choices=("same", "other", "all"),
        first_round=2,
        help="pairs in the diversity loss: same class, different classes, or all",
    )
    pairs_over: str = hyper(
        "pairs",
        choices=("pairs", "batch"),
        first_round=2,
        help="diversity's sum over pairs is divided by their number, or by B² (Eq. 7)",
    )
    targets: str = hyper(
        "new",
        choices=("new", "last"),
        first_round=2,
        help="hard features: pushed away from this round's prototypes, or the last round's",
    )
    reduce: str = hyper("mean", choices=("mean", "sum"), first_round=2, help="fidelity loss over clients: mean, or sum")
    weighing: str = hyper(
        "labels",
        choices=("labels", "mean"),
        first_round=2,
        help="weight of a client's head: p_k,y of the row's label y, or its mean over the batch",
    )
    prototypes: str = hyper(
        "final",
        choices=("final", "running"),
        first_round=2,
        help="class means taken with the trained model, or while it was training",
    )

    sends = ("generator", "labels", "protos")
    contrasts = {
        **Generative.contrasts,
        "po_floor": (0.1, 0.5, {"lam_po": 1.0, "po_decay": 0.9}),
        "gamma_ad": (0.0, 2.0, {"bounded": False}),
        "ad_decay": (0.9, 1.0, {"bounded": False}),
        "targets": ("new", "last", {"bounded": False}),
    }
    presets = {
        "as_text": {"distance": "l2", "bounded": False, "pairs_over": "batch", "local_steps": 0, "local_epochs": 20},
        "as_published": CLIENTS
        | GENERATOR
        | {
            "bounded": False,
            "distance": "mse",
            "pairs": "other",
            "targets": "last",
            "reduce": "sum",
            "weighing": "mean",
            "prototypes": "running",
        },
    }

    def floor_round(self) -> int:
        """The first round in which λ_po rests on its floor (174 of the paper's, which start at 0)."""
        t = 1
        while t < 10_000 and self.lam_po * self.po_decay**t >= self.po_floor:
            t += 1
        return t + 1

    def needs_generator(self) -> bool:
        """Unless generated features have no weight."""
        return self.lam_ge > 0

    def pull(self, t: int) -> float:
        """The weight λ_po(t) of the pull in round t."""
        return max(min(self.po_floor, self.lam_po), self.lam_po * self.po_decay**t)

    def init(self, task: Task) -> dict:
        """No class has a prototype yet."""
        no_classes = torch.zeros(task.classes, dtype=torch.bool)
        return super().init(task) | {"protos": Ragged(torch.zeros(task.classes, task.features), no_classes)}

    def broadcast(self, server: dict, ids: Tensor, task: Task) -> dict:
        """Prototypes too, if they pull and there are any."""
        down = super().broadcast(server, ids, task)
        if self.lam_po and task.t > 1:
            down["protos"] = to_all(server["protos"], len(ids))
        return down

    def loss_at(self, t: int, m: Model, batch: Batch, down: dict) -> Any:
        """Eq. 9 to 12; while prototypes are running means, with the sums they are made of."""
        z = m.body(batch.x)  # [B, D]
        loss = cross_entropy(m.head(z), batch.y)
        if self.imagines(t):
            y = draw_labels(down["labels"], batch.eps["label"])
            h = generate(down["generator"], batch.eps["noise"], y)
            loss = loss + self.lam_ge * self.ge_decay**t * cross_entropy(m.head(h), y)
        if t and self.lam_po:
            protos, present = down["protos"]
            loss = loss + self.pull(t) * (row_distance(z, protos[batch.y], self.distance) * present[batch.y]).mean()
        if self.prototypes == "final" or not self.uses_prototypes():
            return loss
        sums, counts = class_sums(z.detach(), batch.y, torch.ones_like(batch.y, dtype=torch.bool), len(m["head.bias"]))
        return loss, {"sums": sums, "counts": counts}

    def uses_prototypes(self) -> bool:
        """Whether anything is done with prototypes."""
        return self.lam_po > 0 or (self.gamma_ad > 0 and self.needs_generator())

    def upload(self, m: Model, data: Data, down: dict) -> dict:
        """Class means (Eq. 2) of the classes it holds, and its rows of each class."""
        up = super().upload(m, data, down)
        if not self.uses_prototypes():
            return up
        classes = len(m["head.bias"])
        means, rows = class_means(m.body(data.x), data.y, data.mask, classes)
        present = rows > 0
        if self.prototypes == "running":
            counts = data.tally["counts"]
            means, present = data.tally["sums"] / counts.clamp(min=1)[:, None], counts > 0
        return up | {"protos": Ragged(means, present), "counts": rows}

    def aggregate(self, server: dict, up: dict, task: Task) -> dict:
        """Average models and prototypes (Eq. 3, 4), then train the generator (Eq. 5 to 8)."""
        last = server["protos"]
        server = super().aggregate(server, up, task)
        if self.uses_prototypes():
            mean, has = mean_by_count(up["protos"].values, up["counts"] * up["protos"].present)
            server = server | {"protos": Ragged(torch.where(has[:, None], mean, last.values), last.present | has)}
        if not self.needs_generator():
            return server
        t, share = task.t - 1, label_share(up["counts"])
        protos, has = server["protos"] if self.targets == "new" else last
        cap = mean_distance(protos, has, self.distance) if self.bounded else torch.inf
        scale = 1 / len(share) if self.reduce == "mean" else 1.0
        fid = self.gamma_fid * self.fid_decay**t * scale
        div, ad = self.gamma_div * self.div_decay**t, self.gamma_ad * self.ad_decay**t

        def objective(noise: Tensor, y: Tensor) -> Term:
            agree = fidelity(fid, up["shared"], share, y, self.weighing)
            diverse_term = diversity(div, noise, y, self.pairs, task.features, self.pairs_over == "batch")
            remote_term = remoteness(-ad, protos, has, y, self.distance, cap)
            return total(agree, diverse_term, remote_term)

        return self.train_net(server, task, objective)
