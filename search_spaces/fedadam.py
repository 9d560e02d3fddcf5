"""FedAdam: the server's optimiser, and the clients'."""

from fedtune.trainables.fedadam import FedAdam
from fedtune.tuning.space import lines, tunable, when, with_shared

default = with_shared(FedAdam, "server_lr", "tau")
# Reddi et al., section 5 and appendix D: powers of ten for η_s, by half decades there; τ from 1e-5 to 1e-1; every rule
# with its own η_s and β1
paper = lines(
    server_lr=[0.03, 0.001, 0.003, 0.01, 0.1, 0.3, 1.0],
    tau=[1e-5, 1e-4, 1e-2, 1e-1],
    rule=["yogi", "adagrad", "sgd"],
)
_own = tunable(FedAdam, "beta1", "beta2", "tau")
wide = with_shared(FedAdam, "rule", "server_lr", wide=True) | {
    "beta1": when(_own["beta1"], rule=("adam", "yogi", "sgd")),
    "beta2": when(_own["beta2"], rule=("adam", "yogi")),
    "tau": when(_own["tau"], rule=("adam", "yogi", "adagrad")),
}
