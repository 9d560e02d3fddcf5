"""Moments of classes, pooled over clients, and the fit of a head: by numpy and PyTorch's own."""

from __future__ import annotations

import numpy as np
import torch
from support.helpers import TIGHT, randn
from torch import nn
from torch.func import vmap
from torch.testing import assert_close

from fedtune.nn.heads import descend, moments, pooled_moments

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


def test_the_fit_is_pytorchs_plain_sgd_over_every_row_once_an_epoch() -> None:
    x, y, stream = randn(10, D), torch.arange(10) % C, torch.Generator().manual_seed(3)
    layer = nn.Linear(D, C).double()
    start = layer.weight.detach().clone(), layer.bias.detach().clone()
    got = descend(*start, x, y, 2, 4, 0.3, torch.Generator().manual_seed(3))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.3)
    for _ in range(2):
        for batch in torch.randperm(10, generator=stream).split(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(layer(x[batch]), y[batch]).backward()
            optimizer.step()
    assert_close(got[0], layer.weight.detach(), **TIGHT)
    assert_close(got[1], layer.bias.detach(), **TIGHT)
    assert not torch.equal(got[0], start[0])
