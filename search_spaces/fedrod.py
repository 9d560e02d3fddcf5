"""FedRoD: which personal head; it has nothing else to tune but what all have."""

from fedtune.trainables.fedrod import FedRoD
from fedtune.tuning.space import lines, when, with_shared

default = with_shared(FedRoD, "personal")
paper = lines(personal=["linear", "hypernetwork"])
wide = with_shared(FedRoD, "personal", "balanced", wide=True) | {
    "hyper_width": when(with_shared(FedRoD, "hyper_width")["hyper_width"], personal="hypernetwork")
}
