"""kNN-Per: how much the neighbours weigh, and how many are asked."""

from fedtune.trainables.knnper import KNNPer
from fedtune.tuning.space import lines, with_shared

default = with_shared(KNNPer, "lam", "neighbours")
paper = lines(lam=[round(0.1 * i, 1) for i in range(11)], neighbours=[1, 3, 5, 7, 10])  # k as its code; λ: ours
wide = with_shared(KNNPer, "lam", "neighbours", "kernel", "mixed", wide=True)
