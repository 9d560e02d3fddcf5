"""What every model is: a body and a head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

Shape = tuple[int, ...]  # (channels, height, width) of an image, (features,) of a vector, (length,) of tokens


class Net(nn.Module):
    """A body and a head; algorithms add parts of their own."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        """body maps rows [B, …] to features [B, D], head maps these to logits [B, C]."""
        super().__init__()
        self.body, self.head = body, head
        self.head_was: str | None = None  # the name of the layer that was taken out of the body to be the head

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, C] of rows."""
        logits: Tensor = self.head(self.body(x))
        return logits


def rows_in_words(shape: Shape, dtype: torch.dtype = torch.float32) -> str:
    """What rows of this shape and type are: `images of 1×8×8`."""
    if not dtype.is_floating_point:
        return f"sequences of {'×'.join(map(str, shape))} tokens"
    if len(shape) == 1:
        return f"vectors of {shape[0]}"
    return f"images of {'×'.join(map(str, shape))}"
