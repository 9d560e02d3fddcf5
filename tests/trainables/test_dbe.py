"""DBE: rounds of two clients by hand, the running mean and the offsets; what is sent."""

import pytest
import torch
from support.by_hand import batches, mean_accuracy, mean_of
from support.helpers import DIGITS, client_net, play, random_federation, simulate
from support.numbers import TIGHT, assert_close_numbers, copied
from torch import Tensor, nn
from torch.testing import assert_close


@pytest.mark.parametrize("executor", ["stack", "loop"])
@pytest.mark.parametrize("rho", [0.3, 1.0])
def test_four_rounds_by_hand(rho: float, executor: str) -> None:
    eta, kappa, rate, rows = 0.1, 2.0, 0.5, [4, 11]
    config = {"kappa": kappa, "mean_momentum": rho, "offset_rate": rate, "lr": eta, "momentum": 0.0}
    sim = simulate("dbe", DIGITS, random_federation(rows), executor=executor, **config)
    net = client_net(sim, 0)
    w, offsets = copied(sim.state.server["shared"]), [torch.zeros(12, dtype=torch.float64) for _ in rows]
    g = None
    for t in (1, 2, 3, 4):
        ends, means = [], []
        for k in range(2):
            net.load_state_dict(copied(w))
            running, offset = torch.zeros(12, dtype=torch.float64), offsets[k].clone().requires_grad_()
            for x, y in batches(sim, t, k):
                z = net.body(x)
                running = (1 - rho) * running.detach() + rho * z.mean(0)
                if g is None:
                    loss = nn.functional.cross_entropy(net.head(z), y)
                else:
                    loss = nn.functional.cross_entropy(net.head(z + offset), y)
                    loss = loss + kappa * (0.5 * (running - g) ** 2).mean()
                leaves = [*net.parameters(), *([] if g is None else [offset])]
                grads = torch.autograd.grad(loss, leaves)
                with torch.no_grad():
                    for p, d in zip(leaves, grads, strict=True):
                        p -= eta * (rate if p is offset else 1) * d
            ends.append(copied(net.state_dict()))
            means.append(running.detach())
            offsets[k] = offset.detach()
        play(sim, 1)
        w = mean_of(ends, rows)
        g = (4 * means[0] + 11 * means[1]) / 15 if g is None else g  # of round 1, and never again
        assert_close_numbers(sim.state.server["shared"], w)
        assert_close(sim.state.server["mean"].values[0], g, **TIGHT)
        for k in range(2):
            assert_close(sim.state.groups[0].tensors["offset.offset"][k], offsets[k], **TIGHT)


def test_a_client_is_scored_with_its_own_offset() -> None:
    data = random_federation([12, 12], [[0, 1], [2, 3]], other=6)
    sim = simulate("dbe", DIGITS, data, lr=0.1, offset_rate=10.0, kappa=0.1)
    row, offsets = play(sim, 3)[-1], sim.state.groups[0].tensors["offset.offset"]
    assert offsets.abs().amax(1).min() > 1e-3

    def logits(k: int, x: Tensor) -> Tensor:
        net = client_net(sim, k).eval()
        return net.head(net.body(x) + offsets[k])

    assert_close(row["test_acc"], mean_accuracy(sim, "test", logits), **TIGHT)
