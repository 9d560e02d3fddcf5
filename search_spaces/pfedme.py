"""pFedMe: the pull between the two models, and how far the common one follows."""

from fedtune.trainables.pfedme import PFedMe
from fedtune.tuning.space import lines, with_shared

default = with_shared(PFedMe, "lam", common_lr=(1e-3, 0.3), inner_steps=(1, 5))
paper = lines(lam=[15.0, 10.0, 20.0, 30.0], inner_steps=[1, 3, 7], server_step=[2.0])  # ours, around the code's values
wide = with_shared(PFedMe, "lam", "inner_steps", "common_lr", "server_step", wide=True)
