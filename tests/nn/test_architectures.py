"""Sizes and shapes of the networks, and that building one touches nothing else."""

import pytest
import torch
from support.numbers import TIGHT, randn
from torch import nn
from torch.func import functional_call, vmap
from torch.testing import assert_close

from fedtune.core.errors import UserError
from fedtune.experiment.algorithm import Model
from fedtune.nn import architectures, catalogue

SMALL = (1, 8, 8)
FITTING: dict[str, tuple[int, ...]] = dict.fromkeys(("mlp", "cnn8", "fedgen-cnn", "fedgenp-cnn"), SMALL)
FITTING |= {"celeba-cnn": (3, 84, 84), "resnet18": (3, 32, 32)}


def parameters(name: str, shape: architectures.Shape, classes: int = 10, features: int = 0) -> int:
    return sum(p.numel() for p in architectures.build(name, shape, classes, features).parameters())


@pytest.mark.parametrize(
    ("name", "shape", "number"),
    [
        ("fedproto-cnn", (1, 28, 28), 21_840),
        ("fedgen-cnn", (1, 28, 28), 26_434),
        ("fedgenp-cnn", (1, 28, 28), 26_434),
        ("mcmahan-cnn", (1, 28, 28), 582_026),
        ("mcmahan-cnn", (3, 32, 32), 878_538),
        ("mlp", (1, 28, 28), 784 * 128 + 128 + 128 * 64 + 64 + 650),
        ("cnn8", SMALL, 160 + 16 * 32 * 9 + 32 + 128 * 64 + 64 + 650),
        # torchvision's 11,689,512 without its classifier, Linear(512, 128) and the head
        ("resnet18", (3, 32, 32), 11_689_512 - 513_000 + 512 * 128 + 128 + 1_290),
        ("cnn8-wide", SMALL, 320 + 32 * 64 * 9 + 64 + 256 * 64 + 64 + 650),
        ("mcmahan-cnn", (3, 64, 64), 5_694_600 - 190 * 513),
        # torchvision's with a head of 512 features
        ("googlenet-pooled", (3, 32, 32), 5_605_034),
        ("mobilenet-pooled", (3, 32, 32), 2_229_002),
        ("resnet18-pooled", (3, 32, 32), 11_181_642),
        ("resnet34-pooled", (3, 32, 32), 21_289_802),
        ("resnet50-pooled", (3, 32, 32), 23_513_162),
        ("resnet101-pooled", (3, 32, 32), 42_505_290),
        ("resnet152-pooled", (3, 32, 32), 58_148_938),
    ],
)
def test_as_many_parameters_as_the_papers_count(name: str, shape: architectures.Shape, number: int) -> None:
    assert parameters(name, shape) == number


D = {"mlp": 64, "cnn8": 64, "fedproto-cnn": 50, "mcmahan-cnn": 512, "resnet18": 128}  # the papers'
D |= dict.fromkeys(("fedgen-cnn", "fedgenp-cnn", "celeba-cnn"), 32)


@pytest.mark.parametrize(("name", "width"), D.items())
def test_body_gives_features_and_head_logits_and_the_width_can_be_chosen(name: str, width: int) -> None:
    shape = FITTING.get(name, (1, 28, 28))
    assert architectures.width(name, shape, 5) == width and architectures.width(name, shape, 5, 7) == 7
    for features, d in ((0, width), (7, 7)):
        net = architectures.build(name, shape, 5, features).eval()
        x = torch.zeros(2, *shape)
        z = net.body(x)
        assert z.shape == (2, d) and net(x).shape == (2, 5)
        assert isinstance(net.head, nn.Linear) and net.head.weight.shape == (5, d)
        assert [n for n, _ in net.named_children()] == ["body", "head"]


def test_features_are_after_a_relu_but_for_fedgens() -> None:
    for name in ("mlp", "cnn8", "fedgen-cnn", "fedgenp-cnn", "celeba-cnn"):
        shape = FITTING[name]
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
    assert parameters("celeba-cnn", (3, 84, 84), classes=2) == 25_954
    net = architectures.build("celeba-cnn", (3, 84, 84), 2).eval()
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


@pytest.mark.parametrize("name", FITTING)
def test_one_seed_one_network_and_the_global_random_state_stays(name: str) -> None:
    chance = torch.get_rng_state()
    a, b, c = (architectures.build(name, FITTING[name], 10, seed=s).state_dict() for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), chance)
    assert all(torch.equal(a[n], b[n]) for n in a)
    assert not torch.equal(a["head.weight"], c["head.weight"])


@pytest.mark.parametrize("name", ["fedproto-cnn", "mcmahan-cnn", "celeba-cnn"])
def test_a_network_that_does_not_fit_the_images_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"model '{name}' does not fit images of 1×8×8"):
        architectures.build(name, SMALL, 10)


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


def test_an_unknown_model_is_told_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown model 'cnn9': did you mean 'cnn8'"):
        catalogue.members("cnn9")


@pytest.mark.parametrize("name", ["mlp", "cnn8", "fedgen-cnn"])
def test_the_view_on_a_clients_tensors_is_the_network_with_these_values(name: str) -> None:
    form, other = (architectures.build(name, SMALL, 10, seed=s).double().eval() for s in (0, 1))
    x = randn(3, *SMALL)
    m = Model(form, dict(other.state_dict()))
    assert_close(m.head(m.body(x)), other(x), **TIGHT)
    assert_close(m.part("body")(x), other.body(x), **TIGHT)
    assert m["head.weight"] is m.tensors["head.weight"]


@pytest.mark.parametrize("name", ["mlp", "cnn8", "fedgen-cnn", "fedgenp-cnn", "celeba-cnn"])
def test_a_stack_of_networks_is_each_of_them(name: str) -> None:
    shape = FITTING[name]
    nets = [architectures.build(name, shape, 10, seed=s).double().eval() for s in range(3)]
    stacked = {n: torch.stack([net.state_dict()[n] for net in nets]) for n in nets[0].state_dict()}
    x = randn(3, 5, *shape)
    got = vmap(lambda t, v: functional_call(nets[0], t, (v,)))(stacked, x)
    for k, net in enumerate(nets):
        assert_close(got[k], net(x[k]), **TIGHT)
