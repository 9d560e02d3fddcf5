"""CCVR: how the head is calibrated, and the training before it."""

from fedtune.search_spaces import _families
from fedtune.trainables.ccvr import CCVR
from fedtune.tuning.space import lines, with_shared

default = with_shared(CCVR, "variance_floor", virtual=(20, 2000), **_families.HEAD)
paper = lines(virtual=[100, 10, 50, 200, 500, 1000, 2000])  # ours: no grid was at hand
wide = with_shared(
    CCVR, "virtual", "head_optimizer", "head_epochs", "head_batch", "head_lr", "variance_floor", wide=True
)
