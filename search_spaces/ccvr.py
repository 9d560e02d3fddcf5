"""CCVR: how the head is calibrated, and the training before it."""

from fedtune.tuning.space import lines, tunable
from trainables.ccvr import CCVR

default = tunable(
    CCVR, "head_lr", "variance_floor", virtual=(20, 500), head_epochs=(1, 10), lr=(1e-3, 0.3), local_epochs=(1, 5)
)
paper = lines(virtual=[100, 10, 50, 200, 500, 1000, 2000])  # ours: no grid was at hand
wide = tunable(
    CCVR,
    "virtual",
    "head_epochs",
    "head_batch",
    "head_lr",
    "variance_floor",
    "momentum",
    lr=(1e-4, 1.0),
    local_epochs=(1, 20),
    batch=(4, 64),
)
