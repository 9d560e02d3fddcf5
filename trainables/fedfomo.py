"""FedFomo: every client mixes the models of other clients that do well on rows that it holds out.

    down     the last models w_j of M other clients:  M times the one that k trusts most of those not yet chosen,
             or with probability ε a random one of them
    client   v_j = (CE(w_k) - CE(w_j)) / |w_j - w_k| on its held-out rows
             w_k <- Σ_j v_j⁺ w_j / Σ_j v_j⁺, or as it is if no v_j > 0;   local epochs on CE on its other rows
    up       w_k, n_k, the v_j
    server   P_k,j <- P_k,j + v_j,   the trust of k in j
    scored   w_k

Zhang et al., ICLR 2021, arXiv:2012.08565, algorithm 1, from a description of the paper; and PFLlib (d832e76:
clientfomo.py, serverfomo.py, main.py), whose values are "as_published".

Differs:

- ε is constant over rounds.
- Held-out rows are spread evenly: every fifth row if held_out=0.2.  PFLlib holds out the last fifth.
- Distance and mixture cover trainable parameters.

M = 0 with held_out=0 is Local.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedtune.core import randomness
from fedtune.core.trees import Tree, take
from fedtune.experiment.algorithm import Data, Model, Phase, Task, hyper
from fedtune.trainables._last_models import LastModels


@dataclass(frozen=True)
class FedFomo(LastModels):
    """FedFomo as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "single"

    candidates: int = hyper(
        5, 1, 20, extra_values=(0,), symbol="M", first_round=2, help="models that a client receives"
    )
    explore: float = hyper(0.3, 0.0, 1.0, symbol="ε", first_round=2, help="chance that a candidate is a random client")
    held_out: float = hyper(
        0.2, 0.05, 0.5, extra_values=(0.0,), help="share of rows that only judge models; 0: all rows train and judge"
    )

    structural = ("candidates",)
    presets = {"as_published": {"momentum": 0.0, "explore": 0.0}}

    def build(self, net: nn.Module, task: Task) -> nn.Module:
        """Add a place for the v_j."""
        net.add_module("worth", part := nn.Module())
        part.register_buffer("v", torch.zeros(self.candidates))
        return net

    def init(self, task: Task) -> dict[str, Tree]:
        """Nobody trusts anybody."""
        return super().init(task) | {"trust": torch.zeros(task.clients, task.clients)}

    def candidates_of(self, server: dict, ids: Tensor, task: Task) -> Tensor:
        """Whose models clients `ids` receive in this round, [m, at most M]."""
        senders, trust, choices = server["sent"].nonzero()[:, 0], server["trust"].cpu(), []
        for k in ids.tolist():
            stream = randomness.stream(task.seed, "candidates", task.t, k)
            others = [j for j in senders[torch.randperm(len(senders), generator=stream)].tolist() if j != k]
            trusted, mine = sorted(others, key=lambda j: -float(trust[k, j])), []  # noqa: B023 (called at once)
            for u in torch.rand(min(self.candidates, max(0, len(senders) - 1)), generator=stream).tolist():
                mine.append(next(j for j in (others if u < self.explore else trusted) if j not in mine))
            choices.append(mine)
        return torch.tensor(choices, dtype=torch.int64, device=ids.device)

    def broadcast(self, server: dict, ids: Tensor, task: Task) -> dict[str, Tree]:
        """The candidates' models, [m, M, …]."""
        candidates = self.candidates_of(server, ids, task)
        return {"shared": take(server["models"], candidates)} if candidates.numel() else {}

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Mix, then train on what is not held out."""
        return (Phase(self.loss, ("body", "head"), rows=self.trains if self.held_out else None, read=self.mixed),)

    def trains(self, places: Tensor) -> Tensor:
        """Which rows are not held out."""
        return (places + 1) % round(1 / self.held_out) > 0

    def mixed(self, m: Model, data: Data, down: dict) -> dict[str, Tensor]:
        """The mixture, and the v_j."""
        if not (others := down.get("shared", {})):  # [M, …]
            return {}
        distance = torch.stack([(t - m[n]).flatten(1).square().sum(1) for n, t in others.items()]).sum(0).sqrt()  # [M]
        losses = torch.stack([self.judged(m.at(take(others, j)), data) for j in range(len(distance))])
        v = (self.judged(m, data) - losses) / (distance + 1e-5)
        share = v.clamp(min=0) / v.clamp(min=0).sum().clamp(min=1e-30)
        mixture = {n: torch.where(share.sum() > 0, torch.tensordot(share, t, 1), m[n]) for n, t in others.items()}
        return mixture | {"worth.v": torch.cat([v, v.new_zeros(self.candidates - len(v))])}

    def judged(self, m: Model, data: Data) -> Tensor:
        """Mean CE on the held-out rows."""
        rows = -m.head(m.body(data.x)).log_softmax(1).gather(1, data.y[:, None])[:, 0]
        judge = data.mask & ~self.trains(torch.arange(len(rows), device=rows.device)) if self.held_out else data.mask
        return (rows * judge).sum() / judge.sum().clamp(min=1)

    def upload(self, m: Model, data: Data, down: dict) -> dict[str, Tree]:
        """The v_j."""
        return {"v": m["worth.v"][: len(next(iter(down["shared"].values())))]} if "shared" in down else {}

    def aggregate(self, server: dict, up: dict, task: Task) -> dict[str, Tree]:
        """Keep each client's last model, and add to its trust."""
        trust, candidates = server["trust"].clone(), self.candidates_of(server, up["ids"], task)
        trust[up["ids"][:, None], candidates] += up.get("v", 0.0)
        return super().aggregate(server, up, task) | {"trust": trust}
