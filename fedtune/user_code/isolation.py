"""Isolate the import of a user's file: what it prints becomes one line, and its changes to the process are undone.

A file may print, log, close a standard stream, or change the current folder, a signal handler or PyTorch's default
type.  None of this may affect anything else: stdout holds results only, and a trial's numbers do not depend on which
file was imported before.
"""

from __future__ import annotations

import builtins
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

from fedtune.core.terminal import one_line, say, several
from fedtune.user_code import user_errors

KEPT = 10_000  # bytes of a file's output that are examined
EVERYBODYS = {*sys.stdlib_module_names, "fedtune", "numpy", "pandas", "ray", "torch"} - {"__main__"}
_BUILT_IN = tuple(vars(builtins))


class _Part(NamedTuple):
    """A part of the process's state that a file may change."""

    name: str  # "" if it is restored without a note
    now: Callable[[], Any]
    put_back: Callable[[Any], object]


@contextmanager
def apart(path: str) -> Iterator[None]:
    """While a file is imported: restore the process's state afterwards, and say in one line what it printed and
    changed.
    """
    noise = _Noise()
    before = [(part, part.now()) for part in _parts()]
    text = io.TextIOWrapper(cast(Any, noise), "utf-8", "backslashreplace", write_through=True)
    changed: list[str] = []
    try:
        with _standard_streams(), redirect_stdout(text), redirect_stderr(text), user_errors.in_lines(others=True):
            yield
    finally:
        noise.importing = False
        for part, value in before:
            if part.now() != value:
                part.put_back(value)
                changed += [part.name] if part.name else []
        name = Path(path).name
        said = [line for line in noise.kept.decode(errors="backslashreplace").split("\n") if line.strip()]
        if said:
            more = f" (and {several(len(said) - 1, 'more line')})" if len(said) > 1 else ""
            say(f"note: {name} prints while it is imported: {one_line(said[0])}{more}")
        if changed:
            say(f"note: {name} changes {', '.join(changed)} while it is imported; this is undone")


class _Noise(io.RawIOBase):
    """Replaces stdout and stderr: it keeps the output during the import; later writes go to stderr."""

    def __init__(self) -> None:
        self.kept, self.importing = b"", True

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2

    def close(self) -> None:
        """Do nothing: others use the stream too."""

    def write(self, content: Any, /) -> int:
        content = bytes(content)
        if self.importing:
            self.kept += content[: max(0, KEPT - len(self.kept))]
        else:
            with suppress(ValueError, OSError):
                sys.stderr.write(content.decode(errors="backslashreplace"))
        return len(content)


@contextmanager
def _standard_streams() -> Iterator[None]:
    """Restore stdin, stdout and stderr afterwards, descriptors and objects; stdout is stderr meanwhile."""
    objects = {name: getattr(sys, name) for name in ("stdin", "stdout", "stderr", "__stdout__", "__stderr__")}
    for name in ("stdout", "stderr"):
        with suppress(AttributeError, ValueError, OSError):
            objects[name].flush()
    held = {}
    for standard in (0, 1, 2):
        with suppress(OSError):
            held[standard] = os.dup(standard)
    if 1 in held and 2 in held:
        os.dup2(2, 1)
    try:
        yield
    finally:
        for standard, copy in held.items():
            os.dup2(copy, standard)
            os.close(copy)
        for name, value in objects.items():
            if getattr(value, "closed", False) and name.strip("_") in ("stdout", "stderr"):
                value = open(2 if "err" in name else 1, "w", closefd=False, buffering=1)
            setattr(sys, name, value)


def _parts() -> Iterator[_Part]:
    yield _Part("the current folder", _folder, _change)
    yield _Part("", lambda: list(sys.path or []), _path)
    yield _Part("", lambda: dict(sys.modules), _modules)
    yield _Part("", lambda: dict(os.environ), _environment)
    yield _Part("", sys.getrecursionlimit, sys.setrecursionlimit)
    yield _Part("", sys.gettrace, sys.settrace)
    yield _Part("", lambda: sys.excepthook, lambda hook: setattr(sys, "excepthook", hook))
    yield _Part("the logging of the process", _logs, _log)
    if threading.current_thread() is threading.main_thread():
        yield _Part("signal handlers", _handlers, _handle)
        yield _Part("the alarm timer", lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0, _alarm)
    yield _Part("Python's built-in functions", lambda: {n: vars(builtins)[n] for n in _BUILT_IN}, vars(builtins).update)
    if torch := sys.modules.get("torch"):
        yield _Part("PyTorch's default device", torch.get_default_device, _device)
        precision = torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
        yield _Part("PyTorch's matmul precision", *precision)
        yield _Part("PyTorch's default type", torch.get_default_dtype, torch.set_default_dtype)
        yield _Part("PyTorch's threads", torch.get_num_threads, torch.set_num_threads)
        yield _Part("PyTorch's gradient mode", torch.is_grad_enabled, torch.set_grad_enabled)


def _device(before: Any) -> None:
    """Without a default the CPU is used; a default costs time wherever a tensor is created."""
    import torch

    torch.set_default_device(None if before.type == "cpu" else before)


def _path(before: list[str]) -> None:
    """Added entries stay, for later imports."""
    now = list(sys.path or [])
    sys.path = [*now, *(place for place in before if place not in now)]


def _environment(before: dict[str, str]) -> None:
    """Added and changed variables stay: they configure libraries."""
    os.environ.update({name: value for name, value in before.items() if name not in os.environ})


def _modules(before: dict[str, Any]) -> None:
    """Shared modules are restored."""
    for name, module in before.items():
        if name.split(".")[0] in EVERYBODYS and sys.modules.get(name) is not module:
            sys.modules[name] = module


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def _change(folder: str) -> None:
    if folder:
        os.chdir(folder)


def _logs() -> tuple[list[logging.Handler], int, int]:
    root = logging.getLogger()
    return list(root.handlers), root.level, root.manager.disable


def _log(before: tuple[list[logging.Handler], int, int]) -> None:
    root = logging.getLogger()
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    logging.disable(before[2])


def _handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


def _handle(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        if signal.getsignal(number) != handler and handler is not None:
            signal.signal(number, handler)


def _alarm(before: bool) -> None:
    if not before:
        signal.setitimer(signal.ITIMER_REAL, 0)
