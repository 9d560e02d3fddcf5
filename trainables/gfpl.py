"""GFPL: clients exchange Gaussian mixtures of their features, and retrain their heads on draws from everybody's.

    once     a common start, and an equiangular frame Z from a common seed; nothing is sent
    client   local epochs on   L = λ · ½ (h_y · z_y - 1)² + CE(g(f), y),   f = body(x),  h = proj(f) / |proj(f)|
    in round t >= t1 with t mod S_T = 0, an event:
    up       a mixture of n diagonal Gaussians per own class, fitted to f: π, μ, σ, and N_k,c
    server   per class: components closer than S_C (Bhattacharyya) become one (moment matching): P_G
    down     P_G
    client   r pseudo-features per class from P_G; with the body frozen, epochs of L over them move g and proj

Lu et al., arXiv:2602.21873, algorithms 1 and 2, equations 4 to 14.  Where the text is silent or contradicts itself:
covariances are diagonal; what is fused is a component; its weight is the rows that it stands for, N_k,c · π;
clusters are complete-linkage (everything in a cluster is within S_C), seeds by falling weight; an event is train,
fit, upload, fuse, download, retrain, all in one round (order="stale": retrain on the event before, then upload);
retraining moves g and proj (retrain="projection": proj only); prediction is by g, and the frame's and the summed
prediction are logged; a class of N rows gets at most N / 5 components; P_G is of the clients that took part in the
event.  Without DCS: one classifier, CE only.  Without PFG: no events.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from fedtune.core import randomness
from fedtune.federated.algorithm import DOWN, UP, Algorithm, Batch, Data, Model, Noise, Phase, Ragged, Task, hyper
from fedtune.federated.scenario import Scenario
from fedtune.nn.fusion import LINKAGES, fuse
from fedtune.nn.layers import Linear, cross_entropy
from fedtune.nn.mixtures import fit, pack, sample, unpack
from fedtune.nn.prototypes import etf
from trainables._heads import one_component

EVENT = "first_retrain"  # the method that tells when most hyperparameters first matter


class Frame(nn.Module):
    """The fixed classifier: scores are inner products with the frame's columns."""

    columns: Tensor

    def __init__(self, frame: Tensor) -> None:
        """Keep the frame [D, C], which is never trained."""
        super().__init__()
        self.register_buffer("columns", frame)

    def forward(self, h: Tensor) -> Tensor:
        """Inner products of h [B, D] with the frame's columns, [B, C]."""
        return h @ self.columns


