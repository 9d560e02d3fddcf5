"""The nets that people use equal PyTorch's and torchvision's, have the papers' sizes, and refuse what does not fit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.numbers import TIGHT, randn
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.testing import assert_close

from fedtune.core.errors import UserError
from fedtune.core.torchvision_import import models
from fedtune.nn import architectures, catalogue
from fedtune.nn.layers import GroupNorm, stacked_layout
from fedtune.nn.sequences import LSTM

# small ones of each kind, and a row's shape: the width stands in for the paper's
NETS = {
    "resnet8-bn(width=4)": (3, 12, 12),
    "resnet8-gn(width=4)": (3, 12, 12),
    "resnet18-bn(width=2)": (1, 11, 11),
    "resnet18-gn(width=2)": (1, 11, 11),
    "vit(width=8,depth=2,heads=2)": (1, 8, 8),
    "textcnn(width=5,embedding=6,vocabulary=11)": (9,),
    "lstm(width=5,depth=2,embedding=3,vocabulary=11)": (7,),
    "cnn1d(width=4,kernel=3)": (2, 21),
    "mlp": (1, 8, 8),
    "cnn8": (1, 8, 8),
    "fedgen-cnn": (1, 8, 8),
    "fedgenp-cnn": (1, 8, 8),
    "fedproto-cnn": (1, 28, 28),
    "mcmahan-cnn": (1, 28, 28),
    "celeba-cnn": (3, 84, 84),
    "resnet18": (3, 32, 32),
}
PAPERS = {"mlp": 64, "cnn8": 64, "fedproto-cnn": 50, "mcmahan-cnn": 512, "resnet18": 128}  # the papers' widths
PAPERS |= dict.fromkeys(("fedgen-cnn", "fedgenp-cnn", "celeba-cnn"), 32)
LARGE = ("fedproto-cnn", "mcmahan-cnn", "resnet18")  # cnn8's layers, and torchvision's


def rows(name: str, *sizes: int) -> Tensor:
    """Random rows for a net: [*sizes, *its shape]."""
    sizes = (*sizes, *NETS[name])
    if catalogue.called(name)[0] in catalogue.OF_TOKENS:
        return torch.randint(30, sizes, generator=torch.Generator().manual_seed(1))
    return randn(*sizes)


@pytest.mark.parametrize(
    ("name", "shape", "number"),
    [
        ("fedproto-cnn", (1, 28, 28), 21_840),
        ("fedgen-cnn", (1, 28, 28), 26_434),
        ("fedgenp-cnn", (1, 28, 28), 26_434),
        ("mcmahan-cnn", (1, 28, 28), 582_026),
        ("mcmahan-cnn", (3, 32, 32), 878_538),
        ("mlp", (1, 28, 28), 784 * 128 + 128 + 128 * 64 + 64 + 650),
        ("cnn8", (1, 8, 8), 160 + 16 * 32 * 9 + 32 + 128 * 64 + 64 + 650),
        # torchvision's 11,689,512 without its classifier, Linear(512, 128) and the head
        ("resnet18", (3, 32, 32), 11_689_512 - 513_000 + 512 * 128 + 128 + 1_290),
        ("cnn8-wide", (1, 8, 8), 320 + 32 * 64 * 9 + 64 + 256 * 64 + 64 + 650),
        ("mcmahan-cnn", (3, 64, 64), 5_694_600 - 190 * 513),
        # torchvision's with a head of 512 features
        ("googlenet-pooled", (3, 32, 32), 5_605_034),
        ("mobilenet-pooled", (3, 32, 32), 2_229_002),
        ("resnet18-pooled", (3, 32, 32), 11_181_642),
        ("resnet34-pooled", (3, 32, 32), 21_289_802),
        ("resnet50-pooled", (3, 32, 32), 23_513_162),
        ("resnet101-pooled", (3, 32, 32), 42_505_290),
        ("resnet152-pooled", (3, 32, 32), 58_148_938),
        ("resnet8-bn", (3, 32, 32), 78_042),  # 0.08 M: 6n + 2 layers with n = 1
        ("resnet8-gn", (3, 32, 32), 78_042),
        ("resnet18-bn", (3, 32, 32), 11_173_962),  # as the CIFAR form is widely quoted
        ("resnet18-gn", (3, 32, 32), 11_173_962),
        # vit_b_16 with one of its twelve layers, and ten classes
        ("vit(patch=16,width=768,depth=1,heads=12)", (3, 224, 224), 86_567_656 - 769 * 990 - 11 * 7_087_872),
        ("densenet121", (3, 32, 32), 7_978_856 - 1025 * 990),  # torchvision's, ten classes instead of a thousand
        ("efficientnet-b0", (3, 32, 32), 5_288_548 - 1281 * 990),
        ("textcnn(embedding=300)", (50,), 4096 * 300 + 100 * 300 * (3 + 4 + 5) + 300 + 3_010),
        # LEAF's, with PyTorch's two biases a gate
        (
            "lstm(embedding=8,width=256,depth=2,vocabulary=80)",
            (80,),
            80 * 8 + 1024 * (8 + 256 + 2) + 1024 * (256 + 256 + 2) + 2_570,
        ),
        ("cnn1d", (9, 128), 9 * 9 * 32 + 32 + 32 * 9 * 64 + 64 + 64 * 26 * 128 + 128 + 1_290),
    ],
)
def test_as_many_parameters_as_the_papers_count(name: str, shape: tuple[int, ...], number: int) -> None:
    assert sum(p.numel() for p in architectures.build(name, shape, 10).parameters()) == number


@pytest.mark.parametrize("name", NETS)
def test_features_have_the_papers_width_or_the_one_asked_for_and_one_seed_is_one_net(name: str) -> None:
    shape, chance = NETS[name], torch.get_rng_state()
    for features, width in ((0, PAPERS.get(name, catalogue.width(name))), (7, 7)):
        assert architectures.width(name, shape, 5, features) == width
        net = architectures.build(name, shape, 5, features).double().eval()
        z = net.body(rows(name, 2))
        assert z.shape == (2, width) and net.head(z).shape == net(rows(name, 2)).shape == (2, 5)
        assert isinstance(net.head, nn.Linear) and [n for n, _ in net.named_children()] == ["body", "head"]
    one, same, other = (architectures.build(name, shape, 5, seed=s).state_dict() for s in (0, 0, 1))
    assert all(torch.equal(t, same[n]) for n, t in one.items())
    assert not torch.equal(*(v["head.weight"] for v in (one, other))) and torch.equal(torch.get_rng_state(), chance)


def stacked(nets: list[nn.Module], x: Tensor, y: Tensor) -> list[dict[str, Tensor]]:
    """Logits, statistics and gradients of each net in training, all at once."""
    values = {n: torch.stack([net.state_dict()[n] for net in nets]) for n in nets[0].state_dict()}
    trained = [n for n, _ in nets[0].named_parameters()]
    leaves = {n: t.requires_grad_(n in trained) for n, t in values.items()}
    logits = vmap(lambda t, v: functional_call(nets[0], t, (v,)))(leaves, x)
    losses = vmap(nn.functional.cross_entropy)(logits, y)
    found = torch.autograd.grad(losses.sum(), [leaves[n] for n in trained])
    every = {"": logits} | dict(zip(trained, found, strict=True))
    every |= {n: t for n, t in leaves.items() if n not in trained}
    return [{n: t[k].detach() for n, t in every.items()} for k in range(len(nets))]


@pytest.mark.parametrize("name", [name for name in NETS if name not in LARGE])
def test_a_stack_trains_as_each_net_alone(name: str) -> None:
    shape, y = NETS[name], torch.arange(12).view(3, 4) % 5
    nets = [architectures.build(name, shape, 5, seed=s).double().train() for s in range(3)]
    x = rows(name, 3, 4)
    for net, v, labels, got in zip(nets, x, y, stacked(nets, stacked_layout(x), y), strict=True):
        logits = net(v)
        nn.functional.cross_entropy(logits, labels).backward()
        assert_close(got.pop(""), logits.detach(), **TIGHT)
        for n, p in net.named_parameters():
            assert_close(got.pop(n), p.grad, **TIGHT)
        for n, t in net.named_buffers():
            assert_close(got.pop(n), t, **TIGHT)
        assert not got


@pytest.mark.parametrize("norm", ["bn", "gn"])
def test_resnet18_is_torchvisions_with_the_stem_of_cifar(norm: str) -> None:
    kind = {"bn": nn.BatchNorm2d, "gn": lambda width: nn.GroupNorm(2, width)}[norm]
    theirs = models.ResNet(models.resnet.BasicBlock, [2, 2, 2, 2], num_classes=10, norm_layer=kind)
    theirs.conv1, theirs.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    ours = architectures.build(f"resnet18-{norm}", (3, 32, 32), 10)
    values = {
        n: torch.rand_like(t) * 0.1 if t.ndim < 2 and t.is_floating_point() else t
        for n, t in theirs.state_dict().items()
    }
    head = {"head.weight": values.pop("fc.weight"), "head.bias": values.pop("fc.bias")}
    theirs.load_state_dict(values | {"fc.weight": head["head.weight"], "fc.bias": head["head.bias"]})
    ours.load_state_dict({f"body.0.{n}": t for n, t in values.items()} | head)
    x = randn(2, 3, 9, 9)
    for net in (ours, theirs):
        net.double().train()
    assert_close(ours(x), theirs(x), **TIGHT)
    if norm == "bn":
        assert_close(ours.eval()(x), theirs.eval()(x), **TIGHT)


def test_the_transformer_is_torchvisions() -> None:
    theirs = models.VisionTransformer(8, 4, 2, 2, 8, 32, num_classes=5).double().eval()
    nn.init.normal_(theirs.heads.head.weight)
    ours = architectures.build("vit(width=8,depth=2,heads=2)", (3, 8, 8), 5).double().eval()
    values = {n: t for n, t in theirs.state_dict().items() if not n.startswith("heads")}
    head = {"head.weight": theirs.heads.head.weight, "head.bias": theirs.heads.head.bias}
    ours.load_state_dict({f"body.0.{n}": t for n, t in values.items()} | head)
    x = randn(3, 3, 8, 8)
    assert_close(ours(x), theirs(x), **TIGHT)


@pytest.mark.parametrize("depth", [1, 2])
def test_the_lstm_is_pytorchs_in_its_draw_its_states_and_its_gradients(depth: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        theirs = nn.LSTM(3, 5, depth, batch_first=True)
        torch.manual_seed(3)
        ours = LSTM(3, 5, depth)
    assert [*ours.state_dict()] == [*theirs.state_dict()]
    assert all(torch.equal(t, theirs.state_dict()[n]) for n, t in ours.state_dict().items())
    ours.double(), theirs.double()
    x = randn(2, 4, 3)
    want, got = theirs(x)[0], ours(x)
    values = {n: t[None].detach().requires_grad_() for n, t in ours.named_parameters()}
    out = vmap(lambda t, v: functional_call(ours, t, (v,)))(values, x[None])
    for y in (want, got, out):
        y.square().sum().backward()
    assert_close(got, want, **TIGHT), assert_close(out[0], want, **TIGHT)
    for n, p in theirs.named_parameters():
        assert_close(ours.get_parameter(n).grad, p.grad, **TIGHT)
        assert_close(values[n].grad[0], p.grad, **TIGHT)


def test_the_lstm_is_read_before_the_padding() -> None:
    body = architectures.build("lstm(width=5)", (6,), 3).double().body
    row = torch.tensor([[7, 0, 9, 4]])
    want = body[0].lstm(body[0].tokens(row))[:, -1]
    assert_close(body(torch.cat([row, torch.zeros(1, 2, dtype=torch.int64)], 1)), want, **TIGHT)
    assert_close(body(row), want, **TIGHT)
    assert body(torch.zeros(1, 6, dtype=torch.int64)).isfinite().all()


def test_kims_net_takes_the_largest_of_each_filter() -> None:
    net = architectures.build("textcnn(width=2,embedding=3,vocabulary=11)", (6,), 4).double()
    x, want = torch.tensor([[3, 14, 0, 9, 2, 5], [1, 1, 8, 30, 7, 0]]), []
    table = net.body[0].embedding.weight[x % 11]  # [2, 6, 3]
    for k, window in zip((3, 4, 5), net.body[1].windows, strict=True):
        at = [torch.einsum("bkd,wdk->bw", table[:, i : i + k], window.weight) for i in range(7 - k)]
        want.append((torch.stack(at).amax(0) + window.bias).relu())
    assert_close(net.body(x), torch.cat(want, -1), **TIGHT)


def test_group_norm_is_pytorchs_also_with_common_weights_and_outside_of_a_stack() -> None:
    ours, theirs = GroupNorm(2, 4).double(), nn.GroupNorm(2, 4).double()
    w, b, x = randn(3, 4), randn(3, 4), randn(3, 2, 4, 5, 5)
    assert torch.equal(ours(x[0]), theirs(x[0]))
    each = [functional_call(theirs, {"weight": w[k], "bias": b[k]}, (x[k],)) for k in range(3)]
    assert_close(
        vmap(lambda w, b, x: functional_call(ours, {"weight": w, "bias": b}, (x,)))(w, b, x), torch.stack(each), **TIGHT
    )
    assert_close(vmap(ours)(x), torch.stack([theirs(v) for v in x]), **TIGHT)


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "words"),
    [
        ("fedproto-cnn", (1, 8, 8), torch.float32, "model 'fedproto-cnn' does not fit images of 1×8×8"),
        ("mcmahan-cnn", (1, 8, 8), torch.float32, "model 'mcmahan-cnn' does not fit images of 1×8×8"),
        ("celeba-cnn", (1, 8, 8), torch.float32, "model 'celeba-cnn' does not fit images of 1×8×8"),
        ("vit", (1, 9, 8), torch.float32, "images of 1×9×8: patches of 4×4 do not cover it; give a `patch`"),
        ("vit(width=10)", (1, 8, 8), torch.float32, "4 heads do not share a width of 10"),
        ("cnn1d", (9, 20), torch.float32, "two convolutions of 9 steps and their pooling leave none"),
        ("cnn1d", (30,), torch.float32, "vectors of 30: it is for series; use mlp for vectors"),
        ("cnn1d", (1, 8, 8), torch.float32, "it is for series"),
        ("resnet8-gn", (3, 40), torch.float32, "it is for images"),
        ("resnet8-gn(groups=3)", (1, 8, 8), torch.float32, "must be divisible by num_groups .3."),
        ("textcnn", (30,), torch.float32, "vectors of 30: it is for tokens; use your own model"),
        ("lstm", (30,), torch.float32, "vectors of 30: it is for tokens; use your own model"),
        ("textcnn", (4,), torch.int64, "sequences of 4 tokens"),
    ],
)
def test_rows_that_do_not_fit_are_refused(name: str, shape: Any, dtype: torch.dtype, words: str) -> None:
    with pytest.raises(UserError, match=words):
        architectures.require_fit(name, architectures.build(name, shape, 5), shape, dtype)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("vit(dept=2)", "unknown option of model vit 'dept': did you mean 'depth'"),
        ("vit(depth=0)", "options of model vit must be whole numbers of 1 or more, but got depth=0"),
        ("vit(depth='2')", "but got depth='2'"),
        ("vit(depth=x)", "options after a name must be keyword literals"),
        ("mlp(width=2)", "model mlp takes no options, but got mlp"),
        ("vitt(depth=2)", "unknown model"),
        ("cnn9", "unknown model 'cnn9': did you mean 'cnn8'"),
    ],
)
def test_wrong_options_are_refused(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words.replace("(", r"\(")):
        catalogue.members(f"cnn8,{name}")


def test_the_page_of_models_names_all() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "data.md").read_text()
    assert [n for n in catalogue.WIDTHS if f"| `{n}`" not in page and f", `{n}`" not in page] == []


def test_a_name_with_options_is_one_model_of_several() -> None:
    assert catalogue.members("vit(depth=2,width=8),cnn8") == ("vit(depth=2,width=8)", "cnn8")
