"""FedSAM: how far uphill clients look."""

from fedtune.trainables.fedsam import FedSAM
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedSAM, "rho")
paper = lines(rho=[0.001, 0.01, 0.05, 0.1, 0.5, 1.0])  # ours: no grid was at hand
wide = with_shared(FedSAM, "rho", wide=True)
