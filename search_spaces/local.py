"""Local training: only the clients' own optimisation."""

from fedtune.tuning.space import lines, tunable
from trainables.local import Local

default = tunable(Local, lr=(1e-3, 0.3), momentum=(0.0, 0.95), local_epochs=(1, 5))
paper = lines(lr=[0.01, 0.001, 0.03, 0.1])
wide = tunable(Local, "momentum", lr=(1e-4, 1.0), local_epochs=(1, 10), batch=(4, 64))
