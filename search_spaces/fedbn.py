"""FedBN: local optimisation and how long it goes on between averages."""

from fedtune.tuning.space import lines, tunable
from trainables.fedbn import FedBN

default = tunable(FedBN, lr=(1e-3, 0.3), momentum=(0.0, 0.95), local_epochs=(1, 5))
paper = lines(local_epochs=[1, 4, 8, 16], lr=[0.001, 0.1])  # epochs: Li et al., section 5; the rates are ours
wide = tunable(FedBN, "momentum", lr=(1e-4, 1.0), local_epochs=(1, 20), batch=(4, 64))
