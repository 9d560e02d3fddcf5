"""SCAFFOLD: the clients' plain SGD, and the server's step."""

from fedtune.tuning.space import lines, tunable
from trainables.scaffold import Scaffold

# without momentum: the paper's clients run plain SGD
default = tunable(Scaffold, lr=(1e-3, 0.3), server_lr=(0.3, 1.5), local_epochs=(1, 5))
paper = lines(local_epochs=[1, 5, 10, 20], lr=[0.003, 0.03, 0.1, 0.3])  # epochs: table 3; the rates are ours
wide = tunable(Scaffold, "server_lr", "momentum", lr=(1e-4, 1.0), local_epochs=(1, 20), batch=(4, 64))
