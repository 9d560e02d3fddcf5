"""FedDistill: the weight of the other clients' logits, and which ones are used."""

from fedtune.tuning.space import lines, tunable
from trainables.feddistill import FedDistill

default = tunable(
    FedDistill, "leave_one_out", lam=(0.1, 5.0), lr=(1e-3, 0.3), momentum=(0.0, 0.95), local_epochs=(1, 5)
)
paper = lines(lam=[0.1, 0.5, 1.0, 5.0], leave_one_out=[True, False])
wide = tunable(
    FedDistill,
    "lam",
    "leave_one_out",
    "temperature",
    "knowledge",
    "momentum",
    lr=(1e-4, 1.0),
    local_epochs=(1, 20),
    batch=(4, 64),
)
