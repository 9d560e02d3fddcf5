"""GPFL: how strongly embeddings guide, and how small they and the valve are held."""

from fedtune.trainables.gpfl import GPFL
from fedtune.tuning.space import lines, with_shared

default = with_shared(GPFL, "lam", "mu")
paper = lines(lam=[1e-4, 1e-3, 1e-2, 1e-1, 1.0], mu=[1e-4, 1e-3, 1e-2, 1e-1])  # ours, around the code's 0.01 and 0.1
wide = with_shared(GPFL, "lam", "mu", "guidance", "valve", wide=True)
