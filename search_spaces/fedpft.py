"""FedPFT: the mixtures that are sent, and how the server fits the head to draws from them."""

from fedtune.search_spaces import _families
from fedtune.trainables.fedpft import FedPFT
from fedtune.tuning.space import lines, with_shared

ALONE = "no client trains"
default = with_shared(FedPFT, "components", "variance_floor", pseudo=(20, 2000), **_families.HEAD, without=ALONE)
paper = lines(components=[1, 2, 5, 10])  # ours: no grid was at hand
wide = with_shared(
    FedPFT,
    "components",
    "pseudo",
    "head_optimizer",
    "head_epochs",
    "head_batch",
    "head_lr",
    "variance_floor",
    wide=True,
    without=ALONE,
)
