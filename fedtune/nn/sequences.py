"""Bodies for sequences: tokens [B, length] and series [B, channels, time]."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtune.nn.layers import Linear, has_client_axis, with_width
from fedtune.nn.net import Shape


class Embedding(nn.Module):
    """A vector for each token; tokens are taken modulo the size of the vocabulary."""

    def __init__(self, vocabulary: int, width: int) -> None:
        """Initialise the embeddings."""
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, length] -> [B, length, width]."""
        return self.embedding(x.long() % self.embedding.num_embeddings)


class Tokens(Embedding):
    """The mean of the tokens' embeddings; tokens are taken modulo VOCABULARY."""

    VOCABULARY, WIDTH = 4096, 32

    def __init__(self) -> None:
        """Initialise the embeddings."""
        super().__init__(self.VOCABULARY, self.WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """[B, length] -> [B, WIDTH]."""
        return super().forward(x).mean(-2)


def tokens(shape: Shape, features: int) -> nn.Module:
    """For sequences of tokens: the mean of 4096 embeddings of width 32, features (64), ReLU.

    Source: a bag of hashed words, as in fastText (Joulin et al., EACL 2017, arXiv:1607.01759), with a hidden layer.
    """
    return nn.Sequential(Tokens(), Linear(Tokens.WIDTH, features), nn.ReLU())


class TextCNN(nn.Module):
    """Windows of 3, 4 and 5 embeddings, ReLU, and the largest value of each filter over the sequence."""

    WINDOWS = (3, 4, 5)

    def __init__(self, embedding: int, width: int) -> None:
        """width: filters of each window."""
        super().__init__()
        self.windows = nn.ModuleList(nn.Conv1d(embedding, width, k) for k in self.WINDOWS)

    def forward(self, x: Tensor) -> Tensor:
        """[B, length, embedding] -> [B, 3 width]."""
        x = x.mT
        return torch.cat([F.relu(window(x)).amax(-1) for window in self.windows], -1)


def textcnn(shape: Shape, features: int, width: int, embedding: int, vocabulary: int) -> nn.Module:
    """Kim's CNN for sentences (EMNLP 2014, arXiv:1408.5882, CNN-rand): 100 filters of each of 3, 4 and 5 words.

    Differs: embeddings of width 32, not 300 (`textcnn(embedding=300)`); no dropout of the features and no bound on the
    norm of the head's weights.  Another D than three times the filters is made by a linear layer and ReLU.
    """
    layers = [Embedding(vocabulary, embedding), TextCNN(embedding, width)]
    return with_width(layers, 3 * width, features)


class LSTM(nn.Module):
    """`nn.LSTM` with the batch first: its tensors, their names and their draw.

    Over a stack of clients, where PyTorch has no rule, it is written out.  On a CPU each client alone is faster.
    """

    faster_alone = True

    def __init__(self, inputs: int, width: int, depth: int) -> None:
        """depth: layers."""
        super().__init__()
        self.width, self.depth = width, depth
        for i in range(depth):
            sizes = {"weight_ih": (4 * width, width if i else inputs), "weight_hh": (4 * width, width)}
            for name, size in (sizes | {"bias_ih": (4 * width,), "bias_hh": (4 * width,)}).items():
                drawn = torch.empty(size).uniform_(-(width**-0.5), width**-0.5)
                self.register_parameter(f"{name}_l{i}", nn.Parameter(drawn))

    def forward(self, x: Tensor) -> Tensor:
        """[B, length, inputs] -> the last layer's states, [B, length, width]."""
        weights = [*self._parameters.values()]
        if not any(has_client_axis(t) for t in (x, *weights) if t is not None):
            start = x.new_zeros(self.depth, len(x), self.width)
            how = {"dropout": 0.0, "train": True, "bidirectional": False, "batch_first": True}
            states: Tensor = torch.lstm(x, (start, start), weights, has_biases=True, num_layers=self.depth, **how)[0]  # type: ignore
            return states
        for i in range(self.depth):
            w, recurrent, bias, other = weights[4 * i : 4 * i + 4]
            x = _layer(F.linear(x, w, bias + other), recurrent)  # type: ignore[arg-type, operator]
        return x


def _layer(gates: Tensor, recurrent: Tensor) -> Tensor:
    """The states [B, length, width] of a layer; gates [B, length, 4 width] are what its inputs add to them."""
    h = c = torch.zeros_like(gates[:, 0, : recurrent.shape[1]])
    states = []
    for at in gates.unbind(1):
        i, f, g, o = (at + h @ recurrent.mT).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        states.append(h)
    return torch.stack(states, 1)


class LastState(nn.Module):
    """An LSTM over the embeddings of tokens, read at the last token that is not 0: zeros after it are padding."""

    def __init__(self, embedding: int, vocabulary: int, width: int, depth: int) -> None:
        """As `lstm` says."""
        super().__init__()
        self.tokens = Embedding(vocabulary, embedding)
        self.lstm = LSTM(embedding, width, depth)

    def forward(self, x: Tensor) -> Tensor:
        """[B, length] -> [B, width]."""
        states = self.lstm(self.tokens(x))
        last = ((x != 0) * torch.arange(x.shape[1], device=x.device)).amax(1)
        return states.gather(1, last[:, None, None].expand(-1, 1, states.shape[-1])).squeeze(1)


def lstm(shape: Shape, features: int, width: int, depth: int, embedding: int, vocabulary: int) -> nn.Module:
    """An LSTM for tokens: embeddings of width 32, one layer of 128 units, its state at a row's last token.

    LEAF's net for Shakespeare (Caldas et al. 2018, arXiv:1812.01097) is `lstm(embedding=8,width=256,depth=2)`.  Differs
    from it: zeros at the end of a row are padding and not read.  Another D than the units is made by a linear layer and
    ReLU.
    """
    return with_width([LastState(embedding, vocabulary, width, depth)], width, features)


def cnn1d(shape: Shape, features: int, width: int, kernel: int) -> nn.Module:
    """For series of sensors: conv9 32, ReLU, pool, conv9 64, ReLU, pool over time, features (128), ReLU.

    Source: PFLlib's HARCNN for recognising activities.  Differs: one layer of features before the head, not two of 1024
    and 512.
    """
    time = ((shape[1] - kernel + 1) // 2 - kernel + 1) // 2
    if time < 1:
        raise ValueError(f"two convolutions of {kernel} steps and their pooling leave none; give a smaller kernel")
    return nn.Sequential(
        nn.Conv1d(shape[0], width, kernel),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Conv1d(width, 2 * width, kernel),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Flatten(),
        Linear(2 * width * time, features),
        nn.ReLU(),
    )


BODIES: dict[str, Callable[..., nn.Module]] = {"tokens": tokens, "textcnn": textcnn, "lstm": lstm, "cnn1d": cnn1d}
