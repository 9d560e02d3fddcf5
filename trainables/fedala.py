"""FedALA: clients learn, weight by weight, how much of the received higher layers they mix into their own.

    down     w
    client   lower layers <- w's;  from round 2 on, W in [0, 1] has as many numbers as θ_k, its own p highest layers:
             W <- clamp(W - η_W ∂CE(θ̂)/∂W, 0, 1),   θ̂ = θ_k + (w - θ_k) ⊙ W,   on a share s of its rows,
             the first time in passes until the losses settle,  later in one pass
             then θ_k <- θ̂,  and local epochs on CE train all layers
    up       w_k, n_k
    server   w = Σ_k n_k w_k / Σ_k n_k;   W stays with its client
    scored   after the mixing, which a client repeats with what it would receive now;  no later round sees it

Zhang et al., AAAI 2023, arXiv:2212.01197, algorithm 1, from a description of the paper and from PFLlib by the same
authors (d832e76: utils/ALA.py, clientala.py, main.py).  The defaults s = 80 %, p = 1 and η_W = 1 are PFLlib's, and so
is the start at W = 1.

Differs from PFLlib:

- W has settled once the losses of the last ten passes have a standard deviation below `settled`.  Its default, 0.1, is
  PFLlib's.  PFLlib checks this from the eleventh pass on, not from the tenth.
- The loss of a pass is its mean over the mini-batches, not that of its last mini-batch.
- There are at most `passes` passes.  PFLlib has no such limit.
- The share s of the rows is drawn at random.  PFLlib takes consecutive rows.
- Running statistics of all layers are the received ones.

"as_published" is the plain SGD of PFLlib's clients.  η_W = 0 leaves W at 1: FedAvg.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedtune.core.trees import Tree
from fedtune.experiment.algorithm import Algorithm, Batch, Data, Model, Phase, Task, hyper
from fedtune.nn.layers import cross_entropy, is_statistic


@dataclass(frozen=True)
class FedALA(Algorithm):
    """FedALA as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "mean"
    layers: int = hyper(1, 1, 10, extra_values=(0,), symbol="p", help="mixed layers, from the head down; 0: all")
    weight_lr: float = hyper(1.0, 0.01, 100.0, log=True, extra_values=(0.0,), symbol="η_W", help="learning rate of W")
    sampled: float = hyper(0.8, 0.05, 1.0, symbol="s", help="share of the rows that W learns on")
    settled: float = hyper(0.1, 1e-3, 1.0, log=True, help="standard deviation of losses below which W has settled")
    passes: int = hyper(20, 1, 100, log=True, help="largest number of passes over these rows")

    shared = ("body", "head")
    predicts = ("body", "head", "weights")
    structural = ("layers",)
    checked_with = {"passes": 3}
    contrasts = {"settled": (1e-3, 1.0, {"passes": 20}), "passes": (1, 3, {"settled": 1e-3})}
    presets = {"as_published": {"momentum": 0.0}}

    def higher(self, tensors: Iterable[str]) -> list[str]:
        """Which of the tensors are of the p highest layers; no running statistics."""
        names = [n for part in ("body.", "head.") for n in tensors if n.startswith(part) and not is_statistic(n)]
        layers = [*dict.fromkeys(n.rpartition(".")[0] for n in names)][-self.layers :]
        return sorted(n for n in names if n.rpartition(".")[0] in layers)

    def build(self, net: nn.Module, task: Task) -> nn.Module:
        """Add W, all ones."""
        of = net.state_dict()
        ones = {str(i): torch.ones_like(of[n]) for i, n in enumerate(self.higher(of))}
        net.add_module("weights", nn.ParameterDict(ones))
        return net

    def keep(self, task: Task) -> dict[str, Tree]:
        """Whether W has settled."""
        return {"settled": torch.zeros(())}

    def remember(self, m: Model, data: Data, down: dict) -> dict[str, Tree]:
        """Once it has learnt, it has."""
        return {"settled": data.tally["learnt"].sign()} if data.tally else data.client.kept

    def receive(self, down: dict) -> dict[str, Tensor]:
        """The lower layers; the own higher ones stay."""
        mixed = self.higher(down["shared"])
        return {n: t for n, t in down["shared"].items() if n not in mixed}

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Mix, then train; W stays as it is."""
        return (*self.adapt(task), Phase(self.loss, ("body", "head")))

    def adapt(self, task: Task) -> tuple[Phase, ...]:
        """Learn W, then mix; in round 1 all models are the same."""
        work = Phase(self.weights_loss, ("weights",), epochs=self.passes, lr=self.weight_lr, plain=True)
        learn = work._replace(share=self.sampled, bounds={"weights": (0.0, 1.0)}, until=self.stops, window=10)
        mix = Phase(self.loss, steps=0, begin=self.mixed)
        return (learn, mix) if task.t > 1 else ()

    def mixed(self, m: Model, down: dict) -> dict[str, Tensor]:
        """The mixture θ̂."""
        received = down["shared"]
        return {n: torch.lerp(m[n], received[n], m[f"weights.{i}"]) for i, n in enumerate(self.higher(received))}

    def weights_loss(self, m: Model, batch: Batch, down: dict) -> tuple[Tensor, dict[str, Tree]]:
        """CE of the mixture; and that W learns."""
        mix = m.at(self.mixed(m, down))
        return cross_entropy(mix.head(mix.body(batch.x)), batch.y), {"learnt": torch.ones_like(m.kept["settled"])}

    def stops(self, losses: Tensor, m: Model) -> Tensor:
        """After one pass, if W has settled before; else once the losses of ten are alike."""
        return (losses.std(correction=0) < self.settled) | (m.kept["settled"] > 0)
