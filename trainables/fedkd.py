"""FedKD: every client distills with a small common net, the mentee, which is sent compressed by truncated SVD.

    down     the mentee, compressed;  the round t and their number T, which give the energy
             e_t = T_s + t/T · (T_e - T_s)
    client   mentee_k <- mentee;  per batch one step of both nets and of W_k [D, D] on   L + L'
             h, p  the own net's features and softmax;  h', p'  the mentee's;  S = CE + CE', both nets' cross-entropies
             own net   L  = CE  + (KL(p' || p) + |h - W h'|² / D) / S
             mentee    L' = CE' + (KL(p || p') + |h - W h'|² / D) / S
             each of the three gradients is clipped to norm `clip`; the mentee learns at `mentee_rate` times the rate
    up       mentee_k, compressed
    server   rebuilds, and takes the plain mean, 1/M;   the own net and W stay, and the own net is what predicts
    compressed: for a matrix [m, n], U_r, σ_r and V_r with the smallest r >= 1 that holds the share e_t of Σ σ².
    If these are not fewer than m·n numbers, or if e_t = 1, the matrix itself is sent.
    A kernel counts as a matrix [out, in·kh·kw].  Biases and BatchNorm's numbers are sent as they are.

Wu et al., Nature Communications 2022, arXiv:2108.13323.  The paper was not at hand: this follows a description of it
and PFLlib's and HtFLlib's codes.

As in these codes, clients send weights.  The paper's text has gradients.

Differs from the codes:

- A kernel is one matrix.  The codes unfold it over kh x kw with one common rank.  They send zeros if all singular
  values but one do not reach e_t, and they cannot return to the dense matrix.
- Each net minimises its own loss, in which the other net and S are constants.  W learns by the mentee's loss.  In the
  codes, every loss moves everything (coupled=True).
- KL is a mean over rows.  The codes divide by the number of classes too (kl_over="elements").

The server keeps the dense mean, and an evaluation scores the mentee before truncation.  S is at least 1e-6.  It is not
logged, because only clients know it.  BatchNorm's running statistics are always averaged.

At T_s = T_e = 1 it sends what FML sends.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtune.core import randomness
from fedtune.core.errors import Diverged
from fedtune.core.trees import mean_over_clients, to_all
from fedtune.experiment.algorithm import Algorithm, Batch, Data, Model, Phase, Ragged, Task, hyper
from fedtune.experiment.scenario import Scenario
from fedtune.nn import architectures, catalogue
from fedtune.nn.divergences import imitate
from fedtune.nn.layers import Linear, cross_entropy


@dataclass(frozen=True)
class FedKD(Algorithm):
    """FedKD as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "means"

    mentee: str = hyper(
        "", choices=("", *catalogue.WIDTHS), help="architecture of the common net; empty: the scenario's first model"
    )
    energy_start: float = hyper(
        0.95, 0.5, 1.0, symbol="T_s", help="energy (share of squared singular values) that is sent at first"
    )
    energy_end: float = hyper(0.98, 0.5, 1.0, symbol="T_e", help="energy that is sent in the last round; 1: all")
    mentee_rate: float = hyper(1.0, 0.1, 10.0, log=True, help="factor on lr for the mentee")
    clip: float = hyper(
        10.0, 0.1, 100.0, log=True, extra_values=(0.0,), help="clipping of each net's gradient norm; 0: none"
    )
    coupled: bool = hyper(False, help="let each loss also train the other net, and S")
    kl_over: str = hyper(
        "rows", choices=("rows", "elements"), help="KL is averaged over rows, or over rows and classes"
    )

    sends = ("mentee", "clock")
    predicts = ("body", "head")
    structural = ("mentee",)
    depends_on_horizon = True
    contrasts = {"energy_end": (0.5, 1.0, {"energy_start": 0.5, "rounds": 3})}
    presets = dict.fromkeys(("as_published", "htfllib"), {"coupled": True, "kl_over": "elements", "momentum": 0.0})

    def idle(self, scenario: Scenario) -> dict[str, str]:
        """The scenario's rule for running statistics does not reach what the algorithm sends by itself."""
        return {
            "batch_norm": "the mentee's running statistics are always averaged",
            "clip_norm": "clip bounds each net's gradient",
        }

    def net(self, task: Task) -> architectures.Net:
        """The mentee before round 1, the same everywhere."""
        start, name = randomness.number(task.seed, "mentee"), self.mentee or task.models[0]
        return architectures.build(name, task.shape, task.classes, task.features, start)

    def build(self, net: nn.Module, task: Task) -> nn.Module:
        """Add the mentee and the matrix W to the client's net."""
        net.add_module("mentee", self.net(task))
        net.add_module("align", Linear(task.features, task.features, bias=False))
        return net

    def init(self, task: Task) -> dict:
        """The server's mentee before the first round."""
        return {"mentee": dict(self.net(task).state_dict())}

    def energy(self, clock: Tensor) -> Tensor:
        """The share e_t of energy that is kept; clock [2] is t and T."""
        t, rounds = clock.double()
        return self.energy_start + t / rounds * (self.energy_end - self.energy_start)

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Everything at once, each of the three clipped by itself."""
        return (Phase(self.loss, lr_scale={"mentee": self.mentee_rate, "align": 1.0}, clip=self.clip),)

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """The sum L + L' of both nets' losses."""
        fixed: Callable[[Tensor], Tensor] = (lambda t: t) if self.coupled else Tensor.detach
        h, small = m.body(batch.x), m.part("mentee.body")(batch.x)  # [B, D]
        own, mentee, aligned = m.head(h), m.part("mentee.head")(small), m.part("align")(small)
        ce, ce_mentee = cross_entropy(own, batch.y), cross_entropy(mentee, batch.y)
        both = fixed(ce + ce_mentee).clamp(min=1e-6)  # the worse both are, the less they listen to each other
        learnt = imitate(own, mentee, self.coupled, self.kl_over) + F.mse_loss(h, fixed(aligned))
        taught = imitate(mentee, own, self.coupled, self.kl_over) + F.mse_loss(aligned, fixed(h))
        return ce + learnt / both + ce_mentee + taught / both

    def receive(self, down: dict) -> dict[str, Tensor]:
        """The mentee, rebuilt from its singular values."""
        return {f"mentee.{n}": t for n, t in unpack(down["mentee"]).items()}

    def upload(self, m: Model, data: Data, down: dict) -> dict:
        """The mentee, compressed to its singular values."""
        mentee = {n.removeprefix("mentee."): t for n, t in m.tensors.items() if n.startswith("mentee.")}
        return {"mentee": pack(mentee, self.energy(down["clock"]))}

    def predict(self, m: Model, x: Tensor, down: dict) -> dict[str, Tensor]:
        """The own net; the mentee is logged."""
        return {"own": m.head(m.body(x)), "mentee": m.part("mentee")(x)}

    def broadcast(self, server: dict, ids: Tensor, task: Task) -> dict:
        """The mentee, compressed, and the round's number."""
        clock = torch.tensor([task.t, task.rounds], device=ids.device)
        return to_all({"mentee": pack(server["mentee"], self.energy(clock)), "clock": clock}, len(ids))

    def deployed(self, server: dict, ids: Tensor, task: Task) -> dict:
        """The mentee as it is: no decomposition for an evaluation."""
        return to_all({"mentee": pack(server["mentee"])}, len(ids))

    def aggregate(self, server: dict, up: dict, task: Task) -> dict:
        """The plain mean of what was rebuilt."""
        equal_weights = torch.ones(len(up["ids"]), device=up["ids"].device)
        return {"mentee": mean_over_clients(unpack(up["mentee"]), equal_weights)}


