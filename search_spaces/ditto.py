"""Ditto: how strongly a client's own model is pulled to the common one."""

from fedtune.tuning.space import lines, tunable
from trainables.ditto import Ditto

default = tunable(Ditto, "lam", lr=(1e-3, 0.3), momentum=(0.0, 0.95), local_epochs=(1, 5))
paper = lines(lam=[0.1, 0.05, 0.2, 1.0, 2.0])  # all of their candidates of λ
wide = tunable(Ditto, "lam", "momentum", lr=(1e-4, 1.0), local_epochs=(1, 20), batch=(4, 64))
