"""Moments of classes, pooled over clients, and the fit of a head: by numpy and PyTorch's own."""

import numpy as np
import pytest
import torch
from support.numbers import TIGHT, randn
from torch import nn
from torch.func import vmap
from torch.testing import assert_close

from fedtune.nn.heads import descend, moments, pooled_moments, roots, symmetric, upper

C, D = 4, 5


def rows() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Three clients of 9, 12 and 7 rows, padded: class 3 is nobody's, class 2 has one row at one client."""
    y = torch.tensor([[0, 1] * 6, [0, 0, 1] * 4, [1, 1, 0, 2] * 3])
    y[2, :7] = torch.tensor([0, 1, 1, 0, 2, 1, 1])
    mask = torch.arange(12) < torch.tensor([9, 12, 7])[:, None]
    return randn(3, 12, D), y, mask


def test_moments_are_numpys_and_padding_is_not_read() -> None:
    z, y, mask = rows()
    means, covariances, counts = vmap(moments, (0, 0, 0, None))(torch.where(mask[..., None], z, 1e3), y, mask, C)
    for k in range(3):
        for c in range(C):
            own = z[k][mask[k] & (y[k] == c)].numpy()
            assert counts[k, c] == len(own)
            want = own.mean(0) if len(own) else np.zeros(D)
            spread = np.cov(own.T) if len(own) > 1 else np.zeros((D, D))
            assert_close(means[k, c].numpy(), want, **TIGHT)
            assert_close(covariances[k, c].numpy(), spread, **TIGHT)


def test_pooled_moments_are_those_of_all_rows_together() -> None:
    z, y, mask = rows()
    mean, covariance = pooled_moments(*vmap(moments, (0, 0, 0, None))(z, y, mask, C))
    for c in range(3):
        own = z[mask & (y == c)].numpy()
        assert_close(mean[c].numpy(), own.mean(0), **TIGHT)
        assert_close(covariance[c].numpy(), np.cov(own.T) if len(own) > 1 else np.zeros((D, D)), **TIGHT)
    assert not mean[3].any() and not covariance[3].any()


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_the_fit_is_pytorchs_over_every_row_once_an_epoch(kind: str) -> None:
    x, y, stream = randn(10, D), torch.arange(10) % C, torch.Generator().manual_seed(3)
    layer = nn.Linear(D, C).double()
    start = layer.weight.detach().clone(), layer.bias.detach().clone()
    got = descend(*start, x, y, 2, 4, 0.3, torch.Generator().manual_seed(3), kind)
    optimizer = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[kind](layer.parameters(), lr=0.3)
    for _ in range(2):
        for batch in torch.randperm(10, generator=stream).split(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(layer(x[batch]), y[batch]).backward()
            optimizer.step()
    assert_close(got[0], layer.weight.detach(), **TIGHT)
    assert_close(got[1], layer.bias.detach(), **TIGHT)
    assert not torch.equal(got[0], start[0])


def test_roots_are_cholesky_factors_and_a_floor_rises_where_there_is_none() -> None:
    a = randn(3, D, 3 * D)
    covariances = torch.cat([a @ a.mT, torch.diag(torch.tensor([1.0] * (D - 1) + [-0.02])).double()[None]])
    floors = torch.full((4,), 1e-3, dtype=torch.float64)
    factors, used = roots(covariances, floors)
    assert_close(used, torch.tensor([1e-3, 1e-3, 1e-3, 0.1], dtype=torch.float64), **TIGHT)
    whole = covariances + used[:, None, None] * torch.eye(D, dtype=torch.float64)
    assert_close(factors @ factors.mT, whole, **TIGHT)
    assert roots(covariances * torch.nan, floors)[0].isnan().all()


def test_covariances_of_almost_one_direction_have_roots_at_the_smallest_floor() -> None:
    """In single precision, as clients send them: without more than ε many cannot be factorised."""
    stream = torch.Generator().manual_seed(0)
    rows = torch.randn(50, 8, 1, generator=stream) * torch.randn(50, 1, 32, generator=stream)
    rows += 1e-4 * torch.randn(50, 8, 32, generator=stream)
    apart = rows - rows.mean(1, keepdim=True)
    covariances = apart.mT @ apart / 7
    least = 1e-9 * covariances.diagonal(dim1=1, dim2=2).mean(1)
    failed = torch.linalg.cholesky_ex(covariances.double() + least[:, None, None] * torch.eye(32)).info > 0
    factors, used = roots(covariances, least)
    assert failed.any() and torch.equal(used > least.double(), failed) and factors.isfinite().all()


def test_of_a_symmetric_matrix_the_upper_triangle_is_all() -> None:
    a = randn(2, 3, D, D)
    triangles = upper(a + a.mT)
    assert triangles.shape == (2, 3, D * (D + 1) // 2) and torch.equal(symmetric(triangles, D), a + a.mT)
