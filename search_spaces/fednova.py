"""FedNova: the server's momentum, and the clients' optimiser."""

from fedtune.tuning.space import lines, tunable
from trainables.fednova import FedNova

default = tunable(FedNova, server_momentum=(0.0, 0.97), lr=(1e-3, 0.3), momentum=(0.0, 0.95), local_epochs=(1, 5))
paper = lines(momentum=[0.0, 0.9], server_momentum=[0.0, 0.9], local_epochs=[2, 5, 10])  # ours: no grid was at hand
wide = tunable(FedNova, "server_momentum", "momentum", lr=(1e-4, 1.0), local_epochs=(1, 20), batch=(4, 64))
