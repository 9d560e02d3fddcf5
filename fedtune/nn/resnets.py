"""Residual networks for images of about 32×32 pixels, with BatchNorm or GroupNorm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from fedtune.nn.layers import GroupNorm, with_width
from fedtune.nn.net import Shape

Norm = Callable[[int], nn.Module]


class Block(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which is a 1×1 convolution where the shape changes."""

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        """The names are those of torchvision's BasicBlock."""
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = norm(width)
        changes = stride != 1 or inputs != width
        shortcut = [nn.Conv2d(inputs, width, 1, stride, bias=False), norm(width)] if changes else []
        self.downsample = nn.Sequential(*shortcut)

    def forward(self, x: Tensor) -> Tensor:
        """[B, inputs, H, W] -> [B, width, H / stride, W / stride]."""
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class ResNet(nn.Module):
    """A 3×3 convolution, stages of blocks, each at half the size and twice the channels, and the mean over positions.

    Its tensors have the names of torchvision's ResNets.
    """

    def __init__(self, channels: int, blocks: tuple[int, ...], width: int, norm: Norm) -> None:
        """blocks: how many each stage has; width: channels of the first stage."""
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = norm(width)
        inputs, stages = width, []
        for stage, n in enumerate(blocks):
            layers = []
            for i in range(n):
                layers.append(Block(inputs, width * 2**stage, 1 if i or not stage else 2, norm))
                inputs = width * 2**stage
            self.add_module(f"layer{stage + 1}", nn.Sequential(*layers))
            stages.append(f"layer{stage + 1}")
        self.stages, self.features = stages, inputs
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, H, W] -> [B, features]."""
        x = F.relu(self.bn1(self.conv1(x)))
        for stage in self.stages:
            x = self.get_submodule(stage)(x)
        return x.mean((-2, -1))


def resnet(blocks: tuple[int, ...], batch_norm: bool) -> Callable[..., nn.Module]:
    """The body of a ResNet with so many blocks a stage: (1, 1, 1) is ResNet-8, (2, 2, 2, 2) ResNet-18.

    Source: He et al., CVPR 2016, arXiv:1512.03385: stem and three stages of 16 to 64 channels as for CIFAR, ResNet-18's
    four of 64 to 512 as for ImageNet.  GroupNorm of two groups as in Reddi et al., ICLR 2021, arXiv:2003.00295.
    Initialised as torchvision's.  Differs: shortcuts that change the shape are 1×1 convolutions (option B).  Another D
    than that of the last stage is made by a linear layer and ReLU after the pooling.
    """

    def body(shape: Shape, features: int, width: int, groups: int = 0) -> nn.Module:
        net = ResNet(shape[0], blocks, width, nn.BatchNorm2d if batch_norm else partial(GroupNorm, groups))
        return with_width([net], net.features, features)

    return body


BODIES = {
    "resnet8-bn": resnet((1, 1, 1), batch_norm=True),
    "resnet8-gn": resnet((1, 1, 1), batch_norm=False),
    "resnet18-bn": resnet((2, 2, 2, 2), batch_norm=True),
    "resnet18-gn": resnet((2, 2, 2, 2), batch_norm=False),
}
