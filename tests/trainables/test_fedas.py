"""FedAS: alignment and Fisher information by hand."""

import copy

import pytest
import torch
from support.by_hand import mean_accuracy, step
from support.helpers import DIGITS, client_net, own_rows, play, random_federation, record_uploads, simulate
from support.numbers import TIGHT
from torch import nn, optim
from torch.testing import assert_close


def aligned(net: nn.Module, protos: torch.Tensor, x: torch.Tensor, y: torch.Tensor, lr: float, steps: int) -> None:
    optimizer = optim.SGD(net.body.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        z = net.body(x)
        sum(nn.functional.mse_loss(z[y == c], protos[c].expand_as(z[y == c])) for c in y.unique()).backward()
        optimizer.step()


@pytest.mark.parametrize("model", ["mlp", "cnn8"])
@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_three_rounds_by_hand(executor: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With B = n each batch is all rows, in whatever order; rows come in several blocks."""
    lr, rate, data = 0.2, 0.4, random_federation([6, 6], [[0, 1], [1, 2, 3]])
    config = {"align_epochs": 2, "align_lr": rate, "lr": lr, "momentum": 0.5, "batch": 6}
    sim = simulate("fedas", DIGITS.override(model=model, weight_decay=0.01), data, executor=executor, **config)
    nets, protos, ups = [client_net(sim, k) for k in range(2)], [None, None], record_uploads(sim)
    monkeypatch.setattr("fedtune.trainables.fedas.AT_ONCE", 4 * sum(p.numel() for p in nets[0].parameters()))
    for _ in range(3):
        fisher = []
        for k, net in enumerate(nets):
            x, y = own_rows(sim, k)
            if protos[k] is not None:
                aligned(net, protos[k], x, y, rate, 2)
            optimizer = optim.SGD(net.parameters(), lr=lr, momentum=0.5, weight_decay=0.01)
            step(optimizer, nn.functional.cross_entropy(net(x), y))
            with torch.no_grad():
                z = net.body(x)
            protos[k] = {int(c): z[y == c].mean(0) for c in y.unique()}
            protos[k] = torch.stack([protos[k].get(c, torch.zeros(z.shape[1]).double()) for c in range(4)])
            squares = []
            for i in range(6):
                loss = nn.functional.cross_entropy(net(x[i : i + 1]), y[i : i + 1])
                squares.append(sum((g**2).sum() for g in torch.autograd.grad(loss, list(net.parameters()))))
            fisher.append(torch.stack(squares).mean())
            net.zero_grad()
        bodies = [copy.deepcopy(net.body.state_dict()) for net in nets]
        share = torch.stack(fisher) / sum(fisher)
        assert abs(share[0] - 0.5) > 1e-3
        for net in nets:
            net.body.load_state_dict({n: share[0] * bodies[0][n] + share[1] * bodies[1][n] for n in bodies[0]})
        row = play(sim, 1)[0]
        assert_close(ups[-1]["fisher"], torch.stack(fisher), rtol=0, atol=1e-10)
        for n, t in nets[0].body.state_dict().items():
            assert_close(sim.state.server["shared"][f"body.{n}"], t, **TIGHT)
        scored = copy.deepcopy(nets)
        for k, net in enumerate(scored):
            aligned(net, protos[k], *own_rows(sim, k), rate, 2)
        assert abs(row["test_acc"] - mean_accuracy(sim, "test", lambda k, x, nets=scored: nets[k](x))) < 1e-12


def test_a_client_that_comes_for_the_first_time_is_not_aligned() -> None:
    scenario, data = DIGITS.override(participation=0.5, batch=6), random_federation([6] * 4)
    runs = [simulate("fedas", scenario, data, align_epochs=n, weighing="rows", align_lr=0.5) for n in (0, 3)]
    for sim in runs:
        play(sim, 1)
    came = runs[0].state.groups[0].kept["seen"]
    assert sorted(came.tolist()) == [0, 0, 1, 1]
    with torch.no_grad():
        one = runs[1].setup.algorithm
        m = type("M", (), {"kept": {"protos": torch.ones(4, 12), "seen": torch.zeros(())}, "body": lambda self, x: x})()
        batch = type("B", (), {"x": torch.zeros(3, 12), "y": torch.tensor([0, 1, 1])})()
        assert one.aligned(m, batch, {}) == 0
        m.kept["seen"] = torch.ones(())
        assert one.aligned(m, batch, {}) == 2  # a mean of 1 for each of two classes
