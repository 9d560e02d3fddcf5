"""FedRoD: both heads by hand, linear or made by a hypernetwork."""

from typing import Any

import pytest
import torch.nn.functional as F
from support.by_hand import mean_accuracy, rounds, step, whole_net
from support.helpers import DIGITS, own_rows, play, random_federation, simulate
from support.numbers import TIGHT
from torch import Tensor, nn, optim
from torch.testing import assert_close


def personal_scores(net: Any, share: Tensor, z: Tensor) -> Tensor:
    """Of the client's own head, or of the one that the hypernetwork makes of its shares of classes."""
    if isinstance(net.personal, nn.Linear):
        return net.personal(z)
    made = net.personal(share).view(4, -1)
    return z @ made[:, :-1].T + made[:, -1]


@pytest.mark.parametrize("personal", ["linear", "hypernetwork"])
@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_two_rounds_by_hand(executor: str, personal: str) -> None:
    """With B = n each batch is all rows, in whatever order; no client holds all classes."""
    data = random_federation([6, 6], [[0, 1, 1], [1, 2, 3]])
    sim = simulate(
        "fedrod", DIGITS, data, executor=executor, personal=personal, lr=0.3, momentum=0.5, batch=6, local_steps=2
    )
    nets = [whole_net(sim, k) for k in range(2)]
    counts = [own_rows(sim, k)[1].bincount(minlength=4).double() for k in range(2)]

    def work(_t: int, k: int, net: Any) -> None:
        (x, y), optimizer = own_rows(sim, k), optim.SGD(net.parameters(), lr=0.3, momentum=0.5)
        for _ in range(2):
            z = net.body(x)
            generic = net.head(z)
            both = generic.detach() + personal_scores(net, counts[k] / 6, z.detach())
            step(optimizer, F.cross_entropy(generic + counts[k].log(), y) + F.cross_entropy(both, y))

    def of_all(name: str) -> bool:
        return personal == "hypernetwork" or not name.startswith("personal")

    def both(k: int, x: Tensor) -> Tensor:
        return nets[k](x) + personal_scores(nets[k], counts[k] / 6, nets[k].body(x))

    for row in rounds(sim, 2, work, nets, of_all):
        assert_close(row["test_acc_generic"], mean_accuracy(sim, "test", lambda k, x: nets[k](x)), **TIGHT)
        assert_close(row["test_acc_both"], mean_accuracy(sim, "test", both), **TIGHT)
        assert row["test_acc"] == row["test_acc_both"]


def test_a_client_that_never_took_part_has_no_personal_head_under_a_hypernetwork() -> None:
    sim = simulate("fedrod", DIGITS.override(participation=0.5), random_federation([6] * 4), personal="hypernetwork")
    play(sim, 1)
    share = sim.state.groups[0].kept["share"]
    assert sorted(share.sum(1).tolist()) == pytest.approx([0, 0, 1, 1])
    assert all(n.startswith(("body", "head", "personal")) for n in sim.state.server["shared"])
    assert not sim.state.groups[0].tensors
