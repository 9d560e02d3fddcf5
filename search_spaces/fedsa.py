"""FedSA: the weights of its three terms, how fast anchors move, whose margin, and whether anchors are embedded."""

from fedtune.trainables.fedsa import FedSA
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedSA, "lam_r", "lam_m", "lam_cc", "drift", "margin", "embed")
# the scripts' grid of λ_R, table 5, table 4 one part left out at a time; α = 0.9999, 0.999, 0.99, 0.9 and 1
paper = lines(
    lam_r=[10.0, 1.0, 5.0, 20.0],
    lam_m=[0.1, 5.0, 10.0, 0.0],
    lam_cc=[0.1, 5.0, 10.0, 0.0],
    embed=[False],
    drift=[1e-3, 1e-2, 0.1, 0.0],
)
wide = with_shared(
    FedSA, "lam_r", "lam_m", "lam_cc", "drift", "margin", "embed", "prototypes", "weighting", "predictor", wide=True
)
