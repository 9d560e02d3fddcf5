"""FedKTL: the server turns clients' class prototypes into pictures by a fixed generator, and clients learn from these.

    once     an equiangular frame Z of C directions, from a common seed; the generator G: W latents -> a row of data
    down     (x_c, v_c) of every class c seen so far: a picture and its latents
    client   local epochs on   L = CE(s · cos(h(z), Z) with margin m) + μ · mean_c |P body(x_c) - v_c|² / W
             z = body(x), h the head, of C numbers;  the own direction's angle counts as larger by m (ArcFace)
             P linear, each client's own;  gradients of the net and of P are clipped to the norm 100
    up       p_k,c the mean of h(z) / |h(z)| over the rows of c, after training, normalised; for the classes it has
    server   S epochs of Adam over the received pairs (p, y), in batches, on
             MMD²(F(p), normal draws) + λ · |F(p) - v_y|² / W;    they train F: C -> W latents, kept over rounds, and v
             v_c <- the mean of F(p) of class c;    x_c = G(v_c)

Zhang, Liu, Hua and Cao, CVPR 2024, arXiv:2403.15760, and its code (TsingZ0/FedKTL).

Differs:

- The paper's G is pretrained (StyleGAN, Stable Diffusion).  Here G is two layers of random weights that never change.
  Given normal latents, its rows of data have mean 0 and variance 1.  So the pictures look like noise, and all that they
  tell clients is each class's latents.
- F has LayerNorm.  The code has BatchNorm, which has no statistics for a single prototype.
- F's gradients are not clipped.
- In every step a client uses all pairs (x_c, v_c) that it received.  The code uses as many as the mini-batch has rows.
- P stays with its client.  In the code it starts anew in every round.

The nearest direction of Z predicts.  With μ = 0 it is Local with an equiangular head.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtune.core import randomness
from fedtune.experiment.algorithm import Algorithm, Batch, Data, Model, Phase, Ragged, Task, hyper
from fedtune.nn.heads import Frame, arcface
from fedtune.nn.latents import align, as_numbers, filled, generate, new_nets
from fedtune.nn.layers import Linear
from fedtune.nn.prototypes import class_means, etf


@dataclass(frozen=True)
class FedKTL(Algorithm):
    """FedKTL as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "classes"

    mu: float = hyper(
        50.0,
        0.1,
        100.0,
        log=True,
        extra_values=(0.0,),
        symbol="μ",
        first_round=2,
        help="weight of the loss on pictures",
    )
    lam: float = hyper(1.0, 0.01, 10.0, log=True, symbol="λ", first_round=2, help="pull to the classes' latents")
    angle: float = hyper(0.5, 0.0, 1.0, symbol="m", help="margin of the own direction's angle, in radians")
    scale: float = hyper(64.0, 1.0, 128.0, log=True, symbol="s", help="factor on cosines")
    latents: int = hyper(64, 8, 512, log=True, symbol="W", help="the generator's latents")
    server_epochs: int = hyper(
        100, 1, 1000, log=True, symbol="S", first_round=2, help="the server's epochs on the received prototypes"
    )
    server_batch: int = hyper(100, 8, 256, log=True, first_round=2, help="mini-batch of these epochs")
    server_lr: float = hyper(0.01, 1e-4, 0.1, log=True, first_round=2, help="Adam's learning rate at the server")

    sends = ("pictures", "vectors")
    structural = ("latents",)
    checked_with = {"latents": 16, "server_epochs": 5, "server_batch": 8, "server_lr": 1e-3}
    contrasts = {"latents": (8, 16, {}), "server_epochs": (1, 5, {})}
    presets = dict.fromkeys(("as_published", "htfllib"), {"momentum": 0.0})

    def build(self, net: nn.Module, task: Task) -> nn.Module:
        """Add the frame and the projection of features to latents."""
        frame = etf(task.classes, task.classes, randomness.stream(task.seed, "frame"))
        net.add_module("frame", Frame(frame.to(torch.get_default_dtype())))
        net.add_module("projection", Linear(task.features, self.latents))
        return net

    def init(self, task: Task) -> dict:
        """The transformer F and the generator G; no pictures yet."""
        c, w, no_classes = task.classes, self.latents, torch.zeros(task.classes, dtype=torch.bool)
        pictures, vectors = Ragged(torch.zeros(c, *task.shape), no_classes), Ragged(torch.zeros(c, w), no_classes)
        return new_nets(c, w, torch.Size(task.shape).numel(), task.seed) | {"pictures": pictures, "vectors": vectors}

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Rows alone, as long as there are no pictures; net and projection are clipped separately."""
        return (Phase(self.loss if self.mu and task.t > 1 else self.arc, lr_scale={"projection": 1.0}, clip=100.0),)

    def arc(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """CE of the scaled cosines, the own one's angle enlarged by the margin."""
        return arcface(self.predict(m, batch.x, down), batch.y, self.scale, self.angle)

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """And the distance of the pictures' features, projected, to their latents."""
        x, present = filled(down["pictures"], batch.x), down["pictures"].present
        distance = (m.part("projection")(m.body(x)) - down["vectors"].values).square().mean(1)  # [C]
        return self.arc(m, batch, down) + self.mu * (distance * present).sum() / present.sum().clamp(min=1)

    def upload(self, m: Model, data: Data, down: dict) -> dict:
        """Normalised class means of the classes that the client holds."""
        h = F.normalize(m.head(m.body(data.x)), dim=1)
        means, counts = class_means(h, data.y, data.mask, h.shape[1])
        return {"protos": Ragged(F.normalize(means, dim=1), counts > 0)}

    def aggregate(self, server: dict, up: dict, task: Task) -> dict:
        """F and latents after their epochs, and the pictures of the latents."""
        protos, present = up["protos"]  # [m, C, C], [m, C]
        p, y, stream = protos[present], present.nonzero()[:, 1], randomness.stream(task.seed, "latents", task.t)
        work = self.server_epochs, self.server_batch, self.server_lr, self.lam
        net, vectors = align(server["transformer"], server["vectors"], p, y, *work, stream)
        pictures = generate(server["generator"], vectors.values).view(-1, *task.shape)
        return server | {"transformer": net, "vectors": vectors, "pictures": Ragged(pictures, vectors.present)}

    def predict(self, m: Model, x: Tensor, down: dict) -> Tensor:
        """Cosines of h(z) with the frame's directions, [B, C]: the nearest one predicts."""
        return m.part("frame")(F.normalize(m.head(m.body(as_numbers(x))), dim=1))
