"""Models as a user's file has them, for tests: they draw, branch, read numbers out of tensors, take tokens."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Parts(nn.Module):
    """A body and a head."""

    def __init__(self, body: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, classes)


def dropout(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Convolutions, and dropout of channels and of features."""
    layers = [nn.Conv2d(shape[0], 4, 3), nn.Dropout2d(0.3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    return Parts(nn.Sequential(*layers, nn.Linear(16, 8), nn.ReLU(), nn.Dropout(0.5)), 8, classes)


class Attention(nn.Module):
    """Rows of an image as a sequence."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(width, 2, 16, dropout=0.2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[:, 0]).mean(1)


def attention(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A transformer's layer with dropout in its attention."""
    return Parts(Attention(shape[-1]), shape[-1], classes)


class Noisy(nn.Module):
    """Draws in every way that PyTorch has for layers."""

    def forward(self, x: Tensor) -> Tensor:
        z = x.flatten(1)[:, :8]
        if self.training:
            z = z + 0.1 * torch.randn_like(z) + F.gumbel_softmax(z) * torch.bernoulli(z.sigmoid())
            z = z[:, torch.randperm(8)] + torch.rand(8).to(z) + torch.multinomial(z.softmax(1), 1)
        return z


def noisy(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A body without parameters but for one, and with much chance."""
    return Parts(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), Noisy()), 8, classes)


class Recurrent(nn.Module):
    """Rows of an image through a recurrent net, for which vmap has no rule."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x[:, 0])[0][:, -1]  # the line of the LSTM


def recurrent(shape: tuple[int, ...], classes: int) -> nn.Module:
    """An LSTM."""
    return Parts(Recurrent(shape[-1]), 8, classes)


class Tokens(nn.Module):
    """The mean of the tokens' vectors, with a weight of dimension 0."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.scale = nn.Embedding(11, 6, padding_idx=0), nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        assert x.dtype == torch.int64
        return self.scale * self.table(x).mean(1)


def tokens(shape: tuple[int, ...], classes: int) -> nn.Module:
    """For sequences of whole numbers."""
    return Parts(Tokens(), 6, classes)


def heavy(shape: tuple[int, ...], classes: int, features: int = 8) -> nn.Module:
    """A plain net, for the measurement."""
    return Parts(nn.Sequential(nn.Flatten(), nn.Linear(64, features), nn.ReLU()), features, classes)
