"""FedGenP: each client has a variational generator of features that the others' heads get right and its own gets wrong.

    down     w; after the first round also the label distribution and, if the client took part before, its generator G_k
    client   local steps on
             L = CE + a(t) · CE(head(h), ỹ) + b(t) · KL(head(h_y) || head(z)),   z = body(x)
             h = G_k(ε, ξ, ỹ),   ỹ uniform;   G_k is fixed
             a(t) = a · d_a^t,   b(t) = b · d_b^t
    up       w_k, and its rows of each class
    server   w = Σ_k n_k w_k / Σ_k n_k
             then, for each of the m clients k of the round, steps of G_k on
             1/(m-1) Σ_{i≠k} CE(head_i(h), y) - β · min(CE(head_k(h), y), cap) + λ_kl · KL(N(μ, σ²) || N(0, 1))
             h = μ + σ ξ,   μ, ln σ² = G_k(ε, y)
    stop     from round 20 on, if validation accuracy rose by less than 0.001 in the last `patience` rounds:
             generators are not trained any further

ε and ξ are noise, y and ỹ labels.  h are generated features, and h_y are those for a real row's label.

Taghiyarrenani et al., "FedGenP", equations 1 to 3, algorithm 1.  The loss of head k has a minus sign in G_k's loss.
This is the same as the paper's reversal of the gradient between generator and head k.

Differs from the paper:

- The adversarial term, the one with the minus sign, is at most cap · ln C per row, and the KL to the prior keeps σ in
  bounds.  Without these two, the loss has no minimum.
- The other heads' losses are averaged.  The paper sums them (Eq. 3), so the more of them there are, the less head k
  counts.
- Models are weighted by rows.  Algorithm 1 takes the plain mean.
- The generator's optimiser is Adam at 3e-4, as in the authors' code.  Table 2 has SGD at 0.01.
- Training of the generators stops by the rule above.  The paper names no rule.  For this, each client sends its
  validation accuracy, one number a round, which does not count as sent.

"as_text" has the sum, the plain mean and SGD, without bound and prior.

"as_published" has weighing="labels" and β = -1.  In the code, the gradient reversal stands where it reverses nothing,
so generators also minimise the loss of head k.  Two things of the code are not reproduced: it draws with σ = exp(0.05
ln σ²), and one layer gives both μ and ln σ².

Generators end in a linear layer, as in the code, even where real features come out of a ReLU.  `rectify` adds a ReLU.
It cost 1.6 ± 0.7 points of validation accuracy where it was tried.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap

from fedtune.core import randomness
from fedtune.core.trees import join, put, take
from fedtune.experiment.algorithm import Batch, Model, Noise, Ragged, Task, hyper
from fedtune.nn.divergences import kl
from fedtune.nn.generators import (
    Net,
    chunks,
    draw_labels,
    entropy_cap,
    generate,
    head_losses,
    intra_inter_distance,
    label_share,
)
from fedtune.nn.layers import cross_entropy
from fedtune.trainables._generative import Generative
from fedtune.trainables._released import CLIENTS, GENERATOR

FIRST_STOP = 20  # no generator stops before this round
MOST_PATIENCE = 30  # accuracies that are stored: the patience may change during a run
RISE = 1e-3  # a smaller rise of validation accuracy within `patience` rounds is convergence


@dataclass(frozen=True)
class FedGenP(Generative):
    """FedGenP as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "classes"

    a: float = hyper(
        1.0,
        0.1,
        30.0,
        log=True,
        extra_values=(0.0,),
        symbol="a",
        first_round=2,
        help="weight of the loss on generated rows",
    )
    a_decay: float = hyper(1.0, 0.9, 1.0, first_round=2, help="factor on a after every round")
    b: float = hyper(
        0.0, 0.1, 30.0, log=True, extra_values=(0.0,), symbol="b", first_round=2, help="weight of the latent KL term"
    )
    b_decay: float = hyper(1.0, 0.9, 1.0, first_round=2, help="factor on b after every round")
    beta: float = hyper(
        1.0,
        1e-4,
        10.0,
        log=True,
        extra_values=(0.0, -1.0),
        symbol="β",
        first_round=2,
        help="weight of the adversarial loss against the client's own head; -1: the released code's sign",
    )
    others: str = hyper(
        "mean", choices=("mean", "sum"), first_round=2, help="losses of the other clients' heads: mean, or sum"
    )
    cap: float = hyper(
        2.0,
        1.0,
        4.0,
        extra_values=(0.0,),
        first_round=2,
        help="cap on the adversarial loss of a row, in multiples of ln C; 0: none",
    )
    lam_kl: float = hyper(
        1e-3,
        1e-5,
        0.1,
        log=True,
        extra_values=(0.0,),
        symbol="λ_kl",
        first_round=2,
        help="weight of the KL to the prior",
    )
    generated: int = hyper(
        0, 8, 128, log=True, extra_values=(0,), symbol="m_k", first_round=2, help="generated rows per step; 0: B"
    )
    weighing: str = hyper(
        "equal",
        choices=("equal", "labels"),
        first_round=2,
        help="weights of the other clients' heads: equal, or by their share of the label",
    )
    rectify: bool = hyper(
        False, first_round=2, help="apply ReLU to generated features, for models whose features end in one"
    )
    patience: int = hyper(
        10,
        5,
        MOST_PATIENCE,
        extra_values=(0,),
        first_round=FIRST_STOP + 2,
        help="generators stop after this many rounds without a rise; 0: never",
    )
    label_law: str = hyper(
        "uniform",
        choices=("histogram", "present", "uniform"),
        first_round=2,
        help="generated labels: as in the clients' rows; uniform over classes that any client has; or over all",
    )

    net_heads = 2
    personal = True
    contrasts = {
        **Generative.contrasts,
        "patience": (5, 0, {"lr": 1e-5, "momentum": 0.0, "a": 0.1}),
        "b_decay": (0.9, 1.0, {"b": 1.0}),
    }
    presets = {
        "as_text": {
            "others": "sum",
            "averaging": "clients",
            "gen_optimizer": "sgd",
            "gen_lr": 0.01,
            "cap": 0.0,
            "lam_kl": 0.0,
        },
        "as_published": CLIENTS
        | GENERATOR
        | {
            "a": 10.0,
            "a_decay": 0.98,
            "b": 10.0,
            "b_decay": 0.98,
            "beta": -1.0,
            "cap": 0.0,
            "lam_kl": 0.0,
            "weighing": "labels",
            "patience": 0,
        },
    }

    def needs_generator(self) -> bool:
        """Whether generators are needed: unless both of their weights are 0."""
        return self.a > 0 or self.b > 0

    def client_noise(self, task: Task) -> dict[str, Noise]:
        """m_k draws of ε, ξ and a label; and one of ε and ξ for each real row."""
        distribution, m_k, b = self.noise_law, self.generated or task.batch, task.batch
        noise = {
            "noise": Noise((m_k, self.noise_width), distribution),
            "xi": Noise((m_k, task.features)),
            "label": Noise((m_k,), "uniform"),
        }
        latent = {"latent": Noise((b, self.noise_width), distribution), "latent_xi": Noise((b, task.features))}
        return noise | latent if self.b else noise

    def init(self, task: Task) -> dict:
        """Generators for all clients, and the latest validation accuracies, for the stop rule."""
        history = torch.full((1 + MOST_PATIENCE,), -1.0, dtype=torch.float64)
        never = torch.zeros(task.clients, dtype=torch.bool)
        return super().init(task) | {"best": history, "stopped": torch.zeros((), dtype=torch.bool), "trained": never}

    def broadcast(self, server: dict, ids: Tensor, task: Task) -> dict:
        """Send generators only to clients that have a trained one."""
        down, trained = super().broadcast(server, ids, task), server["trained"][ids]
        if "generator" in down:
            down["generator"] = {n: Ragged(t, trained) for n, t in down["generator"].items()}
        return down

    def loss_at(self, t: int, m: Model, batch: Batch, down: dict) -> Tensor:
        """CE on real rows, CE on the client's own generator's, KL from those to real rows of the same labels."""
        logits = m.head(m.body(batch.x))
        loss = cross_entropy(logits, batch.y)
        if not self.imagines(t):
            return loss
        net, eps = {n: t.values for n, t in down["generator"].items()}, batch.eps
        trained = down["generator"]["out.bias"].present.to(loss)  # 1 or 0
        if self.a:
            y = draw_labels(down["labels"], eps["label"])
            h, _, _ = self.imagine(net, eps["noise"], eps["xi"], y)
            loss = loss + trained * self.a * self.a_decay**t * cross_entropy(m.head(h), y)
        if self.b:
            h, _, _ = self.imagine(net, eps["latent"], eps["latent_xi"], batch.y)
            loss = loss + trained * self.b * self.b_decay**t * kl(m.head(h).detach(), logits)
        return loss

    def imagine(self, net: Net, noise: Tensor, xi: Tensor, y: Tensor, training: bool = False) -> tuple[Tensor, ...]:
        """h = μ + σ ξ [B, D], with μ and ln σ², the latter within [-8, 4]."""
        mu, logvar = generate(net, noise, y, training).chunk(2, 1)
        logvar = logvar.clamp(-8, 4)
        h = mu + (logvar / 2).exp() * xi
        return h.relu() if self.rectify else h, mu, logvar

    def aggregate(self, server: dict, up: dict, task: Task) -> dict:
        """Average, then train the generators of the clients that took part, until they stop."""
        server = super().aggregate(server, up, task)
        if not self.needs_generator() or server["stopped"]:
            return server
        ids, m = up["ids"], len(up["ids"])
        noise, y = self.draw(server, task, (m,))  # [S, m, B, Z], [S, m, B]
        stream = randomness.stream(task.seed, "variation", task.t)
        xi = torch.randn(*y.shape, task.features, generator=stream, dtype=noise.dtype).to(noise.device)
        share, nets, memory = label_share(up["counts"]), take(server["nets"], ids), take(server["memory"], ids)
        rank, trained_nets = torch.arange(m, device=ids.device), []
        for some in chunks(m, m * self.gen_batch * task.classes):

            def loss(net: Net, s: int, some: slice = some) -> tuple[Tensor, None]:
                def one(net: Net, k: Tensor, noise: Tensor, xi: Tensor, y: Tensor) -> Tensor:
                    return self.conflict(net, k, noise, xi, y, up["shared"], share)

                return vmap(one)(net, rank[some], noise[s, some], xi[s, some], y[s, some]).sum(), None

            trained_nets.append(self.descended(take(nets, some), take(memory, some), task, loss))
        nets, memory = join([d[0] for d in trained_nets]), join([d[1] for d in trained_nets])
        server = server | {"nets": put(server["nets"], ids, nets), "memory": put(server["memory"], ids, memory)}
        return server | {"trained": server["trained"].index_fill(0, ids, True)}

    def conflict(self, net: Net, k: Tensor, noise: Tensor, xi: Tensor, y: Tensor, heads: dict, share: Tensor) -> Tensor:
        """J of one generator, that of the k-th head (Eq. 1 and 3): right for the others, wrong for its own."""
        h, mu, logvar = self.imagine(net, noise, xi, y, training=True)
        losses = head_losses(heads, h, y)  # [m, B]
        m = len(losses)
        other = torch.arange(m, device=y.device) != k  # [m]
        each = max(m - 1, 1) if self.others == "mean" else 1
        weight = torch.ones_like(losses) / each if self.weighing == "equal" else share.to(losses)[:, y]
        own = (losses * ~other[:, None]).sum(0).clamp(max=entropy_cap(self.cap, share.shape[1]))  # [B]
        if self.weighing == "labels":
            own = own * m * (weight * ~other[:, None]).sum(0)
        prior = (mu**2 + logvar.exp() - logvar - 1).sum(1) / 2  # [B]
        return ((weight * losses * other[:, None]).sum(0) - self.beta * own + self.lam_kl * prior).mean()

    def observe(self, server: dict, val_acc: float, task: Task) -> dict:
        """Keep the best accuracy of the last rounds; generators stop for good once it hardly rises."""
        if not self.patience:
            return server
        best = torch.cat([server["best"][1:], server["best"][-1:].clamp(min=val_acc)])
        earlier, latest = best[-1 - self.patience], best[-1]
        stale = bool(earlier >= 0) and float(latest - earlier) < RISE and task.t >= FIRST_STOP
        return server | {"best": best, "stopped": server["stopped"] | stale}

    def report(self, server: dict) -> dict[str, float]:
        """Whether generators have stopped, by the accuracies up to the round before."""
        return super().report(server) | {"generators_stopped": float(server["stopped"])}

    def measured(self, server: dict) -> tuple[Tensor, Tensor]:
        """Means over the clients' generators."""
        noise, y = self.probe(server)
        shape, stream = (len(y), server["nets"]["out.bias"].shape[-1] // 2), randomness.stream("quality", "xi")
        xi = torch.randn(shape, generator=stream, dtype=noise.dtype).to(noise.device)

        def measure(net: Net) -> Tensor:
            return torch.stack(intra_inter_distance(self.imagine(net, noise, xi, y)[0], y))

        intra, inter = vmap(measure)(server["nets"]).mean(0)
        return intra, inter
