"""FedGenP: how much clients lean on their generators, how hard those look for conflict, and when they stop."""

from fedtune.search_spaces import _families
from fedtune.trainables.fedgenp import FedGenP
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedGenP, "a", "a_decay", "lam_kl", "cap", beta=(0.01, 10.0), **_families.GENERATOR)
# table 6: local steps
paper = lines(a=[1.0, 10.0], beta=[1.0, 0.0, 0.1, 10.0, -1.0], local_steps=[20, 30, 40, 50], patience=[0])
wide = with_shared(
    FedGenP,
    "a",
    "a_decay",
    "b",
    "b_decay",
    "cap",
    "lam_kl",
    "others",
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
    wide=True,
    beta=(0.01, 10.0),
)
