"""FedALA: how many layers are mixed, and how fast their weights learn."""

from fedtune.trainables.fedala import FedALA
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedALA, layers=(1, 4), weight_lr=(0.1, 10.0))
paper = lines(sampled=[0.8, 0.05, 0.1, 0.2, 0.4, 0.6, 1.0], layers=[1, 2, 3])  # ours: no grid was at hand
wide = with_shared(FedALA, "layers", "weight_lr", "sampled", "settled", "passes", wide=True)