def pack(tensors: dict[str, Tensor], energy: Tensor | None = None) -> dict:
    """A net as it is sent: vectors, and for each matrix its triplets or itself.  No energy: all dense."""
    wire: dict[str, dict] = {"vectors": {}, "triplets": {}, "dense": {}}
    for name, t in tensors.items():
        if t.ndim < 2:
            wire["vectors"][name] = t
        else:
            wire["triplets"][name], wire["dense"][name] = compress(t, energy)
    return wire


def compress(w: Tensor, energy: Tensor | None) -> tuple[Ragged, Ragged]:
    """The triplets (u, σ, v) of w [out, …] as rows of a table, and w itself: one of the two is present.

    Non-finite numbers are sent as they are, for the engine to find.
    """
    rows, columns = w.flatten(1).shape
    max_rank = (rows * columns - 1) // (rows + 1 + columns)  # the largest rank that saves numbers
    if energy is None or not max_rank:
        nothing = w.new_zeros(0, rows + 1 + columns)
        return Ragged(nothing, nothing.new_zeros(0, dtype=torch.bool)), Ragged(w[None], w.new_ones(1, dtype=torch.bool))
    finite = w.isfinite().all()
    try:
        u, s, v = torch.linalg.svd(torch.where(finite, w, 0).flatten(1), full_matrices=False)
    except torch.linalg.LinAlgError as error:
        raise Diverged(f"diverged: the mentee's singular values were not found ({error})") from error
    rank = rank_of(s, energy)
    dense = (rank > max_rank) | ~finite
    present = (torch.arange(max_rank, device=w.device) < rank) & ~dense
    table = torch.cat([u.mT, s[:, None], v], 1)[:max_rank]
    return Ragged(table, present), Ragged(torch.where(dense, w, 0)[None], dense[None])


def rank_of(s: Tensor, energy: Tensor) -> Tensor:
    """The smallest r >= 1 whose r first singular values hold that share of the sum of their squares; all for 1.

    s [k] falling, finite.
    """
    sums = (s.double() / s[0].double().clamp(min=1e-300)).square().cumsum(0)  # divided, so that squares stay in range
    return torch.where(energy < 1, 1 + (sums < energy * sums[-1]).sum(), len(s))


def unpack(wire: dict) -> dict[str, Tensor]:
    """The nets [m, …] that were packed, each matrix rebuilt from its triplets."""
    nets = dict(wire["vectors"])
    for name, (table, present) in wire["triplets"].items():
        full, dense = wire["dense"][name]  # [m, 1, out, …], [m, 1]
        m, _, rows = full.shape[:3]
        columns = table.shape[-1] - rows - 1
        u, s, v = torch.where(present[..., None], table, 0).split([rows, 1, columns], -1)  # [m, R, …]
        rebuilt = ((u * s).mT @ v).view(full[:, 0].shape)
        nets[name] = torch.where(dense.view(m, *[1] * (rebuilt.ndim - 1)), full[:, 0], rebuilt)
    return nets
