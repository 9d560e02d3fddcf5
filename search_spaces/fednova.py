"""FedNova: the server's momentum, and the clients' optimiser."""

from fedtune.tuning.space import lines, with_shared
from trainables.fednova import FedNova

default = with_shared(FedNova, server_momentum=(0.0, 0.97))
paper = lines(momentum=[0.0, 0.9], server_momentum=[0.0, 0.9], local_epochs=[2, 5, 10])  # ours: no grid was at hand
wide = with_shared(FedNova, "server_momentum", wide=True)
