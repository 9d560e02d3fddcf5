"""FedNTD: how much clients keep of the received model, and at which temperature."""

from fedtune.tuning.space import lines, tunable
from trainables.fedntd import FedNTD

default = tunable(FedNTD, "beta", tau=(0.5, 5.0), lr=(1e-3, 0.3), momentum=(0.0, 0.95), local_epochs=(1, 5))
paper = lines(beta=[0.1, 0.3, 0.5, 1.0, 3.0, 5.0], tau=[0.5, 1.0, 2.0, 3.0, 5.0])  # ours, around the paper's 1 and 1
wide = tunable(FedNTD, "beta", "tau", "momentum", lr=(1e-4, 1.0), local_epochs=(1, 20), batch=(4, 64))
