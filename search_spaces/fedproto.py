"""FedProto: the weight of the prototypes."""

from ray import tune

from fedtune.tuning.space import lines, tunable
from trainables.fedproto import FedProto

default = tunable(FedProto, "lam", lr=(1e-3, 0.3), momentum=(0.0, 0.95), local_epochs=(1, 5))
paper = lines(lam=[0.0, 0.01, 0.1, 1.0, 2.0, 3.0, 4.0, 10.0, 50.0])  # the paper's [0, 4], and what libraries use
wide = tunable(
    FedProto, "lam", "weighting", "predictor", "among", "momentum", lr=(1e-4, 1.0), local_epochs=(1, 20), batch=(4, 64)
)
# for `fedtune tabulate`: a grid that searches are simulated on (docs/simulate.md)
table = {
    "lam": tune.choice([0.1, 0.5, 1.0, 2.0, 5.0, 20.0]),
    "lr": tune.choice([0.003, 0.01, 0.03, 0.1, 0.3]),
    "local_epochs": tune.choice([1, 2]),
    "momentum": tune.choice([0.0, 0.3, 0.5, 0.7, 0.9]),
}
