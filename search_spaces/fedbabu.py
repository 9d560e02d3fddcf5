"""FedBABU: the body's optimisation, and how long a client tunes the model before it is scored."""

from fedtune.trainables.fedbabu import FedBABU
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedBABU)
paper = lines(tune_epochs=[5, 1, 2, 3, 4, 10], tune=["all"], local_epochs=[4, 10])  # ours: no grid was at hand
wide = with_shared(FedBABU, wide=True)
