"""CCVR: how the head is calibrated, and the training before it."""

from fedtune.tuning.space import lines, with_shared
from trainables.ccvr import CCVR

default = with_shared(CCVR, "head_lr", "variance_floor", virtual=(20, 500), head_epochs=(1, 10))
paper = lines(virtual=[100, 10, 50, 200, 500, 1000, 2000])  # ours: no grid was at hand
wide = with_shared(CCVR, "virtual", "head_epochs", "head_batch", "head_lr", "variance_floor", wide=True)
