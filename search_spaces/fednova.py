"""FedNova: the server's momentum, and the clients' optimiser."""

from fedtune.trainables.fednova import FedNova
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedNova, server_momentum=(0.0, 0.97))
paper = lines(momentum=[0.0, 0.9], server_momentum=[0.0, 0.9], local_epochs=[2, 5, 10])  # ours: no grid was at hand
wide = with_shared(FedNova, "server_momentum", wide=True)
