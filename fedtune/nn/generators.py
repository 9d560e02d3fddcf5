"""Generators of features: the server trains them against the heads that clients sent, clients train on their draws.

A net is a dict of tensors, so it crosses the wire, is saved and is stacked like everything else.  `Generative` is what
FedGen, FedPA and FedGenP have in common.

Zhu et al. (FedGen), ICML 2021, arXiv:2105.10056, and its code, which FedPA's and FedGenP's codes extend.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtune.core import randomness
from fedtune.core.trees import Tree, take, to_all
from fedtune.federated.algorithm import DOWN, LAWS, UP, Algorithm, Batch, Data, Law, Model, Noise, Phase, Task, hyper
from fedtune.nn.generator_losses import Term

Net = dict[str, Tensor]
Loss = Callable[[Net, int], tuple[Tensor, Tensor | None]]  # the loss and None; or features and the loss's slope by them

_ROWS = 2**22  # logits that the server holds at once while it trains personal generators


def new_net(noise: int, classes: int, hidden: int, features: int, heads: int, seed: int) -> Net:
    """[ε, onehot(y)] -> hidden, BatchNorm, ReLU -> features (`heads` times as many), PyTorch's default start."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = {"in": nn.Linear(noise + classes, hidden), "norm": nn.BatchNorm1d(hidden),
                  "out": nn.Linear(hidden, heads * features)}
    whole = {f"{part}.{n}": t.detach() for part, layer in layers.items() for n, t in layer.state_dict().items()}
    return {n: t for n, t in whole.items() if t.is_floating_point()}  # without BatchNorm's counter, which nobody reads


def generate(net: Net, noise: Tensor, y: Tensor, training: bool = False) -> Tensor:
    """Features h [B, D] from noise [B, Z] and labels y [B].  Training moves BatchNorm's statistics in place."""
    return _features(net, _inputs(noise, y, net["in.weight"].shape[1] - noise.shape[1]), training)


def _inputs(noise: Tensor, y: Tensor, classes: int) -> Tensor:
    return torch.cat([noise, F.one_hot(y, classes).to(noise)], -1)


def _features(net: Net, x: Tensor, training: bool) -> Tensor:
    x = F.linear(x, net["in.weight"], net["in.bias"])
    mean, var, scale, shift = (net[f"norm.{n}"] for n in ("running_mean", "running_var", "weight", "bias"))
    x = F.batch_norm(x, mean, var, scale, shift, training)
    return F.linear(F.relu(x), net["out.weight"], net["out.bias"])


def draw_labels(law: Tensor, u: Tensor) -> Tensor:
    """Labels [B] from uniform numbers u [B] and a law over classes [C] of any positive scale; never one of mass 0."""
    mass = law.cumsum(0)
    picked = (mass <= (u * mass[-1])[:, None]).sum(1)
    return picked.minimum((mass < mass[-1]).sum())  # rounding must not lead beyond the last class that has mass


def label_counts(data: Data, classes: int) -> Tensor:
    """Rows of each class at a client, [C]."""
    return (F.one_hot(data.y, classes) * data.mask[:, None]).sum(0)


def label_share(counts: Tensor) -> Tensor:
    """p[k, y] = n_k,y / Σ_k n_k,y of counts [m, C]; 0 where nobody has the class."""
    return counts.double() / counts.sum(0).clamp(min=1)  # whole numbers would divide to float32


