"""FedNTD: how much clients keep of the received model, and at which temperature."""

from fedtune.trainables.fedntd import FedNTD
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedNTD, "beta", tau=(0.5, 5.0))
paper = lines(beta=[0.1, 0.3, 0.5, 1.0, 3.0, 5.0], tau=[0.5, 1.0, 2.0, 3.0, 5.0])  # ours, around the paper's 1 and 1
wide = with_shared(FedNTD, "beta", "tau", wide=True)
