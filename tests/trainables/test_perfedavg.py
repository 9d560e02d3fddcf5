"""Per-FedAvg: both orders by hand, and the Hessian by differentiating twice."""

import pytest
import torch
from support.by_hand import slope
from support.helpers import DIGITS, client_draws, client_net, own_rows, play, random_federation, simulate
from support.tuned import tuned_scores
from torch import Tensor, nn
from torch.func import functional_call
from torch.testing import assert_close


def moved(at: dict[str, Tensor], by: float, along: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: t + by * along[n] for n, t in at.items()}


@pytest.mark.parametrize("executor", ["stack", "loop"])
@pytest.mark.parametrize("batches", ["separate", "same"])
@pytest.mark.parametrize("hessian", ["none", "difference"])
def test_two_rounds_by_hand(hessian: str, batches: str, executor: str) -> None:
    alpha, delta, lr = 0.3, 0.01, 0.2
    config = {"hessian": hessian, "batches": batches, "inner_lr": alpha, "delta": delta, "executor": executor}
    sim = simulate(
        "perfedavg", DIGITS, random_federation([7, 7]), lr=lr, momentum=0.0, batch=3, local_steps=2, **config
    )
    taken = 1 if batches == "same" else 2 if hessian == "none" else 3
    for t in (1, 2):
        ends = []
        for k in range(2):
            net, f = client_net(sim, k), sim.setup.federation
            w = dict(net.named_parameters())
            drawn = client_draws(sim, t, k).rows[0]
            assert drawn.shape == (2, 3 * taken)
            for rows in drawn:
                parts = [(f.x[one], f.y[one]) for one in rows.split(3)] * 3
                away = moved(w, -alpha, slope(net, w, *parts[0], create_graph=True))
                g = slope(net, away, *parts[1], create_graph=True)
                step = g
                if hessian == "difference":
                    ahead, behind = (
                        slope(net, moved(w, by, g), *parts[2], create_graph=True) for by in (delta, -delta)
                    )
                    step = {n: g[n] - alpha * (ahead[n] - behind[n]) / (2 * delta) for n in g}
                w = {n: t.detach().requires_grad_() for n, t in moved(w, -lr, step).items()}
            ends.append(w)
        play(sim, 1)
        for n, mean in sim.state.server["shared"].items():
            assert_close(mean, (ends[0][n] + ends[1][n]).detach() / 2, rtol=0, atol=1e-11)


def test_a_small_difference_of_gradients_is_the_hessian() -> None:
    """(I - α ∇²f) g, by differentiating through the inner step."""
    alpha, rows = 0.3, random_federation([6])
    config = {"inner_lr": alpha, "delta": 1e-5, "batches": "same", "lr": 1.0, "momentum": 0.0, "batch": 6}
    sim = simulate("perfedavg", DIGITS.override(model="mlp"), rows, local_steps=1, **config)
    net, data = client_net(sim, 0), own_rows(sim, 0)
    w = dict(net.named_parameters())
    away = moved(w, -alpha, slope(net, w, *data, create_graph=True))
    loss = nn.functional.cross_entropy(functional_call(net, away, (data[0],)), data[1])
    through = dict(zip(w, torch.autograd.grad(loss, list(w.values())), strict=True))
    first = slope(net, away, *data, create_graph=True)
    play(sim, 1)
    for n, t in sim.state.server["shared"].items():
        assert_close(t, (w[n] - through[n]).detach(), rtol=0, atol=1e-8)
    assert max((through[n] - first[n]).abs().max() for n in w) > 1e-3  # the Hessian counts


@pytest.mark.parametrize("tune_epochs", [0, 3])
def test_scores_are_those_of_models_adapted_by_hand(tune_epochs: int) -> None:
    sim = simulate(
        "perfedavg", DIGITS, random_federation([8, 8]), batch=8, inner_lr=0.2, tune_epochs=tune_epochs, momentum=0.5
    )
    row, nets = play(sim, 2)[-1], [client_net(sim, k) for k in range(2)]
    for split in ("val", "test"):
        accuracy, loss = tuned_scores(sim, nets, split, "all", epochs=max(1, tune_epochs), lr=0.2, momentum=0.5)
        assert abs(row[f"{split}_acc"] - accuracy) < 1e-12
        if split == "val":
            assert abs(row["val_loss"] - loss) < 1e-12
