"""FedAvg-FT: local optimisation, and how long a client tunes the model before it is scored."""

from fedtune.tuning.space import lines, tunable
from trainables.fedavgft import FedAvgFT

default = tunable(FedAvgFT, tune_epochs=(1, 10), lr=(1e-3, 0.3), momentum=(0.0, 0.95), local_epochs=(1, 5))
paper = lines(tune_epochs=[1, 5, 10, 20], tune=["head"], tune_lr=[0.001, 0.01, 0.1])  # ours
wide = tunable(
    FedAvgFT, "tune_epochs", "tune", "tune_lr", "momentum", lr=(1e-4, 1.0), local_epochs=(1, 20), batch=(4, 64)
)
