"""Local training: only the clients' own optimisation."""

from fedtune.tuning.space import lines, with_shared
from trainables.local import Local

default = with_shared(Local)
paper = lines(lr=[0.01, 0.001, 0.03, 0.1])
wide = with_shared(Local, wide=True)
