"""States as flat dictionaries of numbers in float64, and how close two of them are."""

from typing import Any

import torch
from torch import Tensor
from torch.testing import assert_close

from fedtune.conformance.subject import copied as copied
from fedtune.conformance.subject import numbers as numbers
from fedtune.core.trees import named as flat  # noqa: F401

TIGHT = {"rtol": 0, "atol": 1e-12}


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def assert_close_numbers(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    assert got.keys() == want.keys()
    for name, t in want.items():
        assert_close(got[name], t, **TIGHT, msg=lambda m, n=name: f"{n}: {m}")


def assert_same_numbers(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    assert got.keys() == want.keys()
    apart = [name for name, t in want.items() if not torch.equal(got[name], t)]
    assert not apart, f"not bit for bit the same: {apart}"


def assert_close_rows(got: list[dict[str, Any]], want: list[dict[str, Any]]) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            assert a[name] == b[name] or abs(a[name] - b[name]) <= 1e-12, (name, a[name], b[name])
