"""CFL: when a cluster splits."""

from fedtune.trainables.cfl import CFL
from fedtune.tuning.space import lines, with_shared

default = with_shared(CFL, "eps1", "eps2", start=(1, 20))
paper = lines(eps1=[0.1, 0.2, 0.4, 0.8, 1.6], eps2=[0.4, 0.8, 1.6, 3.2])  # ours, around the code's 0.4 and 1.6
wide = with_shared(CFL, "eps1", "eps2", "start", "weighting", wide=True)
