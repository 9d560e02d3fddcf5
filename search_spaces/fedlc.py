"""FedLC: how strongly logits are calibrated."""

from fedtune.trainables.fedlc import FedLC
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedLC, "tau")
paper = lines(tau=[0.01, 0.1, 0.3, 0.5, 1.0, 3.0, 10.0])  # ours: no grid was at hand
wide = with_shared(FedLC, "tau", wide=True)
