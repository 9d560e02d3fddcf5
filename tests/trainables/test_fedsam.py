"""FedSAM: steps of SGD and momentum by hand."""

import pytest
import torch
from support.by_hand import batches, rounds, slope
from support.helpers import DIGITS, client_net, play, random_federation, simulate
from support.numbers import assert_close_numbers
from torch import Tensor, nn


def size(g: dict[str, Tensor]) -> float:
    return float(torch.cat([t.flatten() for t in g.values()]).norm())


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_two_rounds_by_hand(executor: str) -> None:
    """With momentum 0.5 and weight decay, which act at w and not at w̃."""
    rho, eta, decay = 0.3, 0.1, 0.01
    config = {"rho": rho, "lr": eta, "momentum": 0.5, "weight_decay": decay, "batch": 4}
    sim = simulate("fedsam", DIGITS, random_federation([4, 11]), executor=executor, **config)

    def work(t: int, k: int, net: nn.Module) -> None:
        at, speed = {n: p.detach() for n, p in net.named_parameters()}, {}
        for x, y in batches(sim, t, k):
            g = slope(net, at, x, y)
            uphill = {n: at[n] + rho * g[n] / size(g) for n in at}
            step = {n: d + decay * at[n] for n, d in slope(net, uphill, x, y).items()}
            speed = {n: 0.5 * speed[n] + step[n] for n in at} if speed else step
            at = {n: at[n] - eta * speed[n] for n in at}
        net.load_state_dict(at)

    for _ in rounds(sim, 2, work):
        pass


def test_a_frozen_body_is_not_moved_uphill() -> None:
    """Then the norm is the head's alone, and ρ along it."""
    sim = simulate("fedsam", DIGITS, random_federation([6]), rho=0.5, lr=0.1, momentum=0.0, batch=6, body_lr_scale=0.0)
    net, f = client_net(sim, 0), sim.setup.federation
    x, y = f.x[f.train.rows[0, :6]], f.y[f.train.rows[0, :6]]
    z, head = net.body(x).detach(), dict(net.head.named_parameters())
    for _ in range(2):  # two passes of one step
        g = slope(net.head, head, z, y)
        step = slope(net.head, {n: head[n] + 0.5 * g[n] / size(g) for n in g}, z, y)
        head = {n: head[n] - 0.1 * step[n] for n in g}
        play(sim, 1)
        assert_close_numbers({n: client_net(sim, 0).get_parameter(f"head.{n}").detach() for n in head}, head)
