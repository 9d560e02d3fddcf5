"""FedGen: the server learns which features the clients' heads agree on, and clients train on them as well.

    down     w; after the first round also the generator G and the label distribution p̃
    client   local steps on
             L = CE + α(t) · CE(head(G(ε, ỹ)), ỹ) + β(t) · KL(head(G(ε, y)) || head(z)),   z = body(x),   ỹ ~ p̃
             α(t) = α · d_α^t,   β(t) = β · d_β^t
             G is fixed, and the target of KL is a constant
    up       w_k, and its rows of each class
    server   w = Σ_k n_k w_k / Σ_k n_k
             then steps of G, over all heads at once, on
             Σ_k mean_b p_k,y CE(head_k(G(ε, y)), y) + η · diversity
             p_k,y = n_k,y / Σ_k n_k,y,   client k's share of the rows of class y

G(ε, y) are features that the server's generator makes from noise ε and a label y.  L is averaged over the B rows.

Zhu et al., ICML 2021, arXiv:2105.10056.  The paper was not at hand: this follows its code.

Differs from the code: a client counts all its rows of a class.  The code counts the rows drawn in the round, plus one.

Presets and options:

- "as_published" is FedGen as in FedPA's tables.  It has no KL term, and draws noise and labels uniformly.  A head's
  weight is averaged over the batch, because that code multiplies a [B] by a [B, 1].
- averages="head" averages heads only.  Bodies stay with the clients and may differ.
- "htfllib" has the values of HtFLlib's run scripts, on which FedSA's tables build: weight 1 without decay, neither KL
  nor diversity.  (HtFLlib's own defaults are gen_lr=0.005 and noise_width=512.)  HtFLlib also averages the clients'
  logits before the loss and restarts Adam in every round.  No preset does this.
"""

from dataclasses import dataclass

from torch import Tensor

from fedtune.experiment.algorithm import Batch, Model, Noise, Task, hyper
from fedtune.nn.divergences import kl
from fedtune.nn.generator_losses import Term, diversity, fidelity, total
from fedtune.nn.generators import draw_labels, generate, label_share
from fedtune.nn.layers import cross_entropy
from fedtune.trainables._generative import Generative
from fedtune.trainables._released import CLIENTS, GENERATOR


@dataclass(frozen=True)
class FedGen(Generative):
    """FedGen as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "classes"

    gen_weight: float = hyper(
        10.0,
        0.1,
        100.0,
        log=True,
        extra_values=(0.0,),
        symbol="α",
        first_round=2,
        help="weight of the loss on generated rows",
    )
    gen_decay: float = hyper(0.98, 0.9, 1.0, first_round=2, help="factor on α after every round")
    kl_weight: float = hyper(
        10.0, 0.1, 100.0, log=True, extra_values=(0.0,), symbol="β", first_round=2, help="weight of the latent KL term"
    )
    kl_decay: float = hyper(0.98, 0.9, 1.0, first_round=2, help="factor on β after every round")
    eta: float = hyper(
        1.0,
        0.01,
        10.0,
        log=True,
        extra_values=(0.0,),
        symbol="η",
        first_round=2,
        help="weight of the generator's diversity loss",
    )
    weighing: str = hyper(
        "labels",
        choices=("labels", "mean"),
        first_round=2,
        help="weight of a client's head: p_k,y of the row's label y, or its mean over the batch",
    )

    averages: str = hyper("model", choices=("model", "head"), help="what the server averages: the model, or its head")

    structural = ("gen_hidden", "noise_width", "averages")
    for_mixed_models = {"averages": "head"}
    presets = {
        "as_published": CLIENTS | GENERATOR | {"kl_weight": 0.0, "weighing": "mean"},
        "htfllib": {
            "averages": "head",
            "gen_weight": 1.0,
            "gen_decay": 1.0,
            "kl_weight": 0.0,
            "eta": 0.0,
            "gen_lr": 0.1,
            "gen_steps": 100,
            "gen_batch": 10,
            "gen_hidden": 512,
            "noise_law": "uniform",
            "momentum": 0.0,
        },
    }

    @property
    def shared(self) -> tuple[str, ...]:  # type: ignore[override]
        """The parts that the server averages: the whole model, or its head."""
        return ("body", "head") if self.averages == "model" else ("head",)

    def needs_generator(self) -> bool:
        """Whether a generator is needed: unless both of its weights are 0."""
        return self.gen_weight > 0 or self.kl_weight > 0

    def client_noise(self, task: Task) -> dict[str, Noise]:
        """One draw for new labels, and one for the batch's own."""
        noise = super().client_noise(task)
        return noise | {"latent": noise["noise"]} if self.kl_weight else noise

    def loss_at(self, t: int, m: Model, batch: Batch, down: dict) -> Tensor:
        """CE on real rows, CE on generated ones, KL from generated to real rows of the same labels."""
        logits = m.head(m.body(batch.x))
        loss = cross_entropy(logits, batch.y)
        if not self.imagines(t):
            return loss
        if self.gen_weight:
            y = draw_labels(down["labels"], batch.eps["label"])
            h = generate(down["generator"], batch.eps["noise"], y)
            loss = loss + self.gen_weight * self.gen_decay**t * cross_entropy(m.head(h), y)
        if self.kl_weight:
            target = m.head(generate(down["generator"], batch.eps["latent"], batch.y))
            loss = loss + self.kl_weight * self.kl_decay**t * kl(target.detach(), logits)
        return loss

    def aggregate(self, server: dict, up: dict, task: Task) -> dict:
        """Average, then train the generator against all received heads."""
        server = super().aggregate(server, up, task)
        if not self.needs_generator():
            return server
        share = label_share(up["counts"])

        def objective(noise: Tensor, y: Tensor) -> Term:
            agree = fidelity(1.0, up["shared"], share, y, self.weighing)
            return total(agree, diversity(self.eta, noise, y, "all", task.features))

        return self.train_net(server, task, objective)
