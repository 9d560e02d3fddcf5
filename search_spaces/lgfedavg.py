"""LG-FedAvg: local optimisation under a common head."""

from fedtune.trainables.lgfedavg import LGFedAvg
from fedtune.tuning.space import lines, with_shared

default = with_shared(LGFedAvg)
paper = lines(lr=[0.005, 0.01, 0.05, 0.1], local_epochs=[1, 4])
wide = with_shared(LGFedAvg, wide=True)
