"""Ditto: how strongly a client's own model is pulled to the common one."""

from fedtune.trainables.ditto import Ditto
from fedtune.tuning.space import lines, with_shared

default = with_shared(Ditto, "lam")
paper = lines(lam=[1.0, 0.05, 0.1, 0.2, 2.0])  # all of their candidates of λ
wide = with_shared(Ditto, "lam", wide=True)
