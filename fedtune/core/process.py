"""Sharing what PyTorch has once per process: its random generator, its modes, its threads.  One run at a time uses it.

So runs in several threads take turns, one round at a time, and each gives the numbers that it would give alone.  To
train two at once, start two processes, as a search does.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import _python_dispatch

_turn = threading.RLock()  # reentrant: a metric may train a run within a run, in the same thread


def _reset_lock() -> None:
    """Give a forked child a fresh lock: the thread that held it does not exist in the child."""
    global _turn
    _turn = threading.RLock()


os.register_at_fork(after_in_child=_reset_lock)


@contextmanager
def turn() -> Iterator[None]:
    """Run the block while no other thread's run is at work."""
    with _turn:
        yield


@contextmanager
def at_work() -> Iterator[None]:
    """Run the block in turn, with PyTorch in its initial modes, whatever the caller has set.

    These are float32, gradients, no mixed precision, and only kernels of cuDNN's that give the same bits each time.
    Raises RuntimeError inside client code, where tensors stand for many clients.
    """
    modes = _python_dispatch._get_current_dispatch_mode_stack()
    in_client_code = any(type(mode).__module__.startswith("fedtune.") for mode in modes)
    if in_client_code or torch._C._functorch.peek_interpreter_stack() is not None:
        raise RuntimeError(  # reported with the line in the user's file
            "a run cannot start inside another run's client code; start it in a metric, in server code, or before it"
        )
    with turn(), ExitStack() as stack, torch.inference_mode(False), torch.enable_grad():
        if (dtype := torch.get_default_dtype()) is not torch.float32:
            stack.callback(torch.set_default_dtype, dtype)
            torch.set_default_dtype(torch.float32)
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        for name, value in (("deterministic", True), ("benchmark", False)):
            stack.callback(setattr, torch.backends.cudnn, name, getattr(torch.backends.cudnn, name))
            setattr(torch.backends.cudnn, name, value)
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """Run the block with one PyTorch thread, as a trial does; no other run of the process works meanwhile."""
    with turn():
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


class Streams(NamedTuple):
    """The states of the process's random streams, which nothing may draw from whose numbers must come again."""

    torch: Any
    numpy: Any
    python: Any

    @classmethod
    def now(cls) -> Streams:
        """Their current states."""
        kind, keys, *rest = np.random.get_state()
        return cls(torch.get_rng_state().numpy().tobytes(), (np.asarray(keys).tobytes(), *rest), random.getstate())

    def moved(self, later: Streams) -> list[str]:
        """The streams from which something was drawn between two states."""
        return [n for n in self._fields if getattr(self, n) != getattr(later, n)]
