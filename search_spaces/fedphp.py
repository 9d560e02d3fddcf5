"""FedPHP: how much a private model keeps of itself, and how much it passes on."""

from fedtune.trainables.fedphp import FedPHP
from fedtune.tuning.space import lines, with_shared

default = with_shared(FedPHP, "mu", "lam", "transfer")
paper = lines(lam=[0.01, 0.05, 0.1, 0.3], transfer=["logits"], mu=[0.0, 0.5, 0.9])  # of its code: 0.05, 0.1; 0.9
wide = with_shared(FedPHP, "mu", "lam", "transfer", wide=True)
