"""APFL: rounds by hand, with a fixed α and with one that adapts."""

import pytest
import torch
from support.by_hand import assert_own, common_model
from support.helpers import DIGITS, client_net, own_rows, play, random_federation, simulate
from support.numbers import assert_close_numbers
from torch import nn
from torch.func import functional_call


@pytest.mark.parametrize("mixed", ["weights", "logits"])
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_three_rounds_by_hand(executor: str, adaptive: bool, mixed: str) -> None:
    """With B = n each batch is all rows, in whatever order."""
    lr, decay, config = 0.2, 0.3, {"mixed": mixed, "adaptive": adaptive, "mix": 0.6, "momentum": 0.0, "batch": 6}
    data = random_federation([6, 6])
    sim = simulate("apfl", DIGITS, data, executor=executor, mix_decay=decay, lr=lr, local_steps=2, **config)
    net = client_net(sim, 0)
    start = {n: t.detach().clone() for n, t in net.named_parameters()}
    common, own, alphas = start, [dict(start), dict(start)], [torch.tensor(0.6, dtype=torch.float32).double()] * 2
    if not adaptive:
        alphas = [torch.tensor(0.6, dtype=torch.float64)] * 2
    for _ in range(3):
        ends = []
        for k in range(2):
            w, (x, y) = dict(common), own_rows(sim, k)
            for _ in range(2):
                v = {n: t.requires_grad_() for n, t in own[k].items()}
                alpha = alphas[k].clone().requires_grad_()
                w = {n: t.detach().requires_grad_() for n, t in w.items()}
                if mixed == "weights":
                    mean = {n: alpha * v[n] + (1 - alpha) * w[n].detach() for n in v}
                    logits = functional_call(net, mean, (x,))
                else:
                    at_w = functional_call(net, w, (x,)).detach()
                    logits = alpha * functional_call(net, v, (x,)) + (1 - alpha) * at_w
                loss = nn.functional.cross_entropy(logits, y)
                *slopes, of_alpha = torch.autograd.grad(loss, [*v.values(), alpha])
                plain = torch.autograd.grad(
                    nn.functional.cross_entropy(functional_call(net, w, (x,)), y), list(w.values())
                )
                own[k] = {n: (v[n] - lr * g).detach() for n, g in zip(v, slopes, strict=True)}
                w = {n: (w[n] - lr * g).detach() for n, g in zip(w, plain, strict=True)}
                if adaptive:
                    alphas[k] = (alpha - lr * (of_alpha + decay * alpha)).detach().clamp(0, 1)
            ends.append(w)
        common = {n: (ends[0][n] + ends[1][n]) / 2 for n in common}
        play(sim, 1)
        assert_close_numbers(common_model(sim), common)
        assert_own(sim, [own[k] | {"alpha.own": alphas[k]} for k in range(2)])
    if adaptive:
        assert 0 < alphas[0] != alphas[1] < 1
    assert any("alpha" in n for n in sim.state.groups[0].tensors) == adaptive
