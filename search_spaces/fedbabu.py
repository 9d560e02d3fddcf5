"""FedBABU: the body's optimisation, and how long a client tunes the model before it is scored."""

from fedtune.tuning.space import lines, tunable
from trainables.fedbabu import FedBABU

default = tunable(FedBABU, tune_epochs=(1, 10), lr=(1e-3, 0.3), momentum=(0.0, 0.95), local_epochs=(1, 5))
paper = lines(tune_epochs=[5, 1, 2, 3, 4, 10], tune=["all"], local_epochs=[4, 10])  # ours: no grid was at hand
wide = tunable(
    FedBABU, "tune_epochs", "tune", "tune_lr", "momentum", lr=(1e-4, 1.0), local_epochs=(1, 20), batch=(4, 64)
)
