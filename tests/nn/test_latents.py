"""FedKTL's server: the discrepancy of two samples by loops, its steps by torch.optim, and what the generator gives."""

import math

import pytest
import torch
import torch.nn.functional as F
from support.numbers import TIGHT, randn
from torch.testing import assert_close

from fedtune.core import randomness
from fedtune.core.trees import Ragged
from fedtune.nn import latents
from fedtune.nn.divergences import mmd


def by_loops(x: torch.Tensor, y: torch.Tensor, widths: tuple[float, ...]) -> float:
    def mean(a: torch.Tensor, b: torch.Tensor) -> float:
        kernels = [sum(math.exp(-float(((p - q) ** 2).sum()) / 2 / w) for w in widths) for p in a for q in b]
        return sum(kernels) / len(kernels)

    return mean(x, x) + mean(y, y) - 2 * mean(x, y)


@pytest.mark.parametrize("sizes", [(5, 5), (3, 8), (1, 1)])
def test_mmd_by_loops_and_nothing_for_a_sample_and_itself(sizes: tuple[int, int]) -> None:
    x, y = (randn(n, 6, seed=i) for i, n in enumerate(sizes))
    widths = (0.5, 3.0)
    assert_close(mmd(x, y, widths).item(), by_loops(x, y, widths), **TIGHT)
    assert abs(mmd(x, x, widths).item()) < 1e-15 < mmd(x, y, widths).item()


def test_generated_rows_of_normal_latents_have_mean_zero_and_variance_one() -> None:
    generator = latents.new_generator(64, 500, torch.Generator().manual_seed(0))
    rows = latents.generate(generator, torch.randn(4000, 64, generator=torch.Generator().manual_seed(1)))
    assert rows.shape == (4000, 500)
    assert abs(rows.mean()) < 0.05 and abs(rows.var() - 1) < 0.1


def test_aligning_is_torchs_adam_on_the_same_batches_and_draws() -> None:
    c, w, n, lr, lam = 4, 7, 9, 0.05, 0.6
    net = {k: t.double() for k, t in latents.new_transformer(c, w, 0).items()}
    p, y = F.normalize(randn(n, c, seed=1), dim=1), torch.arange(n) % c
    none = Ragged(randn(c, w), torch.zeros(c, dtype=torch.bool))
    got, centres = latents.align(net, none, p, y, 3, 4, lr, lam, randomness.stream(0, "test"))

    stream = randomness.stream(0, "test")
    order = [rows for _ in range(3) for rows in torch.randperm(n, generator=stream).split(4)]
    mine = {k: t.clone().requires_grad_() for k, t in net.items()}
    begin = torch.stack([latents.transform(net, p[y == k]).mean(0) for k in range(c)])
    moved = begin.clone().requires_grad_()
    first, second = {}, {}
    leaves = [*mine.values(), moved]
    for step, rows in enumerate(order, 1):
        h = F.layer_norm(
            p[rows] @ mine["first.weight"].T + mine["first.bias"], (c,), mine["norm.weight"], mine["norm.bias"]
        )
        q = h.relu() @ mine["last.weight"].T + mine["last.bias"]
        drawn = torch.randn(len(rows), w, generator=stream, dtype=torch.float64)
        loss = mmd(q, drawn, (10.0, 15.0, 20.0, 50.0)) + lam * ((q - moved[y[rows]]) ** 2).mean()
        for i, (t, g) in enumerate(zip(leaves, torch.autograd.grad(loss, leaves), strict=True)):
            first[i] = 0.9 * first.get(i, 0) + 0.1 * g
            second[i] = 0.999 * second.get(i, 0) + 0.001 * g**2
            with torch.no_grad():
                t -= lr * first[i] / (1 - 0.9**step) / ((second[i] / (1 - 0.999**step)).sqrt() + 1e-8)
    for k, t in mine.items():
        assert_close(got[k], t.detach(), rtol=0, atol=1e-10)
        assert (t - net[k]).abs().max() > 1e-3
    assert centres.present.all()
    for k in range(c):
        assert_close(centres.values[k], latents.transform(got, p[y == k]).mean(0), rtol=0, atol=1e-12)
