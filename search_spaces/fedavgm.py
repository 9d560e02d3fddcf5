"""FedAvgM: the server's momentum and rate, and the clients' optimiser."""

from fedtune.tuning.space import lines, tunable
from trainables.fedavgm import FedAvgM

default = tunable(
    FedAvgM, server_lr=(0.1, 2.0), beta1=(0.0, 0.97), lr=(1e-3, 0.3), momentum=(0.0, 0.95), local_epochs=(1, 5)
)
# Hsu et al., section 4.3: β and the clients' rate
paper = lines(beta1=[0.0, 0.7, 0.9, 0.97, 0.99, 0.997], lr=[1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1])
wide = tunable(FedAvgM, "server_lr", "beta1", "momentum", lr=(1e-4, 1.0), local_epochs=(1, 20), batch=(4, 64))
