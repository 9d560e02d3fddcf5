"""FedHKD: the weights of the shared knowledge, and what is shared."""

from fedtune.tuning.space import lines, tunable
from trainables.fedhkd import FedHKD

default = tunable(FedHKD, "lam", "gamma", "temperature", "noise", "least_share", lr=(1e-4, 0.3))
paper = lines(lam=[0.05, 0.1, 1.0], gamma=[0.05, 0.1, 1.0], temperature=[0.5, 1.0], noise=[0.0, 0.02, 0.2, 2.0])
wide = tunable(
    FedHKD,
    "lam",
    "gamma",
    "temperature",
    "noise",
    "least_share",
    "soft",
    "knowledge",
    "momentum",
    "batch_norm",
    lr=(1e-5, 0.3),
)
