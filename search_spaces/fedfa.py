"""FedFA: the weight of the anchors, how fast they move, and how fast the head is calibrated on them."""

from fedtune.trainables.fedfa import FedFA
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedFA, "lam", "head_lr", m=(0.0, 0.95))
paper = lines(lam=[0.01, 0.1, 1.0], m=[0.0, 0.5, 0.9])
wide = with_shared(FedFA, "lam", "m", "head_lr", wide=True)
