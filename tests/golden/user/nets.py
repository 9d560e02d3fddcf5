"""Models as a user's file has them."""

import torch
from torch import nn


class Parts(nn.Module):
    """A body and a head."""

    def __init__(self, body, width, classes):
        super().__init__()
        self.body, self.head = body, nn.Linear(width, classes)


def plain(shape, classes, hidden=12):
    """One hidden layer, for rows of any shape."""
    inputs = torch.Size(shape).numel()
    return Parts(nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.Tanh()), hidden, classes)


def one_piece(shape, classes):
    """A module without parts: `head` names the last layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 10), nn.ReLU(), nn.Linear(10, classes))


def normed(shape, classes):
    """Convolutions with BatchNorm."""
    layers = [nn.Conv2d(shape[0], 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    return Parts(nn.Sequential(*layers), 16, classes)


class Noise(nn.Module):
    """Gaussian noise while training."""

    def forward(self, x):
        return x + 0.1 * torch.randn_like(x) if self.training else x


def drawing(shape, classes):
    """Dropout of channels and features, and noise."""
    layers = [nn.Conv2d(shape[0], 4, 3), nn.Dropout2d(0.3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    return Parts(nn.Sequential(*layers, nn.Dropout(0.5), Noise()), 16, classes)


class Recurrent(nn.Module):
    """Lines of an image through an LSTM."""

    def __init__(self, width):
        super().__init__()
        self.lstm = nn.LSTM(width, 8, batch_first=True)

    def forward(self, x):
        return self.lstm(x[:, 0])[0][:, -1]


def recurrent(shape, classes):
    """An LSTM, which only trains one client after the other."""
    return Parts(Recurrent(shape[-1]), 8, classes)


class Words(nn.Module):
    """The mean of words' vectors."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4096, 6, padding_idx=0)

    def forward(self, x):
        return self.table(x).mean(1)


def words(shape, classes):
    """For rows of words."""
    return Parts(Words(), 6, classes)
