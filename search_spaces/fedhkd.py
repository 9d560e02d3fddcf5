"""FedHKD: the weights of the shared knowledge, and what is shared."""

from fedtune.trainables.fedhkd import FedHKD
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedHKD, "lam", "gamma", "temperature", "noise", "least_share")
paper = lines(lam=[0.05, 0.1, 1.0], gamma=[0.05, 0.1, 1.0], temperature=[0.5, 1.0], noise=[0.0, 0.02, 0.2, 2.0])
wide = with_shared(FedHKD, "lam", "gamma", "temperature", "noise", "least_share", "soft", "knowledge", wide=True)
