"""FedEnsemble: local optimisation, and which models vote."""

from fedtune.trainables.fedensemble import FedEnsemble
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedEnsemble)
paper = lines(lr=[0.005, 0.01, 0.05, 0.1], members=["participants", "all"])
wide = with_shared(FedEnsemble, "members", "average", wide=True)
