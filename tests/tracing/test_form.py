"""Nets of one form compute the same of the same tensors; whatever changes that is another form, or none."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.rows import first
from torch import nn

from fedtune.nn import architectures
from fedtune.nn.catalogue import WIDTHS, axes
from fedtune.tracing.purity import form_of


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.LeakyReLU(0.1), nn.Dropout(0.5))


@pytest.mark.parametrize("name", first(sorted(WIDTHS, key=lambda name: ("resnet" in name, name)), 8))
def test_the_seed_is_no_part_of_a_models_form(name: str) -> None:
    shape = {1: (16,), 2: (3, 64)}.get(axes(name)[-1], (3, 84, 84) if name == "celeba-cnn" else (3, 32, 32))
    a, b = (architectures.build(name, shape, 10, 0, seed) for seed in (0, 1))
    assert form_of(a) is not None
    assert form_of(a) == form_of(b)
    assert form_of(a) != form_of(architectures.build(name, shape, 11, 0, 0))


CHANGES: dict[str, Callable[[nn.Sequential], Any]] = {
    "a width": lambda m: m.insert(0, nn.Linear(5, 3)),
    "a slope": lambda m: setattr(m[2], "negative_slope", 0.2),
    "a share that is dropped": lambda m: setattr(m[3], "p", 0.1),
    "another layer": lambda m: m.__setitem__(2, nn.ReLU()),
    "a layer twice": lambda m: m.append(m[2]),
    "a frozen weight": lambda m: m[0].weight.requires_grad_(False),
    "a type": lambda m: m.double(),
    "no bias": lambda m: setattr(m[0], "bias", None),
    "a memory order": lambda m: setattr(m[0], "weight", nn.Parameter(torch.empty(3, 4).t())),
    "a constant": lambda m: m[0].register_buffer("scale", torch.ones(1), persistent=False),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_what_is_computed_changes_the_form(name: str) -> None:
    changed = net()
    assert form_of(changed) == form_of(net())
    CHANGES[name](changed)
    assert form_of(changed) is not None
    assert form_of(changed) != form_of(net())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_constants_of_any_type_count_with_their_values(dtype: torch.dtype) -> None:
    forms = []
    for value in (1, 2, 1):
        changed = net()
        changed.register_buffer("scale", torch.tensor([value], dtype=dtype), persistent=False)
        forms.append(form_of(changed))
    assert forms[0] == forms[2] != forms[1] and forms[0] is not None


def test_a_net_without_values_yet_has_no_form() -> None:
    assert form_of(nn.Sequential(nn.LazyLinear(3))) is None


def test_two_places_of_one_tensor_are_told_from_two_tensors() -> None:
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    assert form_of(tied) != form_of(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m[0].register_forward_hook(lambda *_: None),
        lambda m: setattr(m[0], "seen", object()),
        lambda m: setattr(m[0], "scale", torch.ones(1)),
    ],
)
def test_what_cannot_be_told_has_no_form_of_its_own(change: Callable[[nn.Sequential], Any]) -> None:
    a, b = net(), net()
    change(a), change(b)
    assert form_of(a) is None or form_of(a) != form_of(b)
