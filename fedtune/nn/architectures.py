"""Networks with named parts `body` (images -> features) and `head` (features -> logits): built-in or a user's."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn

from fedtune.core import randomness
from fedtune.core.errors import UserError, require_known
from fedtune.nn import catalogue
from fedtune.nn.layers import Linear, MaxPool2x2, with_width
from fedtune.nn.net import Net as Net
from fedtune.nn.net import Shape as Shape
from fedtune.nn.net import rows_in_words

UNSEEDED = (
    "has the same initial weights for every seed, because it sets a seed itself or draws none, so intervals over seeds "
    "leave out that source of chance"
)


def mlp(shape: Shape, features: int) -> nn.Module:
    """One hidden layer: flatten, 128, ReLU, features, ReLU."""
    return nn.Sequential(
        nn.Flatten(), Linear(torch.Size(shape).numel(), 128), nn.ReLU(), Linear(128, features), nn.ReLU()
    )


_AFTER: dict[str, Callable[[int], nn.Module]] = {  # by its name, made for a convolution's width
    "norm": nn.BatchNorm2d,
    "relu": lambda _: nn.ReLU(),
    "pool": lambda _: MaxPool2x2(),
}


def _cnn(
    shape: Shape, features: int, widths: tuple[int, ...], kernel: int, after: str, relu: bool = True, **how: int
) -> nn.Sequential:
    """Convolutions of these widths, after each what is named; flattened, features, ReLU.  how: as in nn.Conv2d."""
    layers: list[nn.Module] = []
    for inputs, width in pairwise((shape[0], *widths)):
        layers.append(nn.Conv2d(inputs, width, kernel, **how))  # type: ignore[arg-type]
        layers += [_AFTER[name](width) for name in after.split()]
    layers.append(nn.Flatten())
    with torch.no_grad():
        numbers = nn.Sequential(*layers).eval()(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*layers, Linear(numbers, features), *[nn.ReLU()] * relu)


def cnn8(shape: Shape, features: int) -> nn.Module:
    """For 8×8 digits: conv3 16, pool, ReLU, conv3 32, pool, ReLU, features, ReLU."""
    return _cnn(shape, features, (16, 32), 3, "pool relu", padding=1)


def cnn8_wide(shape: Shape, features: int) -> nn.Module:
    """`cnn8` with twice the channels: conv3 32, pool, ReLU, conv3 64, pool, ReLU, features, ReLU."""
    return _cnn(shape, features, (32, 64), 3, "pool relu", padding=1)


def fedproto_cnn(shape: Shape, features: int) -> nn.Module:
    """The two-conv CNN of FedProto and GFPL: conv5 10, pool, ReLU, conv5 20, pool, ReLU, features (50), ReLU.

    21,840 parameters for 28×28 and ten classes.  Source: FedProto's code (CNNMnist).  Differs: no dropout; theirs drops
    half of the second convolution's channels and of the features, which neither paper mentions.
    """
    return _cnn(shape, features, (10, 20), 5, "pool relu")


def fedgen_cnn(shape: Shape, features: int) -> nn.Module:
    """The CNN of FedGen and FedPA: conv3/2 6, BatchNorm, ReLU, conv3/2 16, BatchNorm, ReLU, features (32), linear.

    26,434 parameters for 28×28 and ten classes; no activation after the features.  Source: FedGen's and FedPA's code.
    """
    return _cnn(shape, features, (6, 16), 3, "norm relu", relu=False, stride=2, padding=1)


def fedgenp_cnn(shape: Shape, features: int) -> nn.Module:
    """`fedgen_cnn` with a ReLU after the features, as FedGenP's table 2 has it; 26,434 parameters as well.

    That table's fc(784) is read as the flattened 784 numbers; its batch normalisation is FedGen's.
    """
    return _cnn(shape, features, (6, 16), 3, "norm relu", stride=2, padding=1)


def celeba_cnn(shape: Shape, features: int) -> nn.Module:
    """FedGen's and FedPA's CNN for CelebA: three times conv3/2, BatchNorm, ReLU, pool (16, 32, 64), features (32).

    25,954 parameters for 3×84×84 and two classes: strides and pools together leave 1×1, so 64 numbers reach the linear
    layer.  No activation after the features.  Source: FedGen's and FedPA's code.
    """
    return _cnn(shape, features, (16, 32, 64), 3, "norm relu pool", relu=False, stride=2, padding=1)


def mcmahan_cnn(shape: Shape, features: int) -> nn.Module:
    """The 4-layer CNN of McMahan et al. as in PFLlib: conv5 32, ReLU, pool, conv5 64, ReLU, pool, features (512).

    582,026 parameters for 28×28 and ten classes.  Source: arXiv:1602.05629; PFLlib (FedAvgCNN: no padding).
    """
    return _cnn(shape, features, (32, 64), 5, "relu pool")


def resnet18(shape: Shape, features: int) -> nn.Module:
    """torchvision's ResNet-18, not pretrained, on 32×32 images; Linear(512, features) and ReLU after its pooling.

    Source: FedProto's code uses ResNet-18 for CIFAR; GFPL says the extractor gives 128 features, hence the added layer.
    """
    from fedtune.core.torchvision_import import models

    net = models.resnet18(weights=None)
    if shape[0] != 3:
        net.conv1 = nn.Conv2d(shape[0], 64, kernel_size=7, stride=2, padding=3, bias=False)
    net.fc = nn.Identity()
    return nn.Sequential(net, Linear(512, features), nn.ReLU())


def _torchvision(name: str, pooled: bool = False) -> Callable[[Shape, int], nn.Module]:
    """torchvision's net of this name without its last linear layer, not pretrained.

    Differs: no dropout and no stochastic depth, and PyTorch's default initialisation for GoogLeNet.  Another D is made
    by a linear layer and ReLU, or, pooled, by one-dimensional average pooling, as in HtFLlib's families.
    """

    def body(shape: Shape, features: int) -> nn.Module:
        from fedtune.core.torchvision_import import models

        if name == "resnet10":
            net = models.ResNet(models.resnet.BasicBlock, [1, 1, 1, 1])
        else:
            plain = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
            net = getattr(models, name)(weights=None, **plain)
        path, last = [(n, m) for n, m in net.named_modules() if isinstance(m, nn.Linear)][-1]
        net.set_submodule(path, nn.Identity())
        for m in net.modules():
            if isinstance(m, nn.Dropout) or type(m).__name__ == "StochasticDepth":
                m.p = 0.0
        _take_channels(net, shape[0])
        if pooled:
            return nn.Sequential(net, nn.AdaptiveAvgPool1d(features))
        return with_width([net], last.in_features, features)

    return body


def _take_channels(net: nn.Module, channels: int) -> None:
    """Replace the first convolution of a net for three channels by one for this number."""
    path, first = next((n, m) for n, m in net.named_modules() if isinstance(m, nn.Conv2d))
    if channels != first.in_channels:
        how = {"stride": first.stride, "padding": first.padding, "bias": first.bias is not None}
        net.set_submodule(path, nn.Conv2d(channels, first.out_channels, first.kernel_size, **how))  # type: ignore[arg-type]


# the functions that make bodies; those of sequences, of ResNets for small images and of ViTs are beside them
BODIES: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "cnn8": cnn8,
    "cnn8-wide": cnn8_wide,
    "fedproto-cnn": fedproto_cnn,
    "fedgen-cnn": fedgen_cnn,
    "fedgenp-cnn": fedgenp_cnn,
    "celeba-cnn": celeba_cnn,
    "mcmahan-cnn": mcmahan_cnn,
    "resnet18": resnet18,
    "densenet121": _torchvision("densenet121"),
    "efficientnet-b0": _torchvision("efficientnet_b0"),
    "convnext-tiny": _torchvision("convnext_tiny"),
    "googlenet-pooled": _torchvision("googlenet", pooled=True),
    "mobilenet-pooled": _torchvision("mobilenet_v2", pooled=True),
    **{f"resnet{n}-pooled": _torchvision(f"resnet{n}", pooled=True) for n in (10, 18, 34, 50, 101, 152)},
}


def build(name: str, shape: Shape, classes: int, features: int = 0, seed: int = 0) -> Net:
    """An architecture with PyTorch's default initialisation from this seed; the global random state is not changed."""
    with randomness.seeded(seed):
        if catalogue.is_own(name):
            from fedtune.nn import user_models

            return user_models.build(name, shape, classes, features)
        base, options = catalogue.called(name)
        body = _body(base)
        d = features or catalogue.width(name)
        if len(shape) not in catalogue.axes(base):
            kind = "series" if base in catalogue.OF_SERIES else "images"
            raise _misfit(name, shape, f"it is for {kind}; use mlp for vectors, or your own model: FILE.py:NAME")
        try:
            net = Net(body(shape, d, **options), Linear(d, classes))
        except (RuntimeError, ValueError) as error:
            raise _misfit(name, shape, str(error)) from error
        net.declared = ("body", "head")
        return net


