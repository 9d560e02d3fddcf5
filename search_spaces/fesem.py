"""FeSEM: how many models the server keeps."""

from fedtune.tuning.space import lines, tunable
from trainables.fesem import FeSEM

default = tunable(FeSEM, "clusters", lr=(1e-3, 0.3), momentum=(0.0, 0.95), local_epochs=(1, 5))
paper = lines(clusters=[3, 2, 4, 5, 10])  # M clusters; the paper prints no grid
wide = tunable(FeSEM, "clusters", "momentum", lr=(1e-4, 1.0), local_epochs=(1, 20), batch=(4, 64))
