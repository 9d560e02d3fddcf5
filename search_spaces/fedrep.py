"""FedRep: how long the head is trained before the body."""

from fedtune.tuning.space import lines, tunable
from trainables.fedrep import FedRep

default = tunable(FedRep, "head_epochs", lr=(1e-3, 0.3), momentum=(0.0, 0.95), local_epochs=(1, 5))
paper = lines(head_epochs=[1, 3, 5, 10])  # τ
wide = tunable(FedRep, "head_epochs", "momentum", lr=(1e-4, 1.0), local_epochs=(1, 20), batch=(4, 64))
