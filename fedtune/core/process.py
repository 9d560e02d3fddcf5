"""What PyTorch has once for a whole process: its random stream, its modes, its threads.  One run at a time uses them.

A model's first weights are drawn from the process's stream, code is noted for all nets of a form, a user's file is
known by its name.  So runs in several threads take turns, a round at a time: each gives the numbers that it would give
alone.  Whoever wants two at once starts two processes, as a search does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.utils import _python_dispatch

_turn = threading.RLock()  # a run within a run, as of a metric that trains one, is of the same thread


def _begin_anew() -> None:
    """In a forked child nobody holds the turn: who did is a thread that the child has not."""
    global _turn
    _turn = threading.RLock()


os.register_at_fork(after_in_child=_begin_anew)


@contextmanager
def turn() -> Iterator[None]:
    """No other thread's run is at work meanwhile."""
    with _turn:
        yield


@contextmanager
def at_work() -> Iterator[None]:
    """It is this run's turn, and PyTorch is in the modes that it starts with, whatever the caller has set.

    Those are float32 for new tensors, gradients, and no mixed precision.  RuntimeError within client code, where
    tensors stand for many clients.
    """
    modes = _python_dispatch._get_current_dispatch_mode_stack()
    ours = any(type(mode).__module__.startswith("fedtune.") for mode in modes)
    if ours or torch._C._functorch.peek_interpreter_stack() is not None:
        raise RuntimeError(  # told with the line of theirs
            "a run cannot start within another's client code; start it in a metric, in the server's code, or before it"
        )
    with turn(), ExitStack() as stack, torch.inference_mode(False), torch.enable_grad():
        if (dtype := torch.get_default_dtype()) is not torch.float32:
            stack.callback(torch.set_default_dtype, dtype)
            torch.set_default_dtype(torch.float32)
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield
