"""The shared mathematics against numpy and against its identities."""

from __future__ import annotations

import pytest
import torch
from helpers import TIGHT, randn
from torch.func import vmap
from torch.testing import assert_close

from fedtune import address
from fedtune.errors import UserError
from fedtune.knowledge import class_means, etf, mean_by_count


def rows(n: int = 60, classes: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return randn(n, 5, seed=seed), torch.randint(classes - 1, (n,), generator=g), torch.rand(n, generator=g) > 0.3


def test_class_means_are_those_of_the_real_rows_and_zero_without_any() -> None:
    z, y, mask = rows()
    means, counts = class_means(z, y, mask, 4)
    for c in range(3):
        assert counts[c] == (mask & (y == c)).sum()
        assert_close(means[c], z[mask & (y == c)].mean(0), **TIGHT)
    assert counts[3] == 0 and (means[3] == 0).all() and not counts.is_floating_point()


def test_class_means_of_stacked_clients_are_those_of_each() -> None:
    parts = [rows(seed=s) for s in range(3)]
    stacked = [torch.stack(t) for t in zip(*parts, strict=True)]
    means, counts = vmap(lambda z, y, m: class_means(z, y, m, 4))(*stacked)
    for k, part in enumerate(parts):
        want, n = class_means(*part, 4)
        assert_close(means[k], want, **TIGHT)
        assert torch.equal(counts[k], n)


@pytest.mark.parametrize("clients", [1, 4, 7])
def test_the_mean_by_count_is_the_mean_over_all_rows_however_they_are_dealt(clients: int) -> None:
    z, y, mask = rows()
    parts = [class_means(z[k::clients], y[k::clients], mask[k::clients], 4) for k in range(clients)]
    mean, seen = mean_by_count(torch.stack([p for p, _ in parts]), torch.stack([n for _, n in parts]))
    whole, counts = class_means(z, y, mask, 4)
    assert_close(mean, whole, **TIGHT)
    assert torch.equal(seen, counts > 0) and seen.tolist() == [True, True, True, False]


@pytest.mark.parametrize(("classes", "dimension"), [(2, 1), (2, 2), (4, 3), (10, 9), (10, 10), (10, 50), (100, 128)])
def test_frame_columns_have_length_one_equal_angles_and_sum_to_zero(classes: int, dimension: int) -> None:
    """GFPL Eq. 3: Z^T Z = C/(C-1) I - 1/(C-1) 1 1^T."""
    frame = etf(classes, dimension, address.stream(0, "etf"))
    want = classes / (classes - 1) * torch.eye(classes, dtype=torch.float64) - 1 / (classes - 1)
    assert frame.shape == (dimension, classes) and frame.dtype == torch.float64
    assert_close(frame.T @ frame, want, **TIGHT)
    assert_close(frame.sum(1), torch.zeros(dimension, dtype=torch.float64), **TIGHT)


def test_one_address_one_frame() -> None:
    a, b, c = (etf(5, 8, address.stream(seed, "etf")) for seed in (0, 0, 1))
    assert torch.equal(a, b) and not torch.allclose(a, c, atol=0.01)


def test_too_few_dimensions_hold_no_frame() -> None:
    rule = r"10 classes needs at least 9 dimensions, but got 8; .*--features 10.*projection=10"
    with pytest.raises(UserError, match=rule):
        etf(10, 8, address.stream(0))
