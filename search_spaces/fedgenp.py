"""FedGenP: how much clients lean on their generators, how hard those look for conflict, and when they stop."""

from fedtune.tuning.space import lines, tunable
from trainables.fedgenp import FedGenP

default = tunable(
    FedGenP,
    "a",
    "a_decay",
    "lam_kl",
    "cap",
    beta=(0.01, 10.0),
    gen_lr=(1e-5, 1e-2),
    gen_steps=(10, 200),
    lr=(1e-3, 0.3),
)
# table 6: local steps
paper = lines(a=[1.0, 10.0], beta=[1.0, 0.0, 0.1, 10.0, -1.0], local_steps=[20, 30, 40, 50], patience=[0])
wide = tunable(
    FedGenP,
    "a",
    "a_decay",
    "b",
    "b_decay",
    "cap",
    "lam_kl",
    "others",
    "averaging",
    "generated",
    "patience",
    "gen_lr",
    "gen_lr_decay",
    "gen_optimizer",
    "gen_steps",
    "gen_batch",
    "noise_width",
    "noise_law",
    "label_law",
    "weighing",
    "rectify",
    "batch_norm",
    beta=(0.01, 10.0),
    lr=(1e-4, 1.0),
)
