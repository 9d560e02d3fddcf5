"""FedAvg-FT: local optimisation, and how long a client tunes the model before it is scored."""

from fedtune.trainables.fedavgft import FedAvgFT
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedAvgFT)
paper = lines(tune_epochs=[1, 5, 10, 20], tune=["head"], tune_lr=[0.001, 0.01, 0.1])  # ours
wide = with_shared(FedAvgFT, wide=True)
