"""FedSA: the server draws one anchor per class; features are pulled to them with a margin; heads are calibrated.

    start    A = H(Ac),   Ac ~ N(0, 1) [C, D]
             H: two layers, each linear, BatchNorm over the C rows, ReLU; it is never trained
    down     A, and the margin δ_k = max(mar(p_k), mar(A)), one number
             mar(V) = mean_c min_{c' ≠ c} |V_c - V_c'|,   0 for fewer than two classes
             p_k: what client k sent last; 0 before
    client   local epochs on
             L = CE(head(z), y) + λ_R L_R + λ_M L_M + λ_CC L_CC,   z = body(x)
             L_R  = mean_b |z_b - A_y|² / D
             L_M  = CE(l, y),   l_b,c = -(|z_b - A_c| + δ_k [c = y_b]),   over all C anchors
             L_CC = CE(head(A_c), c), the mean over all C anchors
    up       p_k,c the mean of z over class c while the model was moving, n_k,c its rows, for the classes it has
    server   p̄_c = Σ_k n_k,c p_k,c / Σ_k n_k,c,   kept from before if no client of the round has c
             A_c <- A_c + (1 - α) (p̄_c - A_c),   if a client of the round has c

|.| is at least 1e-6; [c = y_b] is 1 for a row's own class and 0 for others.

Zhou et al., "FedSA", AAAI 2025, equations 3 and 5 to 10.  The text does not define H, mar and L_R, nor when p_k is
taken.  Here these follow a description of its code (lokinko/FedSA).

Details and options:

- prototypes="final" takes p_k after training.
- The searched hyperparameter is `drift`, 1 - α.  At the code's 1e-4 anchors hardly move.
- The server computes δ_k, because clients here do not keep p_k from round to round.
- The nearest p̄ predicts, among all classes that were ever seen.  In the code, these are the classes of the last round.
  The p̄ that clients need for this do not count as sent.  The predictions of the nearest anchor and of the head are
  logged too.
- "as_published" takes plain means over clients for p̄_c, as the code does.  The code also sets λ_CC to 0 if all clients
  have one architecture.  For this, use --set lam_cc=0.
- The ablations of table 4 are embed=False, lam_m=0 and lam_cc=0.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtune.core import randomness
from fedtune.core.trees import to_all
from fedtune.experiment.algorithm import Algorithm, Batch, Data, Model, Ragged, Task, hyper
from fedtune.nn.generators import label_counts
from fedtune.nn.layers import cross_entropy
from fedtune.nn.prototypes import class_means, class_sums, mean_by_count, nearest_other, pairwise_distance


@dataclass(frozen=True)
class FedSA(Algorithm):
    """FedSA as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "classes"

    lam_r: float = hyper(
        10.0, 0.1, 50.0, log=True, extra_values=(0.0,), symbol="λ_R", help="weight of the pull to anchors"
    )
    lam_m: float = hyper(
        1.0,
        0.01,
        10.0,
        log=True,
        extra_values=(0.0,),
        symbol="λ_M",
        help="weight of the contrastive loss with a margin",
    )
    lam_cc: float = hyper(
        1.0, 0.01, 10.0, log=True, extra_values=(0.0,), symbol="λ_CC", help="weight of the head's loss on anchors"
    )
    drift: float = hyper(
        1e-4,
        1e-5,
        0.3,
        log=True,
        extra_values=(0.0,),
        symbol="1-α",
        help="step of the anchors towards the prototypes each round",
    )
    margin: str = hyper(
        "larger",
        choices=("larger", "global", "local", "none"),
        help="margin from the anchors (global), the client's prototypes (local), the larger of the two, or 0",
    )
    embed: bool = hyper(True, help="embed the anchors (False: raw Gaussian draws)")
    prototypes: str = hyper(
        "running",
        choices=("running", "final"),
        help="class means taken while the model was training, or with the trained model",
    )
    weighting: str = hyper(
        "rows", choices=("rows", "clients"), help="prototypes are averaged over all rows, or over clients"
    )
    predictor: str = hyper(
        "nearest", choices=("nearest", "anchor", "head"), help="nearest prototype, nearest anchor, or the head's argmax"
    )

    sends = ("anchors", "margin")
    unlike_text = "the embedding of the anchors is random and not trained"
    presets = {"as_published": {"weighting": "clients", "momentum": 0.0}}

    def init(self, task: Task) -> dict:
        """The first anchors, and no prototypes yet."""
        classes, features = task.classes, task.features
        drawn = randomness.stream(task.seed, "anchors")
        anchors = torch.randn(classes, features, generator=drawn, dtype=torch.float64)
        if self.embed:
            anchors = embedded(anchors, randomness.number(task.seed, "embedding"))
        none = torch.zeros(classes, dtype=torch.bool)
        return {
            "anchors": anchors,
            "protos": Ragged(torch.zeros(classes, features), none),
            "local": torch.zeros(task.clients),  # mar(p_k)
        }

    def loss(self, m: Model, batch: Batch, down: dict) -> Any:
        """Eq. 9; while prototypes are running means, with the sums they are made of."""
        z, anchors = m.body(batch.x), down["anchors"]  # [B, D], [C, D]
        loss = cross_entropy(m.head(z), batch.y)
        if self.lam_r:
            loss = loss + self.lam_r * F.mse_loss(z, anchors[batch.y])  # Eq. 5
        if self.lam_m:
            own = F.one_hot(batch.y, len(anchors)) * down["margin"] if self.has_margin() else 0
            loss = loss + self.lam_m * cross_entropy(-(pairwise_distance(z, anchors) + own), batch.y)  # Eq. 7
        if self.lam_cc:
            labels = torch.arange(len(anchors), device=z.device)
            loss = loss + self.lam_cc * cross_entropy(m.head(anchors), labels)  # Eq. 8
        if self.prototypes == "final":
            return loss
        sums, counts = class_sums(z.detach(), batch.y, torch.ones_like(batch.y, dtype=torch.bool), len(anchors))
        return loss, {"sums": sums, "counts": counts}

    def upload(self, m: Model, data: Data, down: dict) -> dict:
        """Prototypes (Eq. 2) and rows of the classes that the client holds, or has met in training."""
        classes = len(down["anchors"])
        if self.prototypes == "final":
            protos, rows = class_means(m.body(data.x), data.y, data.mask, classes)
            present = rows > 0
        else:
            met, rows = data.tally["counts"], label_counts(data.y, data.mask, classes)
            protos, present = data.tally["sums"] / met.clamp(min=1)[:, None], met > 0
        return {"protos": Ragged(protos, present), "counts": Ragged(rows, present)}

    def predict(self, m: Model, x: Tensor, down: dict) -> dict[str, Tensor]:
        """Minus the distance to each known prototype, the head while there is none; to each anchor; the head."""
        z = m.body(x)
        (protos, present), logits = down["protos"], m.head(z)
        scores = torch.where(present.any(), (-pairwise_distance(z, protos)).masked_fill(~present, -torch.inf), logits)
        ways = {"nearest": scores, "anchor": -pairwise_distance(z, down["anchors"]), "head": logits}
        return {self.predictor: ways.pop(self.predictor)} | ways

    def broadcast(self, server: dict, ids: Tensor, task: Task) -> dict:
        """Anchors; each client's margin, if there is any."""
        down = to_all({"anchors": server["anchors"]}, len(ids))
        if self.has_margin():
            local, common = server["local"][ids], mar(server["anchors"])
            down["margin"] = {"larger": local.maximum(common), "global": common.expand_as(local), "local": local}[
                self.margin
            ]
        return down

    def has_margin(self) -> bool:
        """Whether margins are used at all."""
        return self.lam_m > 0 and self.margin != "none"

    def deployed(self, server: dict, ids: Tensor, task: Task) -> dict:
        """What prediction needs: prototypes and anchors."""
        return to_all({name: server[name] for name in ("anchors", "protos")}, len(ids))

    def aggregate(self, server: dict, up: dict, task: Task) -> dict:
        """Prototypes (Eq. 3), then anchors (Eq. 10), and the margins of the received prototypes (Eq. 6)."""
        protos, sent = up["protos"]
        weight = sent * (up["counts"].values if self.weighting == "rows" else 1)
        mean, present = mean_by_count(protos, weight)  # [m, C, D] -> [C, D]
        old, anchors = server["protos"], server["anchors"]
        moved = torch.lerp(anchors, mean, self.drift)
        return {
            "anchors": torch.where(present[:, None], moved, anchors),
            "protos": Ragged(torch.where(present[:, None], mean, old.values), old.present | present),
            "local": server["local"].index_copy(0, up["ids"], mar(protos, sent)),
        }


def embedded(rows: Tensor, seed: int) -> Tensor:
    """H(rows), from PyTorch's default start.  [C, D] float64 both."""
    d = rows.shape[1]
    with randomness.seeded(seed):
        blocks = [layer for _ in range(2) for layer in (nn.Linear(d, d), nn.BatchNorm1d(d), nn.ReLU())]
    with torch.no_grad():
        return nn.Sequential(*blocks).double()(rows)


def mar(vectors: Tensor, mask: Tensor | None = None) -> Tensor:
    """The mean distance of a class's vector to the nearest other one (Eq. 6); 0 for fewer than two classes.

    vectors [..., C, D], there [..., C] bool (none: all)  ->  [...]
    """
    near = nearest_other(vectors, vectors.new_ones(vectors.shape[:-1], dtype=torch.bool) if mask is None else mask)
    paired = near.isfinite()
    return near.masked_fill(~paired, 0).sum(-1) / paired.sum(-1).clamp(min=1)
