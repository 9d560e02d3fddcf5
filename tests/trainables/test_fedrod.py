"""FedRoD: both heads by hand, linear or made by a hypernetwork."""

import copy

import pytest
import torch
from support.helpers import DIGITS, client_net, own_rows, play, random_federation, simulate
from support.numbers import TIGHT, numbers
from torch import Tensor, nn, optim
from torch.testing import assert_close


class Hyper(nn.Module):
    """P_k from the shares of classes."""

    def __init__(self, layers: nn.Module, share: Tensor) -> None:
        super().__init__()
        self.layers, self.share = layers, share

    def forward(self, z: Tensor) -> Tensor:
        made = self.layers(self.share).view(len(self.share), -1)
        return z @ made[:, :-1].T + made[:, -1]


@pytest.mark.parametrize("personal", ["linear", "hypernetwork"])
@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_two_rounds_by_hand(executor: str, personal: str) -> None:
    """With B = n each batch is all rows, in whatever order; no client holds all classes."""
    data = random_federation([6, 6], [[0, 1, 1], [1, 2, 3]])
    sim = simulate(
        "fedrod", DIGITS, data, executor=executor, personal=personal, lr=0.3, momentum=0.5, batch=6, local_steps=2
    )
    start = client_net(sim, 0)
    values = {n: t.clone() for n, t in numbers(sim.state).items()}
    width = 16

    def own_part(k: int) -> nn.Module:
        x, y = own_rows(sim, k)
        if personal == "linear":
            return copy.deepcopy(start.head)
        layers = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 4 * 13)).double()
        layers.load_state_dict({n: values[f"server/shared/personal.{n}"].clone() for n in layers.state_dict()})
        return Hyper(layers, torch.bincount(y, minlength=4).double() / len(y))

    own = [own_part(k).double() for k in range(2)]
    common = {n: t.clone() for n, t in start.state_dict().items()}
    for _ in range(2):
        nets = [copy.deepcopy(start) for _ in range(2)]
        for k, net in enumerate(nets):
            net.load_state_dict(common)
            x, y = own_rows(sim, k)
            optimizer = optim.SGD([*net.parameters(), *own[k].parameters()], lr=0.3, momentum=0.5)
            prior = torch.bincount(y, minlength=4).double().log()
            for _ in range(2):
                optimizer.zero_grad()
                z = net.body(x)
                generic = net.head(z)
                loss = nn.functional.cross_entropy(generic + prior, y)
                loss = loss + nn.functional.cross_entropy(generic.detach() + own[k](z.detach()), y)
                loss.backward()
                optimizer.step()
        common = {n: (nets[0].state_dict()[n] + nets[1].state_dict()[n]) / 2 for n in common}
        if personal == "hypernetwork":
            one, other = (copy.deepcopy(of.layers.state_dict()) for of in own)
            for of in own:
                of.layers.load_state_dict({n: (one[n] + other[n]) / 2 for n in one})
        row = play(sim, 1)[0]
        for n, t in common.items():
            assert_close(sim.state.server["shared"][n], t, **TIGHT)
        right = {"both": [], "generic": []}
        net = copy.deepcopy(start)
        net.load_state_dict(common)
        for k in range(2):
            held = own[k].layers if personal == "hypernetwork" else own[k]
            of = sim.state.server["shared"] if personal == "hypernetwork" else sim.state.groups[0].tensors
            for n, t in held.state_dict().items():
                found = of[f"personal.{n}"]
                assert_close(found if personal == "hypernetwork" else found[k], t, **TIGHT)
            x, y = own_rows(sim, k, "test")
            z = net.body(x)
            scores = {"generic": net.head(z), "both": net.head(z) + own[k](z)}
            for name, s in scores.items():
                right[name].append((s.argmax(1) == y).double().mean())
        for name, found in right.items():
            assert abs(row[f"test_acc_{name}"] - float(torch.stack(found).mean())) < 1e-12
        assert row["test_acc"] == row["test_acc_both"]


def test_a_client_that_never_took_part_has_no_personal_head_under_a_hypernetwork() -> None:
    sim = simulate("fedrod", DIGITS.override(participation=0.5), random_federation([6] * 4), personal="hypernetwork")
    play(sim, 1)
    share = sim.state.groups[0].kept["share"]
    assert sorted(share.sum(1).tolist()) == pytest.approx([0, 0, 1, 1])
    assert all(n.startswith(("body", "head", "personal")) for n in sim.state.server["shared"])
    assert not sim.state.groups[0].tensors
