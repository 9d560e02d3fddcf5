"""FeSEM: how many models the server keeps."""

from fedtune.trainables.fesem import FeSEM
from fedtune.tuning.space import lines, with_shared

default = with_shared(FeSEM, "clusters")
paper = lines(clusters=[3, 2, 4, 5, 10])  # M clusters; the paper prints no grid
wide = with_shared(FeSEM, "clusters", wide=True)
