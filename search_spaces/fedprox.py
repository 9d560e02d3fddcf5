"""FedProx: the weight of the proximal term."""

from fedtune.trainables.fedprox import FedProx
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedProx, "mu")
paper = lines(mu=[0.001, 0.01, 0.1, 1.0])  # Li et al., section 5
wide = with_shared(FedProx, "mu", wide=True)
