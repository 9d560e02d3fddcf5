"""Local training: only the clients' own optimisation."""

from fedtune.trainables.local import Local
from fedtune.tuning.space import lines, with_shared

default = with_shared(Local)
paper = lines(lr=[0.01, 0.001, 0.03, 0.1])
wide = with_shared(Local, wide=True)
