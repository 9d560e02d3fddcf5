"""A stack of clients computes what the clients compute one at a time, with PyTorch's own layers."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.testing import assert_close

from fedtune.nn import layers
from fedtune.nn.layers import Linear, MaxPool2x2, max_pool2x2, stacked_layout

K, B = 3, 4


def close(got: Tensor, want: Tensor) -> None:
    assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(params=["small", "large"])
def rule(request, monkeypatch):
    """Both ways that a stacked Linear can go, on weights small enough for a test."""
    monkeypatch.setattr(layers, "_LARGE_WEIGHT", 0 if request.param == "large" else 2**16)


def net(linear=Linear, pool=MaxPool2x2, bias=True):
    convolutions = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), pool(), nn.ReLU(), nn.Conv2d(3, 4, 2), nn.ReLU(), pool()
    )
    return nn.Sequential(*convolutions, nn.Flatten(), linear(8, 5, bias), nn.ReLU(), linear(5, 3, bias)).double()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layout", [stacked_layout, lambda x: x])
def test_a_stack_equals_one_client_at_a_time(rule, layout, bias):
    nets = [net(nn.Linear, lambda: nn.MaxPool2d(2), bias) for _ in range(K)]
    x, y = torch.randn(K, B, 2, 7, 10).double(), torch.randint(3, (K, B))
    stack, one = x.clone().requires_grad_(), x.clone().requires_grad_()
    ours, (weights, _) = net(bias=bias), stack_module_state(nets)

    def loss(w, x, y):
        return F.cross_entropy(functional_call(ours, w, (x,)), y)

    got = vmap(loss)(weights, layout(stack), y)
    got.sum().backward()
    want = torch.stack([F.cross_entropy(n(one[k]), y[k]) for k, n in enumerate(nets)])
    want.sum().backward()
    close(got, want)
    close(stack.grad, one.grad)
    for name, w in weights.items():
        close(w.grad, torch.stack([n.get_parameter(name).grad for n in nets]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(B, 2, 6, 6), (B, 2, 7, 5), (2, 5, 4), (1, 1, 2, 2)])
def test_pooling_is_pytorchs_also_for_ties_and_odd_sizes(shape, dtype):
    x = torch.randint(3, (K, *shape)).to(dtype)  # nearly every window has a tie
    stack, one = x.clone().requires_grad_(), x.clone().requires_grad_()
    got, want = vmap(max_pool2x2)(stack), torch.stack([F.max_pool2d(c, 2) for c in one])
    weight = torch.randn_like(want)
    (got * weight).sum().backward()
    (want * weight).sum().backward()
    assert torch.equal(got, want) and torch.equal(stack.grad, one.grad)


def test_pooling_takes_the_client_axis_from_anywhere():
    x = torch.randn(B, 2, 6, 6, K)
    got = vmap(max_pool2x2, in_dims=4, out_dims=1)(x)
    assert torch.equal(got, torch.stack([F.max_pool2d(x[..., k], 2) for k in range(K)], 1))


def test_pooling_passes_gradcheck():
    x = torch.randperm(K * 2 * 4 * 5).double().view(K, 1, 2, 4, 5).requires_grad_()
    assert torch.autograd.gradcheck(vmap(max_pool2x2), x)
    assert torch.autograd.gradgradcheck(vmap(max_pool2x2), x)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
def test_weights_or_rows_may_be_common_to_all_clients(rule, axes):
    layer = Linear(6, 5).double()
    w, x = torch.randn(K, 5, 6).double(), torch.randn(K, B, 6).double()
    w, x = (t if a == 0 else t[0] for t, a in zip((w, x), axes, strict=True))
    w, x = w.requires_grad_(), x.requires_grad_()
    got = vmap(lambda w, x: functional_call(layer, {"weight": w}, (x,)), axes)(w, x)
    want = x @ w.mT + layer.bias
    close(got, want)
    weight = torch.randn_like(want)
    for a, b in zip(torch.autograd.grad(got, (w, x), weight), torch.autograd.grad(want, (w, x), weight), strict=True):
        close(a, b)


@pytest.mark.parametrize("axes", [(0, None), (None, 0)])
def test_a_whole_net_with_common_weights_or_rows(rule, axes):
    nets = [net() for _ in range(K)]
    weights = stack_module_state(nets)[0] if axes[0] == 0 else dict(nets[0].named_parameters())
    x = torch.randn(K, B, 2, 7, 10).double()
    x = stacked_layout(x) if axes[1] == 0 else x[0]
    got = vmap(lambda w, x: functional_call(nets[0], w, (x,)), axes)(weights, x)
    for k in range(K):
        close(got[k], nets[k if axes[0] == 0 else 0](x[k] if axes[1] == 0 else x))


def test_evaluation_without_gradients(rule):
    nets = [net() for _ in range(K)]
    weights, _ = stack_module_state(nets)
    x = torch.randn(K, B, 2, 7, 10).double()
    with torch.no_grad():
        got = vmap(lambda w, x: functional_call(nets[0], w, (x,)))(weights, stacked_layout(x))
        close(got, torch.stack([n(c) for n, c in zip(nets, x, strict=True)]))
    assert not got.requires_grad


def test_gradients_taken_inside_the_stack_and_second_ones(rule):
    layer, x = Linear(6, 5).double(), torch.randn(K, B, 6).double()
    w = torch.randn(K, 5, 6).double().requires_grad_()

    def loss(w, x):
        return (functional_call(layer, {"weight": w}, (x,)) ** 3).sum()

    inside = vmap(grad(loss))(w, x)
    (outside,) = torch.autograd.grad(vmap(loss)(w, x).sum(), w, create_graph=True)
    close(inside, outside)
    (second,) = torch.autograd.grad((outside**2).sum(), w)
    close(second, torch.autograd.grad((inside**2).sum(), w)[0])
    images = torch.randn(K, B, 2, 5, 4)
    pooled = vmap(grad(lambda x: (max_pool2x2(x) ** 2).sum()))(images)
    assert torch.equal(pooled, torch.stack([grad(lambda x: (F.max_pool2d(x, 2) ** 2).sum())(c) for c in images]))


def test_outside_a_stack_they_are_pytorchs_own():
    x = torch.randn(B, 2, 5, 6)
    assert torch.equal(MaxPool2x2()(x), F.max_pool2d(x, 2))
    layer = Linear(6, 5)
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    assert type(max_pool2x2(x.requires_grad_()).grad_fn).__name__ == "MaxPool2DWithIndicesBackward0"
    assert type(layer(x[0, 0]).grad_fn).__name__ == "AddmmBackward0"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clients, rows, classes", [(20, 4, 10), (1, 7, 2), (3, 33, 10), (14, 1, 5)])
def test_cross_entropy_is_pytorchs_to_the_last_bit(clients, rows, classes, dtype):
    scores = 5 * torch.randn(clients, rows, classes, dtype=dtype)
    scores[0, 0, 1:] = -1e4  # a probability of 1, the others' 0
    y, slope = torch.randint(classes, (clients, rows)), torch.randn(clients, dtype=dtype)

    def found(loss):
        given = scores.clone().requires_grad_()
        losses = loss(given, y)
        return losses.detach(), torch.autograd.grad((losses * slope).sum(), given)[0]

    for ours, theirs in zip(found(vmap(layers.cross_entropy)), found(vmap(F.cross_entropy)), strict=True):
        assert torch.equal(ours, theirs)
    alone = found(lambda s, t: torch.stack([layers.cross_entropy(*one) for one in zip(s, t, strict=True)]))
    eager = found(lambda s, t: torch.stack([F.cross_entropy(*one) for one in zip(s, t, strict=True)]))
    assert all(torch.equal(*pair) for pair in zip(alone, eager, strict=True))
    assert_close(alone, found(vmap(layers.cross_entropy)))


@pytest.mark.parametrize("batch", [2, 4])
def test_weights_beside_the_layout_change_no_bit_of_a_stack(batch):
    form = net().float()
    tensors = {n: torch.randn(K, *p.shape) for n, p in form.named_parameters()}
    x = stacked_layout(torch.randn(K, batch, 2, 10, 6))

    def found(mine):
        leaves = {n: t.detach().requires_grad_() for n, t in mine.items()}
        scores = vmap(lambda t, rows: functional_call(form, t, (rows,)))(leaves, x)
        return scores, *torch.autograd.grad(scores.square().sum(), list(leaves.values()))

    turned = layers.stacked_weights(form, tensors, K, batch)
    assert turned.keys() == {"0.weight", "3.weight"}
    assert all(torch.equal(t, tensors[n]) and not t.is_contiguous() for n, t in turned.items())
    for a, b in zip(found(tensors | turned), found(tensors), strict=True):
        assert torch.equal(a, b)
    assert not layers.stacked_weights(form, {n: t[:1].expand_as(t) for n, t in tensors.items()}, K, batch)
    back = layers.stacked_weights(form, turned, 1, batch)
    assert all(torch.equal(t, tensors[n]) and t.is_contiguous() for n, t in back.items())


def test_layout_keeps_values_and_puts_clients_beside_channels():
    x = torch.randn(K, B, 2, 5, 6)
    got = stacked_layout(x)
    assert torch.equal(got, x)
    assert got.permute(1, 3, 4, 0, 2).is_contiguous()  # [B, H, W, K, C]
    rows = torch.randn(K, B, 7)
    assert stacked_layout(rows) is rows
