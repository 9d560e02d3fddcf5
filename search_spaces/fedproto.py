"""FedProto: the weight of the prototypes."""

from ray import tune

from fedtune.trainables.fedproto import FedProto
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedProto, "lam")
paper = lines(lam=[0.0, 0.01, 0.1, 1.0, 2.0, 3.0, 4.0, 10.0, 50.0])  # the paper's [0, 4], and what libraries use
wide = with_shared(FedProto, "lam", "weighting", "predictor", "among", wide=True)
# for `python -m fedtune.analysis.tabulate`: a grid that searches are simulated on (docs/background/simulate.md)
table = {
    "lam": tune.choice([0.1, 0.5, 1.0, 2.0, 5.0, 20.0]),
    "lr": tune.choice([0.003, 0.01, 0.03, 0.1, 0.3]),
    "local_epochs": tune.choice([1, 2]),
    "momentum": tune.choice([0.0, 0.3, 0.5, 0.7, 0.9]),
}
