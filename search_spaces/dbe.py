"""DBE: how strongly mean features are held together, and how fast offsets move."""

from fedtune.trainables.dbe import DBE
from fedtune.tuning.space import lines, with_shared

default = with_shared(DBE, "kappa", "mean_momentum", "offset_rate")
paper = lines(kappa=[0.1, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0], mean_momentum=[0.1, 0.5, 1.0])  # ours, around the code's
wide = with_shared(DBE, "kappa", "mean_momentum", "offset_rate", wide=True)
