"""FedPer: local optimisation under a common body."""

from fedtune.trainables.fedper import FedPer
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedPer)
paper = lines(lr=[0.005, 0.01, 0.05, 0.1], local_epochs=[1, 4])
wide = with_shared(FedPer, wide=True)
