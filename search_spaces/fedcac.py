"""FedCAC: how many numbers are critical, and how long they are shared."""

from fedtune.trainables.fedcac import FedCAC
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedCAC, "tau", "together")
paper = lines(tau=[0.1, 0.3, 0.4, 0.5, 0.7, 0.9], together=[50, 100, 170, 300])  # ours, around the code's 0.5 and 100
wide = with_shared(FedCAC, "tau", "together", wide=True)
