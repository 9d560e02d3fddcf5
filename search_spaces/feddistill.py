"""FedDistill: the weight of the other clients' logits, and which ones are used."""

from fedtune.trainables.feddistill import FedDistill
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedDistill, "leave_one_out", lam=(0.1, 5.0))
paper = lines(lam=[0.1, 0.5, 1.0, 5.0], leave_one_out=[True, False])
wide = with_shared(FedDistill, "lam", "leave_one_out", "temperature", "knowledge", wide=True)
