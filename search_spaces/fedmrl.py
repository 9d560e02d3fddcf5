"""FedMRL: how wide the common net is, and how much its head counts."""

from fedtune.trainables.fedmrl import FedMRL
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedMRL, "width", "coarse")
paper = lines(
    width=[0.2, 0.4, 0.6, 0.8, 1.0], coarse=[0.1, 0.3, 1.0, 3.0, 10.0]
)  # widths: the paper's 100 … 500 of 500
wide = with_shared(FedMRL, "width", "coarse", "projection_rate", "weighing", wide=True)
