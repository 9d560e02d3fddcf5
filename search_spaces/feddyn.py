"""FedDyn: the strength of its dynamic regularization."""

from fedtune.tuning.space import lines, tunable
from trainables.feddyn import FedDyn

default = tunable(FedDyn, "alpha_dyn", lr=(1e-3, 0.3), momentum=(0.0, 0.95), local_epochs=(1, 5))
paper = lines(alpha_dyn=[0.1, 0.01, 0.001])  # Acar et al., appendix A.1
wide = tunable(FedDyn, "alpha_dyn", "momentum", lr=(1e-4, 1.0), local_epochs=(1, 20), batch=(4, 64))
