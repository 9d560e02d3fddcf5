"""The networks of the papers, layer by layer; what all have in common is in test_nets.py."""

import pytest
import torch
from support.numbers import TIGHT, randn
from torch import nn
from torch.testing import assert_close

from fedtune.core.errors import UserError
from fedtune.experiment.algorithm import Model
from fedtune.nn import architectures, catalogue

SMALL = (1, 8, 8)


def test_features_are_after_a_relu_but_for_fedgens() -> None:
    for name in ("mlp", "cnn8", "fedgen-cnn", "fedgenp-cnn", "celeba-cnn"):
        shape = (3, 84, 84) if name == "celeba-cnn" else SMALL
        z = architectures.build(name, shape, 10, 40, seed=1).double().eval().body(randn(20, *shape))
        assert (z.min() >= 0) == (name not in ("fedgen-cnn", "celeba-cnn"))


def test_fedgenps_network_is_fedgens_and_a_relu() -> None:
    plain, rectified = (
        architectures.build(name, (1, 28, 28), 10, seed=3).eval() for name in ("fedgen-cnn", "fedgenp-cnn")
    )
    assert [t.shape for t in plain.state_dict().values()] == [t.shape for t in rectified.state_dict().values()]
    x = randn(4, 1, 28, 28).float()
    assert torch.equal(plain.body(x).relu(), rectified.body(x))
    assert torch.equal(plain.head.weight, rectified.head.weight)


def test_celebas_network_brings_84_pixels_down_to_one() -> None:
    net = architectures.build("celeba-cnn", (3, 84, 84), 2).eval()
    assert sum(p.numel() for p in net.parameters()) == 25_954
    x = torch.zeros(1, 3, 84, 84)
    sides = []
    for layer in net.body:
        x = layer(x)
        sides += [x.shape[-1]] if x.ndim == 4 and not isinstance(layer, nn.BatchNorm2d | nn.ReLU) else []
    assert sides == [42, 21, 11, 5, 3, 1] and net.body[-1].in_features == 64


def test_resnet_ends_in_the_added_layer_and_takes_one_channel_too() -> None:
    body = architectures.build("resnet18", (3, 32, 32), 10).body
    added = body[1]
    assert isinstance(added, nn.Linear) and (added.in_features, added.out_features) == (512, 128)
    assert isinstance(body[2], nn.ReLU) and body[0].conv1.weight.shape == (64, 3, 7, 7)
    assert architectures.build("resnet18", (1, 28, 28), 10).body[0].conv1.weight.shape == (64, 1, 7, 7)


@pytest.mark.parametrize("name", catalogue.FAMILIES)
def test_the_architectures_of_a_family_have_one_width(name: str) -> None:
    members = catalogue.members(name)
    assert len(members) == int(name[-1]) and len({catalogue.WIDTHS[m] for m in members}) == 1
    assert [architectures.width(name, (3, 32, 32), 10, d) for d in (0, 7)] == [catalogue.WIDTHS[members[0]], 7]
    with pytest.raises(UserError, match=f"unknown model '{name}'"):  # it is several
        architectures.build(name, (3, 32, 32), 10)


WIDE = {"googlenet": 1024, "mobilenet": 1280, "resnet10": 512, "resnet50": 2048}


@pytest.mark.parametrize(("name", "wide"), WIDE.items())
def test_features_of_a_pooled_network_are_means_of_neighbours(name: str, wide: int) -> None:
    net = architectures.build(f"{name}-pooled", (3, 32, 32), 10, seed=1).double().eval()
    x = randn(2, 3, 32, 32)
    raw = net.body[0](x)
    assert raw.shape == (2, wide) and not any(isinstance(m, nn.Dropout) and m.p for m in net.modules())
    want = [[row[i * wide // 512 : -(-(i + 1) * wide // 512)].mean().item() for i in range(512)] for row in raw]
    assert_close(net.body(x), torch.tensor(want, dtype=torch.float64), **TIGHT)
    grey = architectures.build(f"{name}-pooled", (1, 28, 28), 10, seed=1).eval()
    first, plain = (next(m for m in n.modules() if isinstance(m, nn.Conv2d)) for n in (grey, net))
    assert first.weight.shape == (len(plain.weight), 1, *plain.weight.shape[2:]) and first.stride == plain.stride
    assert grey(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize("name", ["mlp", "cnn8", "fedgen-cnn"])
def test_the_view_on_a_clients_tensors_is_the_network_with_these_values(name: str) -> None:
    form, other = (architectures.build(name, SMALL, 10, seed=s).double().eval() for s in (0, 1))
    x = randn(3, *SMALL)
    m = Model(form, dict(other.state_dict()))
    assert_close(m.head(m.body(x)), other(x), **TIGHT)
    assert_close(m.part("body")(x), other.body(x), **TIGHT)
    assert m["head.weight"] is m.tensors["head.weight"]
