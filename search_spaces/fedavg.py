"""FedAvg: local optimisation and how long it goes on between averages."""

from ray import tune

from fedtune.trainables.fedavg import FedAvg
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedAvg)
paper = lines(lr=[0.005, 0.01, 0.05, 0.1], local_epochs=[1, 5, 20])  # local epochs: McMahan et al., table 2
wide = with_shared(FedAvg, wide=True)
# for `python -m fedtune.analysis.tabulate`: a grid that searches are simulated on (docs/background/simulate.md)
table = {
    "lr": tune.choice([0.001, 0.003, 0.01, 0.03, 0.1, 0.3]),
    "local_epochs": tune.choice([1, 4]),
    "momentum": tune.choice([0.0, 0.3, 0.6, 0.8, 0.95]),
    "batch": tune.choice([4, 8, 16, 32, 64]),
}
# the same way: what the defaults of all algorithms were read from (docs/reference/scenarios.md)
sweep = {
    "lr": tune.choice([0.003, 0.01, 0.03, 0.1, 0.3]),
    "momentum": tune.choice([0.0, 0.5, 0.9]),
    "local_epochs": tune.choice([1, 2, 5, 10, 20]),
}
