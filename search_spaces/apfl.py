"""APFL: how much of its own model a client mixes in."""

from fedtune.trainables.apfl import APFL
from fedtune.tuning.space import lines, when, with_shared

default = with_shared(APFL, "mix", "adaptive")
paper = lines(mix=[0.25, 0.5, 0.75], adaptive=[True])  # ours: no grid was at hand
wide = with_shared(APFL, "mix", "adaptive", "mixed", wide=True) | {
    "mix_decay": when(with_shared(APFL, "mix_decay")["mix_decay"], adaptive=True)
}
