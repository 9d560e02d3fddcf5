"""LG-FedAvg: local optimisation under a common head."""

from fedtune.tuning.space import lines, tunable
from trainables.lgfedavg import LGFedAvg

default = tunable(LGFedAvg, lr=(1e-3, 0.3), momentum=(0.0, 0.95), local_epochs=(1, 5))
paper = lines(lr=[0.005, 0.01, 0.05, 0.1], local_epochs=[1, 4])
wide = tunable(LGFedAvg, "momentum", lr=(1e-4, 1.0), local_epochs=(1, 20), batch=(4, 64))
