"""The shared mathematics against numpy and against its identities."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.numbers import TIGHT, randn
from torch.func import vmap
from torch.testing import assert_close

from fedtune.core import randomness
from fedtune.core.errors import UserError
from fedtune.nn.divergences import kl
from fedtune.nn.prototypes import class_means, etf, mean_by_count, mean_distance, row_distance


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
    frame = etf(classes, dimension, randomness.stream(0, "etf"))
    want = classes / (classes - 1) * torch.eye(classes, dtype=torch.float64) - 1 / (classes - 1)
    assert frame.shape == (dimension, classes) and frame.dtype == torch.float64
    assert_close(frame.T @ frame, want, **TIGHT)
    assert_close(frame.sum(1), torch.zeros(dimension, dtype=torch.float64), **TIGHT)


def test_the_same_address_gives_the_same_frame() -> None:
    a, b, c = (etf(5, 8, randomness.stream(seed, "etf")) for seed in (0, 0, 1))
    assert torch.equal(a, b) and not torch.allclose(a, c, atol=0.01)


def test_too_few_dimensions_hold_no_frame() -> None:
    rule = r"10 classes needs at least 9 dimensions, but got 8; .*--features 10.*projection=10"
    with pytest.raises(UserError, match=rule):
        etf(10, 8, randomness.stream(0))


@pytest.mark.parametrize("how", ["l2", "mse"])
def test_the_distance_of_rows_by_numpy(how: str) -> None:
    a, b = randn(6, 5, seed=1), randn(6, 5, seed=2)
    want = np.linalg.norm(a.numpy() - b.numpy(), axis=1) if how == "l2" else ((a - b).numpy() ** 2).mean(1)
    assert_close(row_distance(a, b, how).numpy(), want, **TIGHT)


@pytest.mark.parametrize("how", ["l2", "mse"])
def test_the_distance_of_equal_rows_has_a_finite_gradient(how: str) -> None:
    a = randn(3, 5).requires_grad_()
    (grad,) = torch.autograd.grad(row_distance(a, a.detach(), how).sum(), a)
    assert (grad == 0).all()


@pytest.mark.parametrize("how", ["l2", "mse"])
def test_the_mean_distance_is_over_pairs_of_different_classes_that_have_a_prototype(how: str) -> None:
    protos, seen = randn(5, 3), torch.tensor([True, False, True, True, False])
    protos[~seen] = 1e6
    held = [0, 2, 3]
    norm = np.linalg.norm if how == "l2" else lambda v: np.mean(v**2)
    want = np.mean([norm((protos[i] - protos[j]).numpy()) for i in held for j in held if i != j])
    assert_close(mean_distance(protos, seen, how).item(), float(want), **TIGHT)
    assert mean_distance(protos, torch.tensor([True, False, False, False, False]), how) == 0
    assert mean_distance(protos, torch.zeros(5, dtype=torch.bool), how) == 0


def test_the_divergence_is_that_of_the_targets_distribution_from_the_others() -> None:
    target, logits = randn(6, 4, seed=1), randn(6, 4, seed=2)
    p, q = (torch.distributions.Categorical(logits=t) for t in (target, logits))
    assert_close(kl(target, logits), torch.distributions.kl_divergence(p, q).mean(), **TIGHT)
    assert_close(kl(target, logits), F.kl_div(logits.log_softmax(1), target.softmax(1), reduction="batchmean"), **TIGHT)
    assert abs(kl(target, logits) - kl(logits, target)) > 0.01 and kl(target, target + 3).abs() < 1e-12
