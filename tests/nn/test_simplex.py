"""The least point of a quadratic function on the simplex: closed forms, and SciPy's general solver."""

import numpy as np
import torch
from scipy.optimize import minimize
from support.numbers import TIGHT, randn
from torch.testing import assert_close

from fedtune.nn.simplex import least_mixtures, least_on_simplex


def test_a_diagonal_matrix_weighs_by_its_inverse() -> None:
    variance = torch.tensor([1.0, 2.0, 4.0, 0.5], dtype=torch.float64)
    for scale in (1e-8, 1.0, 1e8):
        assert_close(least_on_simplex(torch.diag(scale * variance)), (1 / variance) / (1 / variance).sum(), **TIGHT)


def test_it_satisfies_the_optimality_conditions_and_is_the_general_solvers() -> None:
    empty = 0

    def value(w: np.ndarray, p: np.ndarray) -> float:
        return float(w @ p @ w)

    for seed in range(20):
        root = randn(7, 5, seed=seed)
        p = root @ root.T + 0.01 * torch.eye(7, dtype=torch.float64)
        a = least_on_simplex(p)
        assert (a >= 0).all() and abs(a.sum() - 1) < 1e-12
        slope, least = p @ a, float(a @ p @ a)
        assert (slope >= least - 1e-9).all() and (slope[a > 1e-9] - least).abs().max() < 1e-9
        empty += int((a == 0).sum())
        found = minimize(
            value,
            [1 / 7] * 7,
            args=(p.numpy(),),
            bounds=[(0, 1)] * 7,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        )
        assert least <= found.fun + 1e-9
    assert empty


def test_clients_that_are_alike_share_and_a_far_one_stays_alone() -> None:
    h = torch.tensor([[0.0, 0.0], [0.0, 0.0], [9.0, 9.0]], dtype=torch.float64)
    got = least_mixtures(h, torch.tensor([1e-6, 3e-6, 1e-6], dtype=torch.float64))
    assert_close(got[0], got[1], **TIGHT)
    assert_close(got[0], torch.tensor([0.75, 0.25, 0.0], dtype=torch.float64), rtol=0, atol=1e-6)
    assert got[2, 2] > 1 - 1e-6
    assert torch.equal(least_mixtures(h[:1], h[:1, 0]), torch.ones(1, 1, dtype=torch.float64))
    assert least_on_simplex(torch.zeros(3, 3, dtype=torch.float64)).sum() == 1
