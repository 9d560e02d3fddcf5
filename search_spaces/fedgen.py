"""FedGen: how much clients lean on generated features, and how the generator is trained."""

from fedtune.search_spaces import _families
from fedtune.trainables.fedgen import FedGen
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedGen, "gen_weight", "kl_weight", "gen_decay", **_families.GENERATOR)
paper = lines(gen_weight=[0.0, 1.0, 10.0], kl_weight=[0.0, 1.0, 10.0], gen_steps=[10, 50, 100])
wide = with_shared(
    FedGen,
    "gen_weight",
    "kl_weight",
    "gen_decay",
    "kl_decay",
    "eta",
    "gen_lr",
    "gen_lr_decay",
    "gen_steps",
    "gen_batch",
    "noise_width",
    "noise_law",
    "label_law",
    "weighing",
    wide=True,
)
