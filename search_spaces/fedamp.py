"""FedAMP: how strongly clients are pulled to their cloud models, and which models count as similar."""

from fedtune.trainables.fedamp import FedAMP
from fedtune.tuning.space import lines, when, with_shared

default = with_shared(FedAMP, "lam", "cloud_step", "sigma")
paper = lines(lam=[1.0, 0.1, 0.01], sigma=[1.0, 10.0, 100.0], similarity=["cosine"])  # ours: no grid was at hand
wide = with_shared(FedAMP, "lam", "cloud_step", "sigma", "similarity", wide=True) | {
    "self_weight": when(with_shared(FedAMP, "self_weight")["self_weight"], similarity="cosine")
}
