"""Which operation of an author's code produced the first NaN or infinity."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedtune.user_code import places


class First:
    """The first such operation: its place in the code, and its name."""

    where = ""
    words = ""


class _Watch(TorchFunctionMode):
    def __init__(self, cls: type, first: First) -> None:
        super().__init__()
        self.files, self.first = places.files_of(cls), first

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self.first.where and isinstance(out, Tensor) and out.is_floating_point():
            given = [a for a in args if isinstance(a, Tensor) and a.is_floating_point()]
            if not out.detach().isfinite().all() and all(a.detach().isfinite().all() for a in given):
                mine = [f for f in traceback.extract_stack() if f.filename in self.files]
                if mine:
                    self.first.where = f"{Path(mine[-1].filename).name}:{mine[-1].lineno}"
                    name = getattr(func, "__name__", "an operation")
                    self.first.words = f"; the first NaN or infinity comes from {name} there"
        return out


@contextmanager
def watch(cls: type) -> Iterator[First]:
    """Watch every PyTorch operation; keep the first that makes NaN or infinity from finite numbers."""
    first = First()
    with _Watch(cls, first):
        yield first
