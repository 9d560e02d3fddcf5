"""Client code that is called again and again: which of its calls are alike, and what was noted of them.

`vmap` and autograd find out anew in every call which operations that is.  Here they do it a few times for each net,
code and form of what it is given; then the operations, as `core.tape` noted them, are run by themselves.  A tape is
believed once it gave every bit that the code gave.  Noted is code that looks at nothing but its tensors and what is in
its key: ours at its own fields, an author's at what `own_steps` finds.  Code that may count, print or read what changes
runs as it stands in every call.  So does what draws random numbers while it runs, as their addresses count the draws.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedtune.core.recording import Given, Recorder
from fedtune.core.tape import Tape, Unfit
from fedtune.core.trees import Tree
from fedtune.core.watch import Watch
from fedtune.federated.step_identity import Applied, identity

MET = 3  # calls of one kind before one is noted: noting costs as much as three, and saves half of one
KINDS = 256  # of calls remembered for a net: those that were met last

Found = TypeVar("Found")


class Kind:
    """Calls that are alike in code, shapes and memory orders: how many were met, and their tape."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.met, self.misfits, self.believed, self.unfit = 0, 0, False, False
        self.tape: Tape | None = None
        self.given: Given | None = None  # constants and numbers of a tape that was noted of the same code with others
        self.form: Any = None  # of what the code gives
        self.asks: list[str] = []


Key = tuple[Hashable, ...]  # how calls are made, of what code, in which modes, and what else tells them apart
_KINDS: WeakKeyDictionary[nn.Module, dict[Key, Kind]] = WeakKeyDictionary()
_CODES: WeakKeyDictionary[nn.Module, dict[Hashable, Hashable]] = WeakKeyDictionary()


class Replayed(ABC, Generic[Found]):
    """Some client code on a net: whether it may be replayed, and the kinds of its calls."""

    def __init__(
        self, net: nn.Module, code: Callable[..., Any], reasons: dict[str, None],
        beside: Callable[..., Any] | None = None,
    ) -> None:  # fmt: skip
        """reasons: where it is said why the code runs as it stands.  beside: code that runs between the calls.

        What is known is remembered for as long as the net is.
        """
        self.identify = lambda: identity(code, net)
        mine = self.identify()
        self.code, self.own, self.form, why, _ = mine
        if beside and ((other := identity(beside, net)).code is None or mine.changeable or other.changeable):
            self.code, why = None, why or other.why or "client code could change what the loss beside it reads"
        self.codes = _CODES.setdefault(net, {})
        if len(self.codes) >= KINDS:
            self.codes.clear()
        if self.form is not None and self.form in self.codes:
            self.code = None  # it was found out before
        self.code = self.codes.setdefault(self.code, self.code)  # the one that was met before, which is found faster
        self.reasons = reasons
        if why:
            self.reasons[why] = None
        self.modes = tuple(part.training for part in net.children())
        self.kinds = _KINDS.setdefault(net, {})

    def kind(self, *rest: Hashable) -> Kind:
        """What is known of calls that are alike in all this, the code and the net's modes."""
        key = (type(self), self.code, self.modes, *rest)
        return self.met(key) or self.remember(key, Kind())

    def met(self, key: Key | None) -> Kind | None:
        """What is remembered under a key."""
        return self.remember(key, self.kinds.pop(key)) if key and key in self.kinds else None

    def remember(self, key: Key, kind: Kind) -> Kind:
        """Remember a kind, and forget the one that was not met for longest."""
        self.kinds[key] = kind
        if len(self.kinds) > KINDS:
            del self.kinds[next(iter(self.kinds))]
        return kind

    def family(self, *rest: Hashable) -> Key | None:
        """The key under which the code is known whatever its first arguments are; None if it has none."""
        return (type(self), self.code.code, self.modes, *rest) if isinstance(self.code, Applied) else None

    @abstractmethod
    def flat(self, found: Found) -> list[Tensor | None]:
        """What the code gave, as a tape gives it."""

    @abstractmethod
    def remember_form(self, kind: Kind, found: Found) -> None:
        """What else is to be known of what the code gives."""

    def learned(
        self, kind: Kind, run: Callable[[], Found], fixed: list[Tensor], fresh: list[Tensor], moving: Sequence[int]
    ) -> Found:  # fmt: skip
        """What the code gives; it is noted on the way, or a tape of it tried.  Arguments as `Tape` has them."""
        if kind.unfit or (kind.met < MET and not kind.tape):
            return run()
        return self._tried(kind, run, fixed, fresh) if kind.tape else self._noted(kind, run, fixed, fresh, moving)

    def _noted(
        self, kind: Kind, run: Callable[[], Found], fixed: list[Tensor], fresh: list[Tensor], moving: Sequence[int]
    ) -> Found:  # fmt: skip
        recorder, found = self.watched(run, [*fixed, *fresh])
        try:
            kind.tape = Tape(recorder, len(fixed), len(fresh), moving, self.flat(found))
        except Unfit as error:
            kind.unfit = True
            self.reasons[str(error)] = None
        self.remember_form(kind, found)
        return found

    def _tried(self, kind: Kind, run: Callable[[], Found], fixed: list[Tensor], fresh: list[Tensor]) -> Found:
        assert kind.tape
        held = {i: t.detach().clone() for i, t in enumerate(fixed) if 0 not in t.stride()}  # what can be written into
        with torch.inference_mode():
            tried = kind.tape.bind([held.get(i, t) for i, t in enumerate(fixed)])(*fresh)
        found = run()
        pairs = [*zip(tried, self.flat(found), strict=True), *((t, fixed[i]) for i, t in held.items())]
        kind.believed = all(a is b if a is None or b is None else torch.equal(a, b) for a, b in pairs)
        kind.unfit = not kind.believed
        return found

    def watched(self, run: Callable[[], Found], given: Sequence[Tensor]) -> tuple[Recorder, Found]:
        """The code's operations; an author's must run nothing, and change nothing, that is not known."""
        if self.own is None:
            with (recorder := Recorder(given)):
                return recorder, run()
        with (watch := Watch(self.own)), (recorder := Recorder(given)):
            found = run()
        if not watch.stranger and self.identify().code != self.code:
            watch.stranger = "changes what it reads"
        if watch.stranger:
            self.codes[self.form] = None
        recorder.unfit = f"client code {watch.stranger}" if watch.stranger else recorder.unfit
        return recorder, found


def looks(tensors: Sequence[Tensor]) -> Hashable:
    """What a tape takes for granted of the tensors that it is given, and which of them are one."""
    first: dict[int, int] = {}
    return tuple((t.shape, t.stride(), t.dtype, t.device, first.setdefault(id(t), i)) for i, t in enumerate(tensors))


def names(tree: Tree) -> Iterator[str]:
    """The form of a tree."""
    if isinstance(tree, dict):
        for name, part in tree.items():
            yield name
            yield from names(part)
    elif isinstance(tree, tuple):
        yield type(tree).__name__
        for part in tree:
            yield from names(part)
    yield ""
