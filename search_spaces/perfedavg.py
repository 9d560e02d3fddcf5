"""Per-FedAvg: the inner step, and how long a client adapts before it is scored."""

from fedtune.trainables.perfedavg import PerFedAvg
from fedtune.tuning.space import lines, when, with_shared

default = with_shared(PerFedAvg, inner_lr=(1e-3, 0.3))
paper = lines(inner_lr=[0.01, 0.001, 0.1], hessian=["none"])  # ours: no grid was at hand
wide = with_shared(PerFedAvg, "inner_lr", "hessian", "batches", wide=True) | {
    "delta": when(with_shared(PerFedAvg, "delta")["delta"], hessian="difference")
}
