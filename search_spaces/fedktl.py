"""FedKTL: how much the pictures count, the clients' margin, and the server's work."""

from fedtune.trainables.fedktl import FedKTL
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedKTL, "mu", "lam", "angle", "scale")
paper = lines(mu=[10.0, 20.0, 50.0, 80.0, 100.0], lam=[0.1, 0.5, 1.0, 5.0, 10.0])  # ours, around the code's 50 and 1
wide = with_shared(
    FedKTL, "mu", "lam", "angle", "scale", "latents", "server_epochs", "server_batch", "server_lr", wide=True
)
