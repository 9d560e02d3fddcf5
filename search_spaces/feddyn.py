"""FedDyn: the strength of its dynamic regularization."""

from fedtune.trainables.feddyn import FedDyn
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedDyn, "alpha_dyn")
paper = lines(alpha_dyn=[0.1, 0.01, 0.001], participation=[1.0, 0.1])  # Acar et al., appendix A.1, table 1
wide = with_shared(FedDyn, "alpha_dyn", wide=True)
