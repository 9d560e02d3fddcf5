"""FedTGP: the weight of the prototypes, and how the server trains them."""

from fedtune.trainables.fedtgp import FedTGP
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedTGP, "lam", "tau", server_epochs=(10, 200), server_lr=(0.001, 0.1))
paper = lines(lam=[10.0, 1.0, 50.0], tau=[10.0, 0.0], server_epochs=[10, 1000, 0])  # 0: no bound; FedProto's server
wide = with_shared(FedTGP, "lam", "tau", "server_epochs", "server_lr", "weighting", "predictor", wide=True)