def head_losses(shared: dict[str, Tensor], h: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of rows h [B, D] under every head that was sent at once, [m, B]."""
    weight, bias = shared["head.weight"].transpose(0, 1), shared["head.bias"].T  # [C, m, D], [C, m]
    # Classes first: one matrix product for all heads, and a softmax down columns, which is many times as fast as along
    # rows of ten.
    logits = (weight.flatten(0, 1) @ h.T + bias.reshape(-1, 1)).view(*bias.shape, -1)  # [C, m, B]
    return -logits.log_softmax(0).gather(0, y.expand(1, bias.shape[1], -1))[0]


def distances(h: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean Euclidean distance of two rows of one class, and of two rows of different classes.  h [N, D], y [N]."""
    apart, alike = torch.cdist(h, h), y[:, None] == y
    others = alike & ~torch.eye(len(y), dtype=torch.bool, device=y.device)
    return apart[others].mean(), apart[~alike].mean()


def _moving(net: Net) -> list[str]:
    """What is trained.  Not the bias before BatchNorm: it cancels there, and Adam would make steps of its rounding."""
    return [n for n in net if "running" not in n and n != "in.bias"]


def start_memory(net: Net, clients: int | None = None) -> dict[str, Tensor]:
    """What Adam remembers of a net, or of `clients` nets each by itself, before its first step."""
    numbers, lead = sum(net[n].numel() for n in _moving(net)), () if clients is None else (clients,)
    return {"step": torch.zeros(lead), "first": torch.zeros(*lead, numbers), "second": torch.zeros(*lead, numbers)}


def descend(
    net: Net, memory: dict[str, Tensor], loss: Loss, steps: int, lr: float,
    weight_decay: float = 0.0, optimizer: str = "adam",
) -> tuple[Net, dict[str, Tensor]]:  # fmt: skip
    """`steps` steps on loss(net, step), for one net or a stack of nets, whose losses are then summed.

    torch.optim's Adam (betas .9 and .999, eps 1e-8, L2 penalty in the gradient) or SGD.  By hand only so that stacked
    nets which took part in different rounds keep each its own step count; a test compares.
    """
    lead = memory["step"].dim()
    moving = _moving(net)
    sizes = [net[n].shape[lead:].numel() for n in moving]
    net = {n: t.clone() for n, t in net.items()}
    flat = torch.cat([net[n].flatten(lead) for n in moving], -1)  # [(K,) P]: one optimiser step, few operations
    views = {n: t.view(net[n].shape) for n, t in zip(moving, flat.split(sizes, -1), strict=True)}
    leaves = {n: t.detach().requires_grad_() for n, t in views.items()}  # they see what is done to flat
    step, first, second = (memory[n].clone() for n in ("step", "first", "second"))
    at = step + torch.arange(1, steps + 1, device=step.device).view(-1, *[1] * lead)  # [S, (K)]
    rate, spread = (lr / (1 - 0.9**at))[..., None], (1 - 0.999**at).rsqrt()[..., None]
    for s in range(steps):
        found, slope = loss(net | leaves, s)
        grads = torch.autograd.grad(found, list(leaves.values()), slope)
        grad = torch.cat([g.flatten(lead) for g in grads], -1)
        if weight_decay:
            grad.add_(flat, alpha=weight_decay)
        if optimizer == "sgd":
            flat.sub_(grad, alpha=lr)
            continue
        first.lerp_(grad, 0.1)
        second.mul_(0.999).addcmul_(grad, grad, value=0.001)
        flat.addcdiv_(first, second.sqrt().mul_(spread[s]).add_(1e-8).div_(rate[s]), value=-1)
    step = step if optimizer == "sgd" else step + steps
    return net | {n: t.clone() for n, t in views.items()}, {"step": step, "first": first, "second": second}


@dataclass(frozen=True)
class Generative(Algorithm):
    """FedAvg whose server also trains generators, and whose clients then train on what they draw.

    A subclass says `wanted`, `loss_at` and how `aggregate` trains.  t counts rounds from 0, as the papers do; in round
    0 there is no generator yet.  Labels are told by every client in every round, and law and weights use the latest.
    """

    gen_lr: float = hyper(3e-4, 1e-5, 1e-2, log=True, since=2, help="the generator's learning rate")
    gen_lr_decay: float = hyper(1.0, 0.9, 1.0, since=3, help="what gen_lr is multiplied by after every round")
    gen_weight_decay: float = hyper(0.0, 1e-6, 0.1, log=True, also=(0.0,), since=2, help="L2 penalty on the generator")
    gen_optimizer: str = hyper("adam", choices=("adam", "sgd"), since=2, help="the generator's optimiser")
    gen_steps: int = hyper(50, 10, 200, log=True, since=2, help="the generator's steps in a round")
    gen_batch: int = hyper(32, 8, 256, log=True, since=2, help="rows of one of its steps")
    gen_hidden: int = hyper(256, 16, 1024, log=True, since=2, help="width of its hidden layer")
    noise_width: int = hyper(32, 4, 128, log=True, since=2, help="width of the noise it starts from")
    noise_law: Law = hyper("normal", choices=("normal", "uniform"), since=2, help="N(0, 1), or uniform on [0, 1)")
    label_law: str = hyper(
        "histogram", choices=("histogram", "present", "uniform"), since=2,
        help="generated labels: as the clients have them, uniform among those that anybody has, or among all",
    )  # fmt: skip
    quality: bool = hyper(False, help="log distances of generated features within and between classes")

    shared = ("body", "head")
    sends: ClassVar[tuple[str, ...]] = ("generator", "labels")
    structural: ClassVar[tuple[str, ...]] = ("gen_hidden", "noise_width")
    net_heads: ClassVar[int] = 1  # 2: mean and log-variance
    personal: ClassVar[bool] = False  # a net for each client, stacked [K, …], instead of one for all

    def wanted(self) -> bool:
        """Whether clients train on generated features at all; if not, nothing is trained and nothing sent."""
        raise NotImplementedError

    def loss_at(self, t: int, m: Model, batch: Batch, down: dict) -> Any:
        """A client's loss in round t; down["generator"] is there if `imagines(t)`."""
        raise NotImplementedError

    def imagines(self, t: int) -> bool:
        """Whether clients have a generator in round t."""
        return t >= 1 and self.wanted()

    def init(self, task: Task) -> dict[str, Tree]:
        """Untrained nets, what Adam remembers, and what clients told of their labels: nothing."""
        seed = randomness.number(task.seed, "generator")
        net = new_net(self.noise_width, task.classes, self.gen_hidden, task.features, self.net_heads, seed)
        return {
            "nets": to_all(net, task.clients) if self.personal else net,
            "memory": start_memory(net, task.clients if self.personal else None),
            "counts": torch.zeros(task.clients, task.classes, dtype=torch.long),
            "round": torch.zeros((), dtype=torch.long),  # t
        }

    def round(self, t: int, task: Task) -> tuple[Phase | str, ...]:
        """An ordinary round with a loss that knows the round."""
        noise = self.client_noise(task) if self.imagines(t - 1) else {}
        return DOWN, Phase(partial(self.loss_at, t - 1), noise=noise), UP

    def client_noise(self, task: Task) -> dict[str, Noise]:
        """What a client draws in each step."""
        rows = task.batch
        return {"noise": Noise((rows, self.noise_width), self.noise_law), "label": Noise((rows,), "uniform")}

    def upload(self, m: Model, data: Data, down: dict) -> dict[str, Tree]:
        """Rows of each class."""
        return {"counts": label_counts(data, m["head.weight"].shape[0])} if self.wanted() else {}

    def broadcast(self, server: dict, ids: Tensor, task: Task) -> dict[str, Tree]:
        """The model; and, once there is one, the generator with the law of labels."""
        down = {"shared": to_all(server["shared"], len(ids))}
        if self.imagines(int(server["round"])):
            nets = take(server["nets"], ids) if self.personal else to_all(server["nets"], len(ids))
            down |= {"generator": nets, "labels": to_all(self.labels(server), len(ids))}
        return down

    def labels(self, server: dict) -> Tensor:
        """The law of generated labels [C], not normalised."""
        counts = server["counts"].sum(0).to(server["memory"]["first"])
        uniform = torch.ones_like(counts)
        return {"histogram": counts, "present": (counts > 0).to(counts), "uniform": uniform}[self.label_law]

    def aggregate(self, server: dict, up: dict, task: Task) -> dict[str, Tree]:
        """The averaged model, the latest counts, and the round's end."""
        server = super().aggregate(server, up, task)
        if "counts" in up:
            server = server | {"counts": server["counts"].index_copy(0, up["ids"], up["counts"])}
        return server | {"round": server["round"] + 1}

    def train_net(self, server: dict, task: Task, objective: Callable[[Tensor, Tensor], Term]) -> dict[str, Tree]:
        """The server with its one net trained on objective(noise [S, B, Z], y [S, B]) of its features."""
        noise, y = self.draw(server, task, ())
        term, x = objective(noise, y), _inputs(noise, y, task.classes)

        def loss(net: Net, s: int) -> tuple[Tensor, Tensor]:
            h = _features(net, x[s], training=True)
            return h, term(h.detach(), s)[1]

        net, memory = self.descended(server["nets"], server["memory"], server, loss)
        return server | {"nets": net, "memory": memory}

    def draw(self, server: dict, task: Task, lead: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Noise [S, *lead, B, Z] and labels [S, *lead, B] of a round's generator steps."""
        stream = randomness.stream(task.seed, "generator", int(server["round"]))
        like, shape = server["memory"]["first"], (self.gen_steps, *lead, self.gen_batch)
        noise = LAWS[self.noise_law]((*shape, self.noise_width), generator=stream, dtype=like.dtype)
        u = torch.rand(shape, generator=stream, dtype=like.dtype).to(like.device)
        return noise.to(like.device), draw_labels(self.labels(server), u.flatten()).view(shape)

    def descended(self, net: Net, memory: dict, server: dict, loss: Loss) -> tuple[Net, dict]:
        """`descend` by the hyperparameters, in the round that is being closed."""
        t = int(server["round"]) - 1
        lr = self.gen_lr * self.gen_lr_decay**t
        return descend(net, memory, loss, self.gen_steps, lr, self.gen_weight_decay, self.gen_optimizer)

    def report(self, server: dict) -> dict[str, float]:
        """With `quality`, FedPA's table V: how far apart generated features lie, within and between classes."""
        if not self.quality or not self.imagines(int(server["round"])):
            return {}
        with torch.no_grad():
            intra, inter = self.measured(server)
        return {"generated_intra": intra.item(), "generated_inter": inter.item()}

    def measured(self, server: dict) -> tuple[Tensor, Tensor]:
        """Distances of 20 generated rows a class."""
        noise, y = self.probe(server)
        return distances(generate(server["nets"], noise, y), y)

    def probe(self, server: dict) -> tuple[Tensor, Tensor]:
        """The same noise in every round, and 20 labels of every class."""
        like, classes = server["memory"]["first"], server["counts"].shape[1]
        shape, stream = (20 * classes, self.noise_width), randomness.stream("quality")
        noise = LAWS[self.noise_law](shape, generator=stream, dtype=like.dtype)
        return noise.to(like.device), torch.arange(classes, device=like.device).repeat_interleave(20)


def chunks(nets: int, numbers: int) -> list[slice]:
    """Slices of nets, each needing `numbers` of logits, that the server trains at once."""
    step = max(1, _ROWS // numbers)
    return [slice(i, min(i + step, nets)) for i in range(0, nets, step)]


def entropy_cap(factor: float, classes: int) -> float:
    """A bound on a cross-entropy, in multiples of ln C; 0 is none."""
    return factor * math.log(classes) if factor else math.inf
