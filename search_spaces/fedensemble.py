"""FedEnsemble: local optimisation, and which models vote."""

from fedtune.tuning.space import lines, tunable
from trainables.fedensemble import FedEnsemble

default = tunable(FedEnsemble, lr=(1e-4, 0.3), momentum=(0.0, 0.95), local_epochs=(1, 5))
paper = lines(lr=[0.005, 0.01, 0.05, 0.1], members=["participants", "all"])
wide = tunable(
    FedEnsemble, "members", "average", "momentum", "batch_norm", lr=(1e-5, 1.0), local_epochs=(1, 20), batch=(4, 64)
)
