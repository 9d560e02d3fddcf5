"""FedPFT: clients send Gaussian mixtures of a fixed body's features once; the server fits one head to samples from all.

    once     a common body that nobody trains: its random start, or weights given to all (--start-from)
    client   fits to f = body(x) a mixture of n diagonal Gaussians per own class:  π, μ, σ, and N_k,c its rows
    up       in its first round, and never again:  π, μ, σ, N_k,c
    server   per class: the mixture of everybody's components, each weighted by the rows it stands for, N_k,c · π
             r draws of every class;  epochs on CE over them train the head further, from where the last round left it
    down     the head

Beitollahi et al. 2024, arXiv:2402.01862, algorithm 1.  The paper was not at hand: this follows a description of it and
its Flower baseline (adap/flower, baselines/fedpft; strategy.py fits by AdamW).  "as_published" has the values of the
baseline's conf/strategy/fedpft.yaml.

Differs:

- The paper's server fits one head, once.  Here it goes on fitting in every round, on fresh draws.  Later rounds cost
  only the download of the head.
- Every class has equally many draws.  The paper draws as many as the class has rows.
- Covariances are diagonal, one of the paper's three kinds.  The baseline's are spherical.
- A class of N rows gets at most N / 5 components.  The baseline leaves out a class that does not have more rows than
  components.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtune.core import randomness
from fedtune.core.errors import UserError
from fedtune.core.hyper import hyperparameters
from fedtune.core.trees import Tree, put
from fedtune.experiment.algorithm import DOWN, UP, Data, Model, Noise, Phase, Ragged, Task, hyper
from fedtune.experiment.scenario import Scenario
from fedtune.nn.mixtures import fit, pack, pooled, sample, unpack
from fedtune.trainables._heads import FitsHead, normal, one_component


@dataclass(frozen=True)
class FedPFT(FitsHead):
    """FedPFT as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "classes"

    components: int = hyper(4, 1, 16, symbol="n", help="Gaussians per class and client, at most rows / 5")
    pseudo: int = hyper(100, 10, 2000, log=True, symbol="r", help="features drawn per class, again in every round")
    variance_floor: float = hyper(
        1e-3, 1e-6, 0.1, log=True, help="smallest variance, as a multiple of the class's mean variance"
    )

    sends = ("head",)
    unlike_text = "the server fits a head in every round, not just once, and draws equally many features of each class"
    presets = {"as_published": {"components": 2, "head_epochs": 1, "head_lr": 1e-4}}
    structural = ("components",)

    def build(self, net: nn.Module, task: Task) -> nn.Module:
        """Refuse bodies that differ: their features are not comparable."""
        if len(set(task.models)) > 1:
            raise UserError(f"fedpft pools features, so every client needs the same body, but got {task.models}")
        return net

    def idle(self, scenario: Scenario) -> dict[str, str]:
        """The hyperparameters of local training; with few rows a class, every mixture has one component."""
        local = {*hyperparameters(Scenario)} - {"participation"}
        reason = "no client trains: see head_lr, head_epochs, head_batch"
        return dict.fromkeys(local, reason) | one_component(scenario)

    def init(self, task: Task) -> dict[str, Tree]:
        """No client has sent a mixture yet."""
        classes, width = task.classes, task.features
        return {
            "head": {"weight": torch.zeros(classes, width), "bias": torch.zeros(classes)},
            "mixtures": torch.zeros(task.clients, classes, self.components, 1 + 2 * width),
            "counts": torch.zeros(task.clients, classes, dtype=torch.long),
        }

    def keep(self, task: Task) -> dict[str, Tree]:
        """Whether it has sent its mixtures."""
        return {"sent": torch.zeros(())}

    def round(self, task: Task) -> tuple[Phase | str, ...]:
        """Exchange; nobody trains."""
        return (UP, DOWN)

    def receive(self, down: dict) -> dict[str, Tensor]:
        """Clients replace their head by the received one."""
        return {f"head.{n}": t for n, t in down["head"].items()}

    def upload_noise(self, task: Task) -> dict[str, Noise]:
        """Draws that seed the mixtures."""
        return {"seeds": Noise((task.classes, self.components), "uniform")}

    def upload(self, m: Model, data: Data, down: dict) -> dict[str, Tree]:
        """A mixture per class that the client holds, and its rows, unless it has sent them."""
        seeds, first_time = data.eps["seeds"], data.client.kept["sent"] == 0
        member = (F.one_hot(data.y, len(seeds)) * data.mask[:, None]).T  # [C, N]
        local = fit(m.body(data.x), member.bool(), seeds, self.components, self.variance_floor)
        counts = member.sum(1)
        mixtures = Ragged(pack(local), (local.weights > 0) & first_time)
        return {"mixtures": mixtures, "counts": Ragged(counts, (counts > 0) & first_time)}

    def remember(self, m: Model, data: Data, down: dict) -> dict[str, Tree]:
        """The client has sent its mixtures."""
        return {"sent": torch.ones_like(data.client.kept["sent"])}

    def aggregate(self, server: dict, up: dict, task: Task) -> dict[str, Tree]:
        """Add new mixtures, and continue to fit the head."""
        senders = up["counts"].present.any(1)  # [m]
        sent = {"mixtures": up["mixtures"].values, "counts": up["counts"].values}
        stored = put({n: server[n] for n in sent}, up["ids"][senders], {n: t[senders] for n, t in sent.items()})
        mixture, shape = pooled(unpack(stored["mixtures"]), stored["counts"]), (task.classes, self.pseudo)
        stream = randomness.stream(task.seed, "pseudo", task.t)
        u = torch.rand(shape, generator=stream, dtype=mixture.means.dtype).to(mixture.means.device)
        x = sample(mixture, u, normal((*shape, task.features), mixture.means, stream))
        return stored | {"head": self.fitted(server["head"], x, stored["counts"].any(0), stream)}
