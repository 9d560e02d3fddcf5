"""GFPL: clients share Gaussian mixtures of their features, and retrain their heads on samples from all of them.

    once     a common start, and an equiangular frame Z from a common seed; nothing is sent
    client   local epochs on
             L = λ · ½ (h · z_y - 1)² + CE(g(f), y),   f = body(x),   h = proj(f) / |proj(f)|
    in round t >= t1 with t mod S_T = 0, an event:
    up       a mixture of n diagonal Gaussians per own class, fitted to f: π, μ, σ, and N_k,c
    server   per class: components closer than S_C (Bhattacharyya) become one (moment matching): P_G
    down     P_G
    client   r pseudo-features per class from P_G; with the body frozen, epochs of L over them move g and proj

g is the classifier, proj a projection, and z_y the frame's direction of class y.  N_k,c is client k's number of rows of
c.

Lu et al., arXiv:2602.21873, algorithms 1 and 2, equations 4 to 14.

Where the text is silent or contradicts itself:

- Covariances are diagonal.  When components are fused, each weighs as many rows as it stands for, N_k,c · π.  The
  heaviest component that is left starts the next cluster.
- Retraining moves g and proj, as in Eq. 14.  In algorithm 2 it moves proj only (retrain="projection").
- g predicts.  The predictions of the frame, and of the sum of both heads, are logged.
- A class of N rows gets at most N / 5 components.
- P_G comes from the clients that took part in the event.  Others retrain on it when they next take part
  (catch_up=False: never).

Differs from the paper:

- Clusters are complete-linkage: any two components of a cluster are within S_C of each other.  In algorithm 1, line 5,
  they are within S_C of the first one (linkage="ball").
- In a round with an event, clients train, fit and upload; the server fuses; clients download P_G and retrain on it.  In
  algorithm 2, every local step is followed by a step on B draws from the P_G of the last event (order="interleaved").
  order="stale" retrains on that P_G, too, but after training.
- Components of different architectures are fused separately, because their features differ.

S_C is summed over D dimensions.  S_C = 300 means 6 per dimension at D = 50, and 0.6 at D = 512.

Ablations: dcs=False has one classifier, and CE only (without the paper's dual classifier, DCS).  pfg=False has no
events (without pseudo-feature generation, PFG).  retrain_on="own" is the control for PFG: it retrains for as many
steps, on the client's own features.

The clients' bodies are never aligned.  So a head may classify draws from P_G correctly, and yet recognise hardly any
row of a foreign class (test_acc_foreign).  It does better only if bodies start from one extractor and change little
(gfpl-fmnist-common[-frozen]).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtune.core import randomness
from fedtune.core.trees import to_all
from fedtune.experiment.algorithm import DOWN, UP, Algorithm, Batch, Data, Model, Noise, Phase, Ragged, Task, hyper
from fedtune.experiment.algorithm import Step as SecondStep
from fedtune.experiment.scenario import Scenario
from fedtune.nn import catalogue
from fedtune.nn.fusion import LINKAGES, fuse_classes
from fedtune.nn.generators import draw_labels
from fedtune.nn.heads import Frame
from fedtune.nn.layers import Linear, cross_entropy
from fedtune.nn.mixtures import Mixtures, fit, pack, sample, unpack
from fedtune.nn.prototypes import etf
from fedtune.trainables._heads import one_component

EVENT = "first_retrain"  # the method that gives the first round in which most hyperparameters matter


@dataclass(frozen=True)
class GFPL(Algorithm):
    """GFPL as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "classes"

    lam: float = hyper(
        2.0, 0.05, 100.0, log=True, extra_values=(0.0,), symbol="λ", help="weight of the dot-regression loss"
    )
    components: int = hyper(
        4, 1, 16, symbol="n", first_round=EVENT, help="Gaussians per class and client, at most rows / 5"
    )
    threshold: float = hyper(
        1.0,
        0.1,
        300.0,
        log=True,
        symbol="S_C",
        first_round=EVENT,
        help="Gaussians closer than this Bhattacharyya distance (summed over D dimensions) are fused",
    )
    pseudo: int = hyper(16, 4, 128, log=True, symbol="r", first_round=EVENT, help="pseudo-features per class")
    every: int = hyper(10, 1, 20, symbol="S_T", first_round=EVENT, help="rounds between events")
    start: int = hyper(10, 1, 40, symbol="t1", first_round=EVENT, help="no event before this round, if `first` is 0")
    first: int = hyper(
        0,
        1,
        40,
        extra_values=(0,),
        symbol="t*",
        first_round=EVENT,
        help="round of the first event; 0: the first multiple of `every` from `start` on",
    )
    retrain_epochs: int = hyper(
        1, 1, 50, log=True, first_round=EVENT, help="epochs of retraining, each on fresh pseudo-features"
    )
    retrain_lr: float | None = hyper(
        None, 1e-3, 0.1, log=True, first_round=EVENT, help="learning rate of retraining; none: the clients' lr"
    )
    variance_floor: float = hyper(
        1e-3,
        1e-6,
        0.1,
        log=True,
        first_round=EVENT,
        help="smallest variance, as a multiple of the class's mean variance",
    )
    linkage: str = hyper(
        "complete",
        choices=LINKAGES,
        first_round=EVENT,
        help="Gaussians of a cluster: all close to each other, to its first, or each to some other",
    )
    weighing: str = hyper(
        "rows",
        choices=("rows", "pi"),
        first_round=EVENT,
        help="a component's weight in fusion: the rows it stands for, or π",
    )
    order: str = hyper(
        "fresh",
        choices=("fresh", "stale", "interleaved"),
        first_round=EVENT,
        help="retrain on this event's P_G, on the last event's, or on that after every local step",
    )
    retrain_on: str = hyper(
        "pseudo",
        choices=("pseudo", "own", "none"),
        first_round=EVENT,
        help="what heads are retrained on: draws from P_G, own features (the control of PFG), or nothing",
    )
    catch_up: bool = hyper(True, first_round=EVENT, late=True, help="send P_G later to clients that missed an event")
    apart: bool = hyper(True, first_round=EVENT, help="fuse mixtures of different architectures separately")
    retrain: str = hyper(
        "both", choices=("both", "projection"), first_round=EVENT, help="what retraining trains: g and proj, or proj"
    )
    clip: bool = hyper(False, first_round=EVENT, help="cut pseudo-features at 0, like features after a ReLU")
    projection: int = hyper(
        0, 2, 512, extra_values=(0,), symbol="d_p", help="width of the projection; 0: as the features"
    )
    predictor: str = hyper("classifier", choices=("classifier", "etf", "sum"), help="head that predicts")
    dcs: bool = hyper(True, help="the dual classifier (False: the ablation without DCS)")
    pfg: bool = hyper(True, first_round=EVENT, help="pseudo-feature generation (False: the ablation without PFG)")

    sends = ("mixtures",)
    schedule = ("start", "every", "order", "first")
    structural = ("projection", "dcs")
    checked_with = dict(every=2, start=2, pseudo=4, components=2, retrain_epochs=2, threshold=20.0)
    presets = {"as_text": {"linkage": "ball", "order": "interleaved", "catch_up": False, "apart": False}}
    contrasts = {
        "first": (1, 3, {}),
        "linkage": ("complete", "single", {"threshold": 40.0}),
        "threshold": (0.1, 300.0, {}),
        "variance_floor": (1e-6, 0.1, {}),
        "start": (2, 3, {}),
        "every": (2, 3, {}),
        "weighing": ("rows", "pi", {"threshold": 300.0}),
        "components": (1, 3, {}),
    }

    def first_event(self) -> int:
        """The first round with an event: t*, or the smallest multiple of S_T that is >= t1."""
        return self.first or -(-self.start // self.every) * self.every

    def resolved_defaults(self) -> dict[str, int]:
        """t* as t1 and S_T have it."""
        return {"first": self.first_event()}

    def first_retrain(self) -> int:
        """The first round whose evaluation an event can change: of others than "fresh" the first draws from nothing."""
        waits = self.order != "fresh" and self.retrain_on == "pseudo"
        return self.first_event() + (self.every if waits else 0)

    def idle(self, scenario: Scenario) -> dict[str, str]:
        """Hyperparameters without an effect, given the values of others or few rows per class."""
        idle = one_component(scenario)
        if not self.dcs:
            idle |= dict.fromkeys(("lam", "projection", "retrain", "predictor"), "dcs is off")
        if not self.pfg or self.retrain_on == "none":
            reason = "pfg is off" if not self.pfg else "retrain_on is none"
            names = ("retrain_epochs", "retrain_lr", "retrain", "pseudo", "clip", "order", "catch_up", "apart")
            idle |= dict.fromkeys(names, reason)
        if not self.pfg:
            names = ("components", "threshold", "every", "start", "first", "variance_floor", "linkage", "weighing")
            idle |= dict.fromkeys((*names, "retrain_on"), "pfg is off")
        if self.order == "interleaved":
            idle |= dict.fromkeys(("pseudo", "retrain_epochs", "catch_up"), "order is interleaved: a step after each")
        if self.first:
            idle["start"] = "first says when the first event is"
        if scenario.participation == 1:
            idle["catch_up"] = "all clients take part in every round"
        if len(catalogue.members(scenario.model)) == 1:
            idle["apart"] = "all clients run one architecture"
        return idle

    def build(self, net: nn.Module, task: Task) -> nn.Module:
        """Add the projection and the frame (Eq. 9 to 11)."""
        if self.dcs:
            width = self.projection or task.features
            net.add_module("proj", Linear(task.features, width))
            frame = etf(task.classes, width, randomness.stream(task.seed, "etf"))
            net.add_module("etf", Frame(frame))
        return net

    def init(self, task: Task) -> dict:
        """The server has no mixtures before the first event."""
        empty = torch.zeros(task.classes, 1, 1 + 2 * task.features)
        no_mixtures = Ragged(empty, torch.zeros(task.classes, 1, dtype=torch.bool))
        entry = (
            {"due": torch.zeros(task.clients, dtype=torch.bool)} if self.is_late(task) else {}
        )  # whether a client missed the event
        # counts: received components; clusters under each linkage
        return {"mixtures": no_mixtures, "counted": torch.zeros(1 + len(LINKAGES))} | entry

    def round(self, task: Task) -> tuple[Phase | str, ...]:
        """Training, and in an event the exchange and the retraining (algorithm 2)."""
        train, since = self.phases(task), task.t - self.first_event()
        if not self.pfg or since < 0:
            return train
        if since % self.every:
            return (*train, DOWN, *self.retraining(task), UP) if self.is_late(task) else train
        if self.order == "interleaved":
            return (DOWN, *(self.interleaved(phase, task) for phase in train), UP)
        retrain = self.retraining(task)
        return (*train, UP, DOWN, *retrain) if self.order == "fresh" else (*train, DOWN, *retrain, UP)

    def is_late(self, task: Task) -> bool:
        """Whether a client may have missed an event."""
        missed = self.catch_up and 0 < task.taking_part < task.clients
        return missed and self.order == "fresh" and self.retrain_on == "pseudo"

    def retraining(self, task: Task) -> tuple[Phase, ...]:
        """The phase on draws from P_G, or on the client's own rows for as many steps, the body frozen."""
        draws, own = (task.classes, self.pseudo), Phase(self.loss, train=self.moves(), lr=self.retrain_lr)
        noise = {"component": Noise(draws, "uniform"), "value": Noise((*draws, task.features))}
        pseudo = own._replace(loss=self.retrain_loss, epochs=self.retrain_epochs, pool=self.pseudo_features)
        steps = self.retrain_epochs * -(-task.classes * self.pseudo // task.batch)
        kinds = {"pseudo": (pseudo._replace(pool_noise=noise),), "own": (own._replace(steps=steps),), "none": ()}
        return kinds[self.retrain_on]

    def interleaved(self, train: Phase, task: Task) -> Phase:
        """Local training in which a step of the heads follows every step (algorithm 2, lines 11 to 18)."""
        if self.retrain_on == "none":
            return train
        b, second = task.batch, self.second_loss if self.retrain_on == "pseudo" else self.second_loss_on_own
        noise = {
            "label": Noise((b,), "uniform"),
            "component": Noise((b, 1), "uniform"),
            "value": Noise((b, 1, task.features)),
        }
        return train._replace(noise=train.noise | noise, after=SecondStep(second, self.moves(), "sgd", self.retrain_lr))

    def moves(self) -> tuple[str, ...]:
        """The parts that retraining moves."""
        return ("head",) if not self.dcs else ("proj",) if self.retrain == "projection" else ("head", "proj")

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """Eq. 13, the loss of both classifiers on images."""
        return self.dual_loss(m, m.body(batch.x), batch.y)

    def retrain_loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """Eq. 14, the loss of both classifiers on pseudo-features."""
        return self.dual_loss(m, batch.x, batch.y)

    def second_loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """Eq. 14 on B draws from P_G, of classes that somebody holds; 0 while there is none."""
        table, eps = down["mixtures"], batch.eps
        present = table.present.any(1)  # [C]
        y = draw_labels(present.to(table.values), eps["label"])
        f = self.drawn(Mixtures(*(t[y] for t in unpack(*table))), eps)[:, 0]  # [B, D]
        return self.dual_loss(m, f, y) * present.any()

    def second_loss_on_own(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """The retraining loss (Eq. 14) on the batch's own features, instead of pseudo-features."""
        return self.dual_loss(m, m.body(batch.x).detach(), batch.y)

    def dual_loss(self, m: Model, f: Tensor, y: Tensor) -> Tensor:
        """λ · dot regression (Eq. 12) + CE on features f [B, D]."""
        loss = cross_entropy(m.head(f), y)
        if self.dcs:
            aligned = self.frame_scores(m, f).gather(1, y[:, None])  # [B, 1] = h_y · z_y
            loss = loss + self.lam * 0.5 * ((aligned - 1) ** 2).mean()
        return loss

    def frame_scores(self, m: Model, f: Tensor) -> Tensor:
        """h · Z, h the normalised projection (Eq. 11).  [B, D] -> [B, C]"""
        return m.part("etf")(F.normalize(m.part("proj")(f), eps=1e-12))

    def upload_noise(self, task: Task) -> dict[str, Noise]:
        """Draws that seed the mixtures."""
        return {"seeds": Noise((task.classes, self.components), "uniform")}

    def upload(self, m: Model, data: Data, down: dict) -> dict:
        """A mixture per class that the client holds (Eq. 4 to 6), and its rows; none when it only catches up on P_G."""
        if down and self.order == "fresh":
            return {}
        seeds = data.eps["seeds"]  # [C, n]
        member = (F.one_hot(data.y, len(seeds)) * data.mask[:, None]).T  # [C, N]
        local = fit(m.body(data.x), member.bool(), seeds, self.components, self.variance_floor)
        counts = member.sum(1)
        return {"mixtures": Ragged(pack(local), local.weights > 0), "counts": Ragged(counts, counts > 0)}

    def broadcast(self, server: dict, ids: Tensor, task: Task) -> dict:
        """P_G of the client's own architecture; after the event, only for clients that missed it."""
        values, present = to_all(server["mixtures"], len(ids))  # [m, C, L, …], [m, C, L]
        if "home" in server:
            present = present & (server["home"] == (ids % len(task.models))[:, None, None])
        if self.is_late(task) and (task.t - self.first_event()) % self.every:
            present = present & server["due"][ids][:, None, None]
        return {"mixtures": Ragged(values, present)}

    def deployed(self, server: dict, ids: Tensor, task: Task) -> dict:
        """Nothing: prediction does not use P_G."""
        return {}

    def aggregate(self, server: dict, up: dict, task: Task) -> dict:
        """Algorithm 1, class by class, over all clients' components in the order (client, component)."""
        if "mixtures" not in up:
            return server | {"due": server["due"].index_fill(0, up["ids"], False)}
        local = unpack(up["mixtures"].values)  # [m, C, n], [m, C, n, D], [m, C, n, D]
        rows = up["counts"].values[..., None] if self.weighing == "rows" else 1
        weights = torch.where(up["mixtures"].present, local.weights * rows, 0)
        kinds = max(1, len(task.models)) if self.apart else 1
        fused, home, counted = fuse_classes(
            weights, local, up["ids"] % kinds if kinds > 1 else None, kinds, self.threshold, self.linkage
        )
        entries = {"mixtures": Ragged(pack(fused), fused.weights > 0), "counted": counted.to(server["counted"])}
        if kinds > 1:
            entries["home"] = home
        if "due" in server:
            entries["due"] = torch.ones_like(server["due"]).index_fill(0, up["ids"], False)
        return server | entries

    def pseudo_features(self, down: dict, eps: dict) -> Data:
        """r draws per class from P_G, as many for each class; classes that nobody holds are masked."""
        table = down["mixtures"]
        f = self.drawn(unpack(*table), eps)  # [C, r, D]
        classes, r = f.shape[:2]
        y = torch.arange(classes, device=f.device).repeat_interleave(r)
        present = table.present.any(1)[:, None].expand(classes, r)
        return Data(f.flatten(0, 1), y, present.flatten(), {})

    def drawn(self, mixture: Mixtures, eps: dict) -> Tensor:
        """Draws from each mixture."""
        f = sample(mixture, eps["component"], eps["value"])
        return f.clamp(min=0) if self.clip else f

    def predict(self, m: Model, x: Tensor, down: dict) -> dict[str, Tensor]:
        """The classifier g, the frame, and the sum of their softmaxes (the frame's at temperature 1/16)."""
        f = m.body(x)
        heads = {"classifier": m.head(f)}
        if self.dcs:
            heads["etf"] = self.frame_scores(m, f)
            both = heads["classifier"].softmax(1) + (16 * heads["etf"]).softmax(1)
            heads["sum"] = both.clamp(min=1e-30).log()
        first = self.predictor if self.dcs else "classifier"
        return {first: heads.pop(first)} | heads

    def report(self, server: dict) -> dict[str, float]:
        """The number of components received at the last event, and of clusters that each linkage makes of them."""
        came, *clusters = server["counted"].tolist()
        if not came:
            return {}
        sizes = dict(zip(LINKAGES, clusters, strict=True))
        out = sizes[self.linkage]
        entries = {"components_in": came, "components_out": out, "fusion_ratio": out / came}
        return entries | {f"clusters_{how}": n for how, n in sizes.items()}
