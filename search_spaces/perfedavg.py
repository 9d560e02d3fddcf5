"""Per-FedAvg: the inner step, and how long a client adapts before it is scored."""

from fedtune.tuning.space import lines, tunable, when
from trainables.perfedavg import PerFedAvg

default = tunable(PerFedAvg, inner_lr=(1e-3, 0.3), lr=(1e-3, 0.3), momentum=(0.0, 0.95), local_epochs=(1, 5))
paper = lines(inner_lr=[0.01, 0.001, 0.1], order=["first"])  # ours: no grid was at hand
wide = {
    **tunable(PerFedAvg, "inner_lr", "order", "batches", "tune_epochs", "tune_lr", "momentum"),
    **tunable(PerFedAvg, lr=(1e-4, 1.0), local_epochs=(1, 20), batch=(4, 64)),
    "delta": when(tunable(PerFedAvg, "delta")["delta"], order="hessian-free"),
}
