"""FML: how much each of the two nets learns from the labels, and how much from the other net."""

from fedtune.trainables.fml import FML
from fedtune.tuning.space import lines, with_shared

default = with_shared(FML, labels_own=(0.1, 0.9), labels_meme=(0.1, 0.9))
paper = lines(labels_own=[0.5, 0.1, 0.3, 0.7, 0.9], labels_meme=[0.1, 0.3, 0.7, 0.9])  # α, β
wide = with_shared(FML, "labels_own", "labels_meme", "clip", "coupled", "kl_over", "weighing", wide=True)
