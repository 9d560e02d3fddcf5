"""SCAFFOLD: the server's step; the paper's clients run plain SGD, which is momentum 0 in the range that all have."""

from fedtune.trainables.scaffold import Scaffold
from fedtune.tuning.space import lines, with_shared

default = with_shared(Scaffold, server_lr=(0.3, 1.5))
paper = lines(local_epochs=[1, 5, 10, 20], lr=[0.003, 0.03, 0.1, 0.3])  # epochs: table 3; the rates are ours
wide = with_shared(Scaffold, "server_lr", wide=True)
