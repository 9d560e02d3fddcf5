"""FedAS: how far a client aligns the received body before it trains."""

from fedtune.trainables.fedas import FedAS
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedAS, "align_epochs", "align_lr")
paper = lines(align_epochs=[1, 2, 5], align_lr=[0.001, 0.1])  # ours, around the code's values
wide = with_shared(FedAS, "align_epochs", "align_lr", "weighing", wide=True)
