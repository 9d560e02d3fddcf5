"""FedProx: the weight of the proximal term."""

from fedtune.tuning.space import lines, tunable
from trainables.fedprox import FedProx

default = tunable(FedProx, "mu", lr=(1e-3, 0.3), momentum=(0.0, 0.95), local_epochs=(1, 5))
paper = lines(mu=[0.001, 0.01, 0.1, 1.0])  # Li et al., section 5
wide = tunable(FedProx, "mu", "momentum", lr=(1e-4, 1.0), local_epochs=(1, 20), batch=(4, 64))
