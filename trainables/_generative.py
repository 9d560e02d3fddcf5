"""What FedGen, FedPA and FedGenP have in common: a server that trains generators of features for its clients.

Zhu et al. (FedGen), ICML 2021, arXiv:2105.10056, and its code, which FedPA's and FedGenP's codes extend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedtune.core import randomness
from fedtune.core.trees import Tree, take, to_all
from fedtune.experiment.algorithm import (
    SAMPLERS,
    Algorithm,
    Batch,
    Data,
    Distribution,
    Model,
    Noise,
    Phase,
    Task,
    hyper,
)
from fedtune.nn.generator_losses import Term
from fedtune.nn.generators import (
    Loss,
    Net,
    descend,
    draw_labels,
    features_of,
    generate,
    intra_inter_distance,
    label_counts,
    net_inputs,
    new_net,
    start_memory,
)


@dataclass(frozen=True)
class Generative(Algorithm):
    """FedAvg whose server also trains generators, and whose clients also train on generated features.

    A subclass says `wanted`, `loss_at` and how `aggregate` trains.  Here t counts rounds from 0, as the papers do; in
    round 0 there is no generator yet.  Every client reports its labels in every round; the label distribution and the
    weights use the latest report.
    """

    pure = True

    gen_lr: float = hyper(3e-4, 1e-5, 0.1, log=True, first_round=2, help="the generator's learning rate")
    gen_lr_decay: float = hyper(1.0, 0.9, 1.0, first_round=3, help="factor on gen_lr after every round")
    gen_weight_decay: float = hyper(
        0.0, 1e-6, 0.1, log=True, extra_values=(0.0,), first_round=2, help="L2 penalty on the generator"
    )
    gen_optimizer: str = hyper("adam", choices=("adam", "sgd"), first_round=2, help="the generator's optimiser")
    gen_steps: int = hyper(50, 1, 1000, log=True, first_round=2, help="the generator's training steps per round")
    gen_batch: int = hyper(32, 8, 256, log=True, first_round=2, help="mini-batch of the generator's steps")
    gen_hidden: int = hyper(256, 16, 1024, log=True, first_round=2, help="width of the generator's hidden layer")
    noise_width: int = hyper(32, 4, 512, log=True, first_round=2, help="width of the generator's noise input")
    noise_law: Distribution = hyper(
        "normal",
        choices=("normal", "uniform"),
        first_round=2,
        help="distribution of the noise: N(0, 1), or uniform on [0, 1)",
    )
    label_law: str = hyper(
        "histogram",
        choices=("histogram", "present", "uniform"),
        first_round=2,
        help="generated labels: as in the clients' rows; uniform over classes that any client has; or over all",
    )
    quality: bool = hyper(False, help="report distances of generated features within and between classes")

    shared = ("body", "head")
    linear_head = True
    sends: ClassVar[tuple[str, ...]] = ("generator", "labels")
    structural: ClassVar[tuple[str, ...]] = ("gen_hidden", "noise_width")
    checked_with: ClassVar[Mapping[str, Any]] = {"gen_steps": 10, "gen_hidden": 16}
    contrasts: ClassVar[Mapping[str, tuple[Any, Any, Mapping[str, Any]]]] = {
        "gen_steps": (10, 20, {}),
        "gen_hidden": (16, 32, {}),
        "gen_batch": (8, 16, {}),
    }
    net_heads: ClassVar[int] = 1  # 2: mean and log-variance
    personal: ClassVar[bool] = False  # a net for each client, stacked [K, …], instead of one for all

    def needs_generator(self) -> bool:
        """Whether clients train on generated features at all; if not, nothing is trained and nothing sent."""
        raise NotImplementedError

    def loss_at(self, t: int, m: Model, batch: Batch, down: dict) -> Any:
        """A client's loss in round t; down["generator"] is there if `imagines(t)`."""
        raise NotImplementedError

    def imagines(self, t: int) -> bool:
        """Whether clients have a generator in round t."""
        return t >= 1 and self.needs_generator()

    def init(self, task: Task) -> dict[str, Tree]:
        """Untrained nets, Adam's initial state, and no reported labels."""
        seed = randomness.number(task.seed, "generator")
        net = new_net(self.noise_width, task.classes, self.gen_hidden, task.features, self.net_heads, seed)
        return {
            "nets": to_all(net, task.clients) if self.personal else net,
            "memory": start_memory(net, task.clients if self.personal else None),
            "counts": torch.zeros(task.clients, task.classes, dtype=torch.long),
        }

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """One phase, with a loss that knows the round."""
        t = task.t - 1
        return (Phase(partial(self.loss_at, t), noise=self.client_noise(task) if self.imagines(t) else {}),)

    def client_noise(self, task: Task) -> dict[str, Noise]:
        """The random numbers that a client draws in each step."""
        rows = task.batch
        return {"noise": Noise((rows, self.noise_width), self.noise_law), "label": Noise((rows,), "uniform")}

    def upload(self, m: Model, data: Data, down: dict) -> dict[str, Tree]:
        """How many rows of each class the client holds."""
        return {"counts": label_counts(data.y, data.mask, m["head.weight"].shape[0])} if self.needs_generator() else {}

    def broadcast(self, server: dict, ids: Tensor, task: Task) -> dict[str, Tree]:
        """The model; and, once there is one, the generator with the label distribution."""
        down = {"shared": to_all(server["shared"], len(ids))}
        if self.imagines(task.t - 1):
            nets = take(server["nets"], ids) if self.personal else to_all(server["nets"], len(ids))
            down |= {"generator": nets, "labels": to_all(self.labels(server), len(ids))}
        return down

    def labels(self, server: dict) -> Tensor:
        """The distribution of generated labels [C], not normalised."""
        counts = server["counts"].sum(0).to(server["memory"]["first"])
        uniform = torch.ones_like(counts)
        return {"histogram": counts, "present": (counts > 0).to(counts), "uniform": uniform}[self.label_law]

    def aggregate(self, server: dict, up: dict, task: Task) -> dict[str, Tree]:
        """The averaged model, and the latest counts."""
        server = super().aggregate(server, up, task)
        if "counts" in up:
            server = server | {"counts": server["counts"].index_copy(0, up["ids"], up["counts"])}
        return server

    def train_net(self, server: dict, task: Task, objective: Callable[[Tensor, Tensor], Term]) -> dict[str, Tree]:
        """The server with its one net trained on objective(noise [S, B, Z], y [S, B]) of its features."""
        noise, y = self.draw(server, task, ())
        term, x = objective(noise, y), net_inputs(noise, y, task.classes)

        def loss(net: Net, s: int) -> tuple[Tensor, Tensor]:
            h = features_of(net, x[s], training=True)
            return h, term(h.detach(), s)[1]

        net, memory = self.descended(server["nets"], server["memory"], task, loss)
        return server | {"nets": net, "memory": memory}

    def draw(self, server: dict, task: Task, lead: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Noise [S, *lead, B, Z] and labels [S, *lead, B] of a round's generator steps."""
        stream = randomness.stream(task.seed, "generator", task.t)
        like, shape = server["memory"]["first"], (self.gen_steps, *lead, self.gen_batch)
        noise = SAMPLERS[self.noise_law]((*shape, self.noise_width), generator=stream, dtype=like.dtype)
        u = torch.rand(shape, generator=stream, dtype=like.dtype).to(like.device)
        return noise.to(like.device), draw_labels(self.labels(server), u.flatten()).view(shape)

    def descended(self, net: Net, memory: dict, task: Task, loss: Loss) -> tuple[Net, dict]:
        """`descend` by the hyperparameters, in the task's round."""
        lr = self.gen_lr * self.gen_lr_decay ** (task.t - 1)
        return descend(net, memory, loss, self.gen_steps, lr, self.gen_weight_decay, self.gen_optimizer)

    def report(self, server: dict) -> dict[str, float]:
        """With `quality`, FedPA's table V: how far apart generated features lie, within and between classes."""
        if not self.quality or not self.needs_generator():
            return {}
        with torch.no_grad():
            intra, inter = self.measured(server)
        return {"generated_intra": intra.item(), "generated_inter": inter.item()}

    def measured(self, server: dict) -> tuple[Tensor, Tensor]:
        """Distances within and between classes of 20 generated rows per class."""
        noise, y = self.probe(server)
        return intra_inter_distance(generate(server["nets"], noise, y), y)

    def probe(self, server: dict) -> tuple[Tensor, Tensor]:
        """Noise and labels for this measurement: the same noise in every round, and 20 labels of every class."""
        like, classes = server["memory"]["first"], server["counts"].shape[1]
        shape, stream = (20 * classes, self.noise_width), randomness.stream("quality")
        noise = SAMPLERS[self.noise_law](shape, generator=stream, dtype=like.dtype)
        return noise.to(like.device), torch.arange(classes, device=like.device).repeat_interleave(20)
