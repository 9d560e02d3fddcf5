"""SCAFFOLD: rounds by hand; it comes to rest where the clients' mean loss does."""

import pytest
import torch
from support.by_hand import batches
from support.helpers import BATCHNORM, DIGITS, client_net, play, random_federation, simulate
from support.numbers import TIGHT, assert_close_numbers, assert_same_numbers, copied
from support.rest import slope_at_rest
from torch import Tensor, nn
from torch.testing import assert_close

from fedtune.engine.engine import participants


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_of_one_client_the_servers_control_variate_is_the_clients(executor: str) -> None:
    sim = simulate("scaffold", BATCHNORM, random_federation([13]), executor=executor, lr=0.1)
    play(sim, 4)
    mine = {n: t[0] for n, t in sim.state.groups[0].kept["control"].items()}
    assert_close_numbers(sim.state.server["control"], mine)
    assert max(c.abs().max() for c in mine.values()) > 1e-2


@pytest.mark.parametrize(("beta", "pace"), [(0.0, 1.0), (0.5, 1.0), (0.9, 0.3)])
def test_rounds_by_hand(beta: float, pace: float) -> None:
    """Clients of 1, 3 and 2 steps; the rate cools, the server steps short, and one client of four sits out.

    A control variate is the mean of a round's gradients, each weighted by how far it carried the model.
    """
    eta, cool, eta_g, rows = 0.2, 0.9, 0.7, [4, 11, 6, 8]
    work = {"lr": eta, "lr_decay": cool, "momentum": beta, "body_lr_scale": pace, "server_lr": eta_g}
    sim = simulate("scaffold", DIGITS.override(participation=0.75), random_federation(rows), **work)
    net = client_net(sim, 0)
    w: dict[str, Tensor] = copied(sim.state.server["shared"])
    c = {n: torch.zeros_like(t) for n, t in w.items()}
    own = [dict(c) for _ in rows]
    for t in (1, 2, 3):
        play(sim, 1)
        chosen, rate = participants(sim.setup, t).tolist(), eta * cool ** (t - 1)
        assert len(chosen) == 3
        ends, news = [], []
        for k in chosen:
            net.load_state_dict(copied(w))
            sgd = torch.optim.SGD(
                [{"params": net.body.parameters(), "lr": rate * pace}, {"params": net.head.parameters(), "lr": rate}],
                momentum=beta,
            )
            drawn, seen = batches(sim, t, k), {n: torch.zeros_like(t) for n, t in w.items()}
            S = len(drawn)
            reach = [sum(beta**i for i in range(S - s)) for s in range(S)]  # of the gradient of step s, in rates
            for s, (x, y) in enumerate(drawn):
                loss = nn.functional.cross_entropy(net(x), y)
                grads = torch.autograd.grad(loss, list(net.parameters()))
                for (n, p), g in zip(net.named_parameters(), grads, strict=True):
                    seen[n] += reach[s] / sum(reach) * g
                    p.grad = g - own[k][n] + c[n]
                sgd.step()
            ends.append(copied(net.state_dict()))
            news.append(seen)
        c_was, w_was = c, w
        w = {n: t + eta_g * sum(e[n] - t for e in ends) / 3 for n, t in w_was.items()}
        c = {n: t + sum(new[n] - own[k][n] for k, new in zip(chosen, news, strict=True)) / 4 for n, t in c_was.items()}
        for k, new in zip(chosen, news, strict=True):
            own[k] = new
        assert_close_numbers(sim.state.server["shared"], w)
        assert_close_numbers(sim.state.server["control"], c)
        for k in range(4):
            for n, kept in sim.state.groups[0].kept["control"].items():
                assert_close(kept[k], own[k][n], **TIGHT)


@pytest.mark.long
def test_it_rests_where_the_mean_loss_does_and_fedavg_does_not() -> None:
    corrected, plain = slope_at_rest("scaffold"), slope_at_rest("fedavg")
    assert corrected < 1e-5 < 1e-2 < plain, (corrected, plain)


def test_statistics_are_averaged_plainly_and_have_no_control_variate() -> None:
    sim = simulate("scaffold", BATCHNORM, random_federation([4, 4, 4]), batch=4)
    play(sim, 1)
    assert not [n for n in sim.state.server["control"] if "running" in n or "num_batches" in n]
    avg = simulate("fedavg", BATCHNORM, random_federation([4, 4, 4]), batch=4)
    play(avg, 1)
    names = [n for n in avg.state.server["shared"] if "running" in n or "num_batches" in n]
    assert names
    assert_close_numbers(*({n: s.state.server["shared"][n] for n in names} for s in (sim, avg)))
    assert_same_numbers(*({n: s.state.server["shared"][n] for n in names if "num" in n} for s in (sim, avg)))
