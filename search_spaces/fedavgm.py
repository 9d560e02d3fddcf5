"""FedAvgM: the server's momentum and rate, and the clients' optimiser."""

from fedtune.trainables.fedavgm import FedAvgM
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedAvgM, server_lr=(0.1, 2.0), beta1=(0.0, 0.97))
# Hsu et al., section 4.3: β and the clients' rate
paper = lines(beta1=[0.0, 0.7, 0.9, 0.97, 0.99, 0.997], lr=[1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1])
wide = with_shared(FedAvgM, "server_lr", "beta1", wide=True)
