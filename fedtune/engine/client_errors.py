"""Errors of client code: where, whose, why it cannot be stacked, and what would do.

The client is found by running the code again for one client after the other.
"""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from fedtune.core.about import FOLDER, page
from fedtune.core.draws import CannotRepeat, Draws
from fedtune.core.errors import Diverged, UserError
from fedtune.core.process import Streams
from fedtune.core.pure import is_known
from fedtune.core.terminal import one_line
from fedtune.core.trees import Executor, Tree, for_each_client, leaves, take
from fedtune.data.federation import Federation
from fedtune.engine.state import Group, RunSetup
from fedtune.nn import catalogue
from fedtune.nn.net import layer_of, rule_of
from fedtune.tracing import Impure
from fedtune.user_code import user_errors

# errors not caused by a client or a line: diverged training, a full memory or disk, and errors already reported
PASSING = (UserError, Diverged, CannotRepeat, Impure, torch.OutOfMemoryError, MemoryError, OSError)
Result = TypeVar("Result")


class Unstackable(UserError):
    """Client code that runs for one client at a time, but not for all of them as one program."""

    def __init__(self, where: str, why: str, instead: str = "write it with masks (torch.where, one-hot sums)") -> None:
        """where: FILE:LINE in its author's file, or the module. why: what it does there. instead: what would work."""
        super().__init__(
            f"client code cannot run stacked: {f'at {where} it' if ':' in where else where} {why}\n"
            f"{instead}, or give --executor loop: one client after the other"
        )


class OtherNumbers(UserError):
    """Code that gave other numbers when it was replayed, or ran once more."""


class OfClient(Exception):
    """An error that a client's code raises even when run alone; its cause is the original error."""

    def __init__(self, client: int | None) -> None:
        """client: its position among those that ran; None if others fail too."""
        super().__init__(client)
        self.client = client

    def who(self, f: Federation, clients: int) -> str:
        """The client in words, ` (owner clinic-07)`.  clients: number per run, if several runs are stacked."""
        return "" if self.client is None else f" ({f.who(self.client if f.owners else self.client % clients)})"


def located(run: Callable[[], Result], alone: Callable[[int], object], clients: int) -> Result:
    """Run code for several clients.  An error becomes the `OfClient` of the first, if any, that fails `alone` too."""
    try:
        return run()
    except (OfClient, *PASSING):
        raise
    except Exception as error:  # whatever client code raises
        if "CUDA error" in str(error):  # after it nothing runs on the GPU
            raise
        stacked = error
    for k in range(clients):  # not within `except`: Python would take the error there for a cause of these
        if own := _raised(alone, k):
            if isinstance(own, PASSING):
                raise own
            all_fail = any(_raised(alone, i) for i in {0, clients - 1} - {k})
            raise OfClient(None if all_fail else k) from own
    raise stacked


def each_client(fn: Callable[..., Tree], executor: Executor, *trees: Tree, draws: Draws) -> Tree:
    """`for_each_client` for client code, with its error `located`."""

    def alone(k: int) -> Tree:
        return draws.alone(fn, k, *(take(tree, k) for tree in trees))

    return located(lambda: for_each_client(fn, executor, *trees, draws=draws), alone, len(leaves(trees)[0]))


@contextmanager
def among(clients: Tensor) -> Iterator[None]:
    """While code runs for these clients: translate an `OfClient`'s position to the client's number."""
    try:
        yield
    except OfClient as error:
        error.client = None if error.client is None else int(clients[error.client])
        raise


def _raised(alone: Callable[[int], object], client: int) -> Exception | None:
    try:
        alone(client)
    except Exception as error:  # whatever client code raises
        return error
    return None


@contextmanager
def running(s: RunSetup, g: Group, t: int) -> Iterator[None]:
    """While client code runs in round t: errors of code, model or values become a UserError with place and client."""
    try:
        with _stackable_operations(), _repeatable(s, g):
            yield
    except CannotRepeat as error:
        raise UserError(_REPEATABLE.format(place(error), error)) from error
    except Impure:
        raise OtherNumbers(
            f"recorded steps of {_names(s)} gave other numbers than their code in round {t}; code that says that it is "
            f"pure must depend on its arguments and fields alone and change nothing ({page('reference/hooks')})"
        ) from None
    except PASSING:
        raise
    except OfClient as error:
        cause, who = error.__cause__, error.who(s.federation, s.task.clients)
    except Exception as error:
        cause, who = error, ""
        if g.executor == "stack" and _is_own(s):  # none of them fails alone
            raise Unstackable(place(error), reason(error)) from error
    else:
        return
    assert isinstance(cause, Exception)
    if told := _told(cause, s, g):
        raise user_errors.UserCodeError(told + who, user_errors.theirs_on(cause)) from cause
    raise cause


@contextmanager
def _repeatable(s: RunSetup, g: Group) -> Iterator[None]:
    """UserError if a user's code draws from Python's or NumPy's global random numbers."""
    if not _is_own(s):
        yield
        return
    before = Streams.now()
    try:
        yield
    finally:  # a draw explains other errors
        moved = before.moved(Streams.now())
        for whose, pattern in (found for stream, *found in _STREAMS if stream in moved):
            from fedtune.user_code import sources  # only a refusal needs it

            classes = dict.fromkeys([type(s.algorithm), *map(type, g.net.modules())])
            lines = (sources.of_word(cls, pattern) for cls in classes if not is_known(cls.__module__))
            where = next(filter(None, lines), "") or _names(s)
            raise UserError(_REPEATABLE.format(where, f"it draws from {whose} global random numbers"))


_REPEATABLE = (
    "random numbers in client code must be repeatable, but at {} {}; draw with torch.rand, randn, bernoulli or dropout"
)
_STREAMS = (("numpy", "NumPy's", r"np\.random|numpy\.random"), ("python", "Python's", r"\brandom\.(?!Random)\w+\("))


def _told(error: Exception, s: RunSetup, g: Group) -> str:
    """An error in one line with the line in the author's file and the layer; "" if it is not in their code."""
    layer, line = layer_of(error, g.net), user_errors.place(error)
    if not (layer or line or _is_own(s)):
        return ""
    where = ", ".join(filter(None, [line, layer])) or _names(s)
    rule = rule_of(error, g.net)
    kind = one_line(user_errors.kind(error))
    return f"{rule}; {where}" if rule else f"{where}: {kind}: {one_line(user_errors.text(error))}"


def _names(s: RunSetup) -> str:
    return f"{type(s.algorithm).__name__} on {', '.join(s.task.models)}"


def _is_own(s: RunSetup) -> bool:
    return not type(s.algorithm).__module__.startswith("fedtune.trainables.") or any(
        map(catalogue.is_own, s.task.models)
    )


@contextmanager
def _stackable_operations() -> Iterator[None]:
    """Run a transformer layer in evaluation mode as single operations, which vmap has rules for; do not warn."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    warn: Callable[[bool], None] = vars(torch._C._functorch)["_set_vmap_fallback_warning_enabled"]
    warn(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        warn(True)


def reason(error: Exception) -> str:
    """What client code does that vmap cannot run: the first sentence of PyTorch's message."""
    said = [line.split(". ")[0] for line in user_errors.text(error).splitlines()[:1]]
    return ": ".join([f"raises {user_errors.kind(error)}", *filter(None, said)])


def place(error: BaseException) -> str:
    """FILE:LINE of an error in its author's file; the model if no line is theirs."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_NOT_THEIRS)]
    return user_errors.place(error) or (f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "the model")


_NOT_THEIRS = (str(Path(torch.__file__).parent), str(FOLDER), sysconfig.get_paths()["stdlib"], "<")
