"""MOON: how much the contrast weighs, and its temperature."""

from fedtune.trainables.moon import MOON
from fedtune.tuning.space import lines, with_shared

default = with_shared(MOON, "mu", "temperature")
paper = lines(mu=[1.0, 0.1, 5.0, 10.0], temperature=[0.1, 1.0, 5.0])  # Li et al., section 4: μ and τ
wide = with_shared(MOON, "mu", "temperature", "projection", wide=True)
