"""FedGenP: how much clients lean on their generators, how hard those look for conflict, and when they stop."""

from fedtune.tuning.space import lines, tunable
from trainables.fedgenp import FedGenP

default = tunable(FedGenP, "a", "a_decay", "beta", "lam_kl", "cap", "gen_lr", "gen_steps", lr=(1e-3, 0.3))
paper = lines(a=[1.0, 10.0], beta=[0.0, -1.0], local_steps=[20, 30, 40, 50], patience=[0])  # table 6: local steps
wide = tunable(
    FedGenP, "a", "a_decay", "b", "b_decay", "beta", "cap", "lam_kl", "generated", "patience", "gen_lr", "gen_lr_decay",
    "gen_optimizer", "gen_steps", "gen_batch", "noise_width", "noise_law", "label_law", "weighing", "rectify",
    "batch_norm", lr=(1e-4, 1.0),
)  # fmt: skip
