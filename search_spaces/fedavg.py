"""FedAvg: local optimisation and how long it goes on between averages."""

from fedtune.tuning.space import lines, tunable
from trainables.fedavg import FedAvg

default = tunable(FedAvg, lr=(1e-3, 0.3), momentum=(0.0, 0.95), local_epochs=(1, 5))
paper = lines(lr=[0.005, 0.01, 0.05, 0.1], local_epochs=[1, 5, 20])  # local epochs: McMahan et al., table 2
wide = tunable(FedAvg, "momentum", lr=(1e-4, 1.0), local_epochs=(1, 20), batch=(4, 64))
