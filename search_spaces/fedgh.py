"""FedGH: how long, and at which rate, the server trains the head."""

from fedtune.trainables.fedgh import FedGH
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedGH, "server_lr", server_epochs=(1, 20))
paper = lines(server_lr=[0.01, 0.03, 0.1, 0.3, 1.0], server_epochs=[1, 5, 10])  # ours: no grid was at hand
wide = with_shared(FedGH, "server_lr", "server_epochs", wide=True)
