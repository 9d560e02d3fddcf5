"""FedDecorr: how strongly features are decorrelated."""

from fedtune.trainables.feddecorr import FedDecorr
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedDecorr, "beta")
paper = lines(beta=[0.01, 0.05, 0.1, 0.2, 0.3])  # ours, around the paper's 0.1
wide = with_shared(FedDecorr, "beta", "scale", wide=True)
