"""FedKD: how much of the mentee is sent, and how fast it learns."""

from fedtune.trainables.fedkd import FedKD
from fedtune.tuning.space import lines, with_shared

# T_s <= T_e wherever in the space: what is sent grows finer, as both papers and codes have it
default = with_shared(FedKD, "mentee_rate", energy_start=(0.8, 0.95), energy_end=(0.95, 1.0))
# T_s, T_e and the mentee's rate around 0.95, 0.98 and 1; the rates are PFLlib's and its neighbours
paper = lines(energy_start=[0.95, 0.9, 0.98], energy_end=[0.95, 0.99, 1.0], mentee_rate=[0.2, 0.5, 2.0])
wide = with_shared(
    FedKD, "mentee_rate", "clip", "coupled", "kl_over", wide=True, energy_start=(0.5, 0.95), energy_end=(0.95, 1.0)
)
