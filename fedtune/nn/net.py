"""The base of every model: a body and a head."""

from __future__ import annotations

import traceback
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as everywhere

Shape = tuple[int, ...]  # (channels, height, width) of an image, (features,) of a vector, (length,) of tokens


class Net(nn.Module):
    """A body and a head; algorithms may add parts of their own."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        """body maps rows [B, …] to features [B, D]; head maps features to logits [B, C]."""
        super().__init__()
        self.body, self.head = body, head
        self.declared: tuple[str, ...] = ()  # the parts that whoever made them says are pure
        self.head_was: str | None = None  # the name of the layer that was cut out of the body as the head

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, C] of the rows."""
        logits: Tensor = self.head(self.body(x))
        return logits


def rows_in_words(shape: Shape, dtype: torch.dtype = torch.float32) -> str:
    """Rows of this shape and type in words: `images of 1×8×8`."""
    if not dtype.is_floating_point:
        return f"sequences of {'×'.join(map(str, shape))} tokens"
    if len(shape) == 1:
        return f"vectors of {shape[0]}"
    return f"images of {'×'.join(map(str, shape))}"


_ONE_VALUE = "Expected more than 1 value per channel when training"
# PyTorch's message and the layer it comes from -> the rule in words, and what would do
_RULES: dict[tuple[str, type[nn.Module]], str] = {
    (_ONE_VALUE, nn.GroupNorm): "GroupNorm needs more than one value in a group; give it fewer groups",
    (_ONE_VALUE, nn.Module): "BatchNorm needs two rows in a training batch, or more than one position in each; give "
    "--batch 2 or more",
    ("Expected more than 1 spatial element", nn.Module): "InstanceNorm needs more than one position in its input for "
    "training; put it before the pooling",
    ("device-side assert", nn.Module): "an index is out of range on the GPU; --device cpu shows which",
}


def rule_of(error: Exception, net: nn.Module) -> str:
    """The rule behind one of PyTorch's errors, and what would do; "" if PyTorch's message is clear enough."""
    layer = _layer(error, net)[1]
    return next((rule for (sign, kind), rule in _RULES.items() if sign in str(error) and isinstance(layer, kind)), "")


def layer_of(error: BaseException, net: nn.Module) -> str:
    """The innermost layer of the net that an error came from, in words; "" if none."""
    name, layer = _layer(error, net)
    return f"layer {name} ({type(layer).__name__})" if name else ""


def hook_of(net: nn.Module) -> str:
    """The first layer with a hook that is not PyTorch's own, in words; "" if there is none."""
    for name, module in net.named_modules():
        hooks = [h for kind in HOOKS for h in vars(module).get(kind, {}).values()]
        if any(not getattr(h, "__module__", "").startswith("torch.") for h in hooks):
            return f"layer {name} ({type(module).__name__})"
    return "all modules (register_module_forward_hook)" if hooks_on_all() else ""


def hooks_on_all() -> list[Any]:
    """The hooks registered on all modules of the process."""
    return [hook for kind in HOOKS for hook in vars(everywhere)[f"_global{kind}"].values()]


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _layer(error: BaseException, net: nn.Module) -> tuple[str, nn.Module]:
    """The innermost layer that an error came from, with its name; the net itself with "" if none."""
    names = {id(m): (n, m) for n, m in net.named_modules() if n}
    frames = [id(frame.f_locals.get("self")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next((names[i] for i in reversed(frames) if i in names), ("", net))