@dataclass(frozen=True)
class GFPL(Algorithm):
    """GFPL as the docstring of its module gives it: hyperparameters, clients and server."""

    lam: float = hyper(2.0, 0.05, 20.0, log=True, extra_values=(0.0,), symbol="λ", help="weight of the dot regression")
    components: int = hyper(
        4, 1, 16, symbol="n", first_round=EVENT, help="Gaussians per class and client, at most rows / 5"
    )
    threshold: float = hyper(
        1.0, 0.1, 300.0, log=True, symbol="S_C", first_round=EVENT, help="Bhattacharyya distance below which two fuse"
    )
    pseudo: int = hyper(16, 4, 128, log=True, symbol="r", first_round=EVENT, help="pseudo-features per class")
    every: int = hyper(10, 1, 20, symbol="S_T", first_round=EVENT, help="rounds between events")
    start: int = hyper(10, 1, 40, symbol="t1", first_round=EVENT, help="no event before this round")
    retrain_epochs: int = hyper(1, 1, 10, first_round=EVENT, help="passes over the pseudo-features, each drawn anew")
    retrain_lr: float | None = hyper(
        None, 1e-3, 0.1, log=True, first_round=EVENT, help="learning rate of retraining; none: the clients'"
    )
    variance_floor: float = hyper(
        1e-3, 1e-6, 0.1, log=True, first_round=EVENT, help="least variance, in mean variances of the class"
    )
    linkage: str = hyper("complete", choices=LINKAGES, first_round=EVENT, help="what makes a cluster in algorithm 1")
    weighing: str = hyper("rows", choices=("rows", "pi"), first_round=EVENT, help="a component's weight in fusion")
    order: str = hyper(
        "fresh", choices=("fresh", "stale"), first_round=EVENT, help="retrain on this event's P_G, or the last one's"
    )
    retrain: str = hyper(
        "both", choices=("both", "projection"), first_round=EVENT, help="what retraining moves: g and proj, or proj"
    )
    clip: bool = hyper(False, first_round=EVENT, help="cut pseudo-features at 0, as features after a ReLU are")
    projection: int = hyper(
        0, 2, 512, extra_values=(0,), symbol="d_p", help="width of the projection; 0: as the features"
    )
    predictor: str = hyper("classifier", choices=("classifier", "etf", "sum"), help="which of the heads counts")
    dcs: bool = hyper(True, help="the dual classifier (False: the ablation without DCS)")
    pfg: bool = hyper(True, first_round=EVENT, help="pseudo-feature generation (False: the ablation without PFG)")

    sends = ("mixtures",)
    schedule = ("start", "every", "order")
    structural = ("projection", "dcs")
    checked_with = {
        "every": 2, "start": 2, "pseudo": 4, "components": 2, "retrain_epochs": 2, "threshold": 20.0
    }  # fmt: skip
    contrasts = {
        "linkage": ("complete", "single", {"threshold": 40.0}),
        "threshold": (0.1, 300.0, {}),
        "variance_floor": (1e-6, 0.1, {}),
        "start": (2, 3, {}),
        "every": (2, 3, {}),
        "weighing": ("rows", "pi", {"threshold": 300.0}),
        "components": (1, 3, {}),
    }

    def first_event(self) -> int:
        """The first round with an event: the smallest multiple of S_T that is >= t1."""
        return -(-self.start // self.every) * self.every

    def first_retrain(self) -> int:
        """The first round whose evaluation an event can change: order="stale" has nothing to draw from before."""
        return self.first_event() + (self.every if self.order == "stale" else 0)

    def idle(self, scenario: Scenario) -> dict[str, str]:
        """With few rows a class, every mixture has one component."""
        return one_component(scenario)

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
        return {
            "mixtures": Ragged(empty, torch.zeros(task.classes, 1, dtype=torch.bool)),
            "counted": torch.zeros(1 + len(LINKAGES)),  # components that came in; clusters under each linkage
        }

    def round(self, task: Task) -> tuple[Phase | str, ...]:
        """Training, and in an event the exchange and the retraining (algorithm 2)."""
        train = self.phases(task)
        if not self.pfg or task.t < self.start or task.t % self.every:
            return train
        retrain = Phase(
            self.retrain_loss,
            train=("head",) if not self.dcs else ("proj",) if self.retrain == "projection" else ("head", "proj"),
            epochs=self.retrain_epochs,
            lr=self.retrain_lr,
            pool=self.pseudo_features,
            pool_noise={
                "component": Noise((task.classes, self.pseudo), "uniform"),
                "value": Noise((task.classes, self.pseudo, task.features)),
            },
        )
        return (*train, UP, DOWN, retrain) if self.order == "fresh" else (*train, DOWN, retrain, UP)

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """Eq. 13, the loss of both classifiers on images."""
        return self.dual_loss(m, m.body(batch.x), batch.y)

    def retrain_loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """Eq. 14, the loss of both classifiers on pseudo-features."""
        return self.dual_loss(m, batch.x, batch.y)

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
        """A mixture per class that the client holds (Eq. 4 to 6), and its rows."""
        seeds = data.eps["seeds"]  # [C, n]
        member = (F.one_hot(data.y, len(seeds)) * data.mask[:, None]).T  # [C, N]
        local = fit(m.body(data.x), member.bool(), seeds, self.components, self.variance_floor)
        counts = member.sum(1)
        return {"mixtures": Ragged(pack(local), local.weights > 0), "counts": Ragged(counts, counts > 0)}

    def aggregate(self, server: dict, up: dict, task: Task) -> dict:
        """Algorithm 1, class by class, over all clients' components in the order (client, component)."""
        local = unpack(up["mixtures"].values)  # [m, C, n], [m, C, n, D], [m, C, n, D]
        rows = up["counts"].values[..., None] if self.weighing == "rows" else 1
        weights = torch.where(up["mixtures"].present, local.weights * rows, 0)
        fused, counted = [], torch.zeros_like(server["counted"])
        for c in range(task.classes):
            here = weights[:, c].flatten() > 0
            w, mu, v = (t[:, c].flatten(0, 1)[here] for t in (weights, local.means, local.variances))
            clusters = {how: fuse(w, mu, v, self.threshold, how)[0] for how in LINKAGES}
            counted += counted.new_tensor([int(here.sum()), *(len(clusters[how].weights) for how in LINKAGES)])
            mixture = clusters[self.linkage]
            fused.append(pack(mixture._replace(weights=mixture.weights / mixture.weights.sum().clamp(min=1e-12))))
        lengths = torch.tensor([len(f) for f in fused], device=weights.device)
        values = pad_sequence(fused, batch_first=True)  # [C, L, 1 + 2D]
        present = torch.arange(values.shape[1], device=weights.device) < lengths[:, None]
        return {"mixtures": Ragged(values, present), "counted": counted}

    def pseudo_features(self, down: dict, eps: dict) -> Data:
        """r draws per class from P_G, as many for each class; classes that nobody holds are masked."""
        table = down["mixtures"]
        mixture = unpack(table.values)
        mixture = mixture._replace(weights=mixture.weights * table.present)
        f = sample(mixture, eps["component"], eps["value"])  # [C, r, D]
        f = f.clamp(min=0) if self.clip else f
        classes, r = f.shape[:2]
        y = torch.arange(classes, device=f.device).repeat_interleave(r)
        seen = table.present.any(1)[:, None].expand(classes, r)
        return Data(f.flatten(0, 1), y, seen.flatten(), {})

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
        """How many components came in at the last event, and how many clusters each linkage makes of them."""
        came, *clusters = server["counted"].tolist()
        if not came:
            return {}
        sizes = dict(zip(LINKAGES, clusters, strict=True))
        return {
            "components_in": came,
            "components_out": sizes[self.linkage],
            "fusion_ratio": sizes[self.linkage] / came,
        } | {f"clusters_{how}": n for how, n in sizes.items()}
