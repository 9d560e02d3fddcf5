"""FedFomo: how many models a client receives, how many of them at random, and what judges them."""

from fedtune.trainables.fedfomo import FedFomo
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedFomo, candidates=(1, 10), explore=(0.0, 0.5))
paper = lines(candidates=[5, 2, 10], explore=[0.0, 0.1])  # ours: no grid was at hand
wide = with_shared(FedFomo, "candidates", "explore", "held_out", wide=True)
