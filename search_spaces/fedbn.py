"""FedBN: local optimisation and how long it goes on between averages."""

from fedtune.trainables.fedbn import FedBN
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedBN)
paper = lines(local_epochs=[1, 4, 8, 16], lr=[0.001, 0.1])  # epochs: Li et al., section 5; the rates are ours
wide = with_shared(FedBN, wide=True)
