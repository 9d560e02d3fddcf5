"""FML: how much each of the two nets learns from the labels, and how much from the other net."""

from fedtune.tuning.space import lines, tunable
from trainables.fml import FML

default = tunable(
    FML, labels_own=(0.1, 0.9), labels_meme=(0.1, 0.9), lr=(1e-3, 0.3), momentum=(0.0, 0.95), local_epochs=(1, 5)
)
paper = lines(labels_own=[0.5, 0.1, 0.3, 0.7, 0.9], labels_meme=[0.1, 0.3, 0.7, 0.9])  # α, β
wide = tunable(
    FML,
    "labels_own",
    "labels_meme",
    "clip",
    "coupled",
    "kl_over",
    "weighing",
    "momentum",
    lr=(1e-4, 1.0),
    local_epochs=(1, 20),
    batch=(4, 64),
)
