"""FedGH: how long, and at which rate, the server trains the head."""

from fedtune.tuning.space import lines, tunable
from trainables.fedgh import FedGH

default = tunable(FedGH, "server_lr", server_epochs=(1, 20), lr=(1e-3, 0.3), momentum=(0.0, 0.95), local_epochs=(1, 5))
paper = lines(server_lr=[0.01, 0.03, 0.1, 0.3, 1.0], server_epochs=[1, 5, 10])  # ours: no grid was at hand
wide = tunable(FedGH, "server_lr", "server_epochs", "momentum", lr=(1e-4, 1.0), local_epochs=(1, 20), batch=(4, 64))
