"""FedPAC: how strongly features are pulled to prototypes, and how long the head trains before the body."""

from fedtune.trainables.fedpac import FedPAC
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedPAC, "lam", "head_epochs")
paper = lines(lam=[1.0, 0.1, 0.5, 5.0])  # ours, around the code's value
wide = with_shared(FedPAC, "lam", "head_epochs", "mixes", "weighting", wide=True)
