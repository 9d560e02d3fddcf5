"""FedFA: the weight of the anchors, how fast they move, and how fast the head is calibrated on them."""

from fedtune.tuning.space import lines, tunable
from trainables.fedfa import FedFA

default = tunable(FedFA, "lam", "head_lr", m=(0.0, 0.95), lr=(1e-3, 0.3), momentum=(0.0, 0.95), local_epochs=(1, 5))
paper = lines(lam=[0.01, 0.1, 1.0], m=[0.0, 0.5, 0.9])
wide = tunable(
    FedFA, "lam", "m", "head_lr", "momentum", "batch_norm", lr=(1e-4, 1.0), local_epochs=(1, 20), batch=(4, 64)
)
