"""MOON: how much the contrast weighs, and its temperature."""

from fedtune.tuning.space import lines, tunable
from trainables.moon import MOON

default = tunable(MOON, "mu", "temperature", lr=(1e-3, 0.3), momentum=(0.0, 0.95), local_epochs=(1, 5))
paper = lines(mu=[1.0, 0.1, 5.0, 10.0], temperature=[0.1, 1.0, 5.0])  # Li et al., section 4: μ and τ
wide = tunable(MOON, "mu", "temperature", "momentum", lr=(1e-4, 1.0), local_epochs=(1, 20), batch=(4, 64))
