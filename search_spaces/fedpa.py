"""FedPA: the weights of its five terms, their decays, and the generator's training.

γ_div stays at 1 in `default`: under Adam only the ratios of the three γ matter.
"""

from fedtune.search_spaces import _families
from fedtune.trainables.fedpa import FedPA
from fedtune.tuning.space import lines, with_shared

default = with_shared(
    FedPA,
    "lam_po",
    "lam_ge",
    "gamma_fid",
    "gamma_ad",
    "po_decay",
    "ge_decay",
    **_families.GENERATOR,
)
# Table IV, one term left out at a time; and around the weights of section V
paper = lines(
    gamma_ad=[0.15, 0.0, 0.05, 0.5],
    lam_ge=[0.0, 1.0, 5.0, 50.0],
    lam_po=[0.0, 0.5, 1.0, 10.0],
    gamma_fid=[1.0, 5.0],
    gen_steps=[10, 100],
)
wide = with_shared(
    FedPA,
    "lam_po",
    "po_decay",
    "po_floor",
    "lam_ge",
    "ge_decay",
    "gamma_fid",
    "fid_decay",
    "gamma_ad",
    "ad_decay",
    "gamma_div",
    "div_decay",
    "gen_lr",
    "gen_lr_decay",
    "gen_weight_decay",
    "gen_steps",
    "gen_batch",
    "noise_width",
    "noise_law",
    "label_law",
    "bounded",
    "distance",
    "pairs",
    "pairs_over",
    "targets",
    "reduce",
    "weighing",
    "prototypes",
    wide=True,
)
