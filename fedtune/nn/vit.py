"""A small vision transformer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtune.nn.layers import with_width
from fedtune.nn.net import Shape


class Attention(nn.MultiheadAttention):
    """The self-attention of `nn.MultiheadAttention`, with the batch first, in operations that vmap knows."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """[B, T, width] -> [B, T, width]."""
        qkv = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in qkv.chunk(3, -1))  # [B, heads, T, d]
        z = (q @ k.mT * self.head_dim**-0.5).softmax(-1) @ v
        out: Tensor = self.out_proj(z.transpose(1, 2).flatten(2))
        return out


class Layer(nn.Module):
    """Attention and a perceptron, each behind a LayerNorm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        """The names are those of torchvision's EncoderBlock."""
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=1e-6)
        self.self_attention = Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width, eps=1e-6)
        last = nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(OrderedDict({"0": nn.Linear(width, 4 * width), "1": nn.GELU(), "3": last}))

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, width] -> [B, T, width]."""
        x = x + self.self_attention(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Encoder(nn.Module):
    """Positions are added, then come the layers and a LayerNorm."""

    def __init__(self, length: int, width: int, depth: int, heads: int) -> None:
        """length: patches and the class's token."""
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.empty(1, length, width).normal_(std=0.02))
        named = {f"encoder_layer_{i}": Layer(width, heads) for i in range(depth)}
        self.layers = nn.Sequential(OrderedDict(named))
        self.ln = nn.LayerNorm(width, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, width] -> [B, T, width]."""
        return self.ln(self.layers(x + self.pos_embedding))


class ViT(nn.Module):
    """Patches of an image and a token of the class go through the encoder; the latter's state is the features.

    Its tensors have the names of torchvision's VisionTransformer.
    """

    def __init__(self, *, shape: Shape, patch: int, width: int, depth: int, heads: int) -> None:
        """shape: of an image, (channels, height, width)."""
        super().__init__()
        self.conv_proj = nn.Conv2d(shape[0], width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.encoder = Encoder(1 + shape[1] // patch * (shape[2] // patch), width, depth, heads)

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, H, W] -> [B, width]."""
        patches = self.conv_proj(x).flatten(2).mT
        token = self.class_token.expand(len(x), -1, -1)
        return self.encoder(torch.cat([token, patches], 1))[:, 0]


def vit(shape: Shape, features: int, patch: int, width: int, depth: int, heads: int) -> nn.Module:
    """A vision transformer (Dosovitskiy et al., ICLR 2021, arXiv:2010.11929): patches of 4×4, four layers of width 64.

    `vit(patch=16,width=768,depth=12,heads=12)` is torchvision's `vit_b_16`.  Differs: PyTorch's default initialisation
    of linear layers, and no dropout.  Another D than the width is made by a linear layer and ReLU.
    """
    if shape[1] % patch or shape[2] % patch:
        raise ValueError(f"patches of {patch}×{patch} do not cover it; give a `patch` that divides both sides")
    if width % heads:
        raise ValueError(f"{heads} heads do not share a width of {width}; give a `width` that is a multiple of `heads`")
    return with_width([ViT(shape=shape, patch=patch, width=width, depth=depth, heads=heads)], width, features)


BODIES: dict[str, Callable[..., nn.Module]] = {"vit": vit}
