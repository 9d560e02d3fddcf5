"""FedRep: how long the head is trained before the body."""

from fedtune.trainables.fedrep import FedRep
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedRep, "head_epochs")
paper = lines(head_epochs=[1, 3, 5, 10])  # τ
wide = with_shared(FedRep, "head_epochs", wide=True)