def _body(base: str) -> Callable[..., nn.Module]:
    """The function that makes an architecture's body; UserError with the nearest name if there is none."""
    if base in BODIES:
        return BODIES[base]
    from fedtune.nn import resnets, sequences, vit

    others = {**sequences.BODIES, **resnets.BODIES, **vit.BODIES}
    require_known("model", [base], [*BODIES, *others], "fedtune list models")
    return others[base]


def unseeded(model: str, shape: Shape, classes: int, features: int = 0) -> list[str]:
    """Those of a user's models that have the same initial weights for every seed."""

    def alike(name: str) -> bool:
        first, second = (build(name, shape, classes, features, seed).parameters() for seed in (0, 1))
        return all(map(torch.equal, first, second))

    return [name for name in dict.fromkeys(catalogue.members(model)) if catalogue.is_own(name) and alike(name)]


def width(model: str, shape: Shape, classes: int, features: int = 0, dtype: torch.dtype = torch.float32) -> int:
    """The feature dimension D of a model or of several: as requested, as a user's model returns, or the paper's.

    UserError unless a user's models fit the rows and have the same width; built-in models take any width.
    """
    members = list(dict.fromkeys(catalogue.members(model)))
    d, first = features, "--features"
    for name in filter(catalogue.is_own, members):
        from fedtune.nn import user_models

        user_width = user_models.width(name, shape, classes, d, dtype)
        if d and user_width != d:
            raise UserError(
                f"all models need features of the same width, but {name} has {user_width} and {first} has {d}; let its "
                "function take `features`"
            )
        d, first = user_width, name
    return d or catalogue.width(members[0])


def require_fit(name: str, net: nn.Module, shape: Shape, dtype: torch.dtype) -> None:
    """UserError unless a built-in architecture runs on such rows; a user's was run already to find its width."""
    if catalogue.is_own(name):
        return
    of_tokens = catalogue.called(name)[0] in catalogue.OF_TOKENS
    if dtype.is_floating_point == of_tokens:
        what = "tokens; use" if of_tokens else "images and vectors; use tokens, or"
        raise _misfit(name, shape, f"it is for {what} your own model: FILE.py:NAME", dtype)
    try:
        with torch.no_grad():
            net.eval()(torch.zeros(1, *shape, dtype=dtype))
    except RuntimeError as error:
        raise _misfit(name, shape, str(error), dtype) from error


def _misfit(name: str, shape: Shape, reason: str, dtype: torch.dtype = torch.float32) -> UserError:
    return UserError(f"model {name!r} does not fit {rows_in_words(shape, dtype)}: {reason}")
