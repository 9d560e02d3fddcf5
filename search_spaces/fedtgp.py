"""FedTGP: the weight of the prototypes, and how the server trains them."""

from fedtune.tuning.space import lines, tunable
from trainables.fedtgp import FedTGP

default = tunable(
    FedTGP,
    "lam",
    "tau",
    server_epochs=(10, 200),
    server_lr=(1e-3, 0.1),
    lr=(1e-3, 0.3),
    momentum=(0.0, 0.95),
    local_epochs=(1, 5),
)
paper = lines(lam=[10.0, 1.0, 50.0], tau=[10.0, 0.0], server_epochs=[10, 1000, 0])  # 0: no bound; FedProto's server
wide = tunable(
    FedTGP,
    "lam",
    "tau",
    "server_epochs",
    "server_lr",
    "weighting",
    "predictor",
    "momentum",
    lr=(1e-4, 1.0),
    local_epochs=(1, 20),
    batch=(4, 64),
)
