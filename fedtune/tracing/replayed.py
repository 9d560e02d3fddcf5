"""Client code that is called again and again: which of its calls are alike, and what was noted of them.

`vmap` and autograd find out anew in every call which operations that is.  Here they do it a few times for each form
of net, code and form of what it is given; then the operations, as `tracing.tape` noted them, are run by themselves.  So
the trials of a search that a process trains share them, each with its own numbers.  A tape is
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

from fedtune.core.trees import Tree
from fedtune.core.watch import Watch
from fedtune.tracing.form import form_of
from fedtune.tracing.recording import Given, Recorder
from fedtune.tracing.step_identity import family, identity, kindred
from fedtune.tracing.tape import Tape, Unfit

MET = 3  # calls of one kind before one is noted: noting costs as much as three, and saves half of one
KINDS = 256  # of calls remembered for a form of net: those that were met last
FORMS = 8  # of nets that are remembered
MISFITS = 3  # times that code with other numbers may be other operations before it is left as it stands

Found = TypeVar("Found")


class Kind:
    """Calls that are alike in code, shapes and memory orders: how many were met, and their tape."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.met, self.misfits, self.believed, self.unfit = 0, 0, False, False
        self.tape: Tape | None = None
        self.given: Given | None = None  # the code's constants and numbers, where its tape was noted with others
        self.form: Any = None  # of what the code gives
        self.asks: list[str] = []


Key = tuple[Hashable, ...]  # how calls are made, of what code, in which modes, and what else tells them apart
_KINDS: WeakKeyDictionary[nn.Module, dict[Key, Kind]] = WeakKeyDictionary()
_SHARED: WeakKeyDictionary[nn.Module, dict[Key, Kind]] = WeakKeyDictionary()  # by all nets of a form
_FORMS: dict[Hashable, dict[Key, Kind]] = {}
_CODES: WeakKeyDictionary[nn.Module, dict[Hashable, Hashable]] = WeakKeyDictionary()


class Replayed(ABC, Generic[Found]):
    """Some client code on a net: whether it may be replayed, and the kinds of its calls."""

    def __init__(
        self,
        net: nn.Module,
        code: Callable[..., Any],
        reasons: dict[str, None],
        beside: Callable[..., Any] | None = None,
    ) -> None:
        """reasons: where it is said why the code runs as it stands.  beside: code that runs between the calls.

        What is known of an author's code is remembered for as long as the net is; of ours, as the net's form is.
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
        of_ours = self.code is not None and self.own is None
        self.kinds = _of_form(net) if of_ours else _KINDS.setdefault(net, {})
        self.family: Key | None = None  # where there is what is known of the code with other first arguments
        self.kindred: Key | None = None  # and with other fields of its algorithm

    def kind(self, *rest: Hashable) -> Kind:
        """What is known of calls that are alike in all this, the code and the net's modes."""
        key, self.family, self.kindred = (
            None if code is None else (type(self), code, self.modes, *rest)
            for code in (self.code, family(self.code), kindred(self.code))
        )
        assert key
        return self.met(key) or self.remember(key, Kind())

    def like(self) -> Kind | None:
        """What is known of such calls of the code with other numbers in it."""
        return self.met(self.family) or self.met(self.kindred)

    def met(self, key: Key | None) -> Kind | None:
        """What is remembered under a key."""
        return self.remember(key, self.kinds.pop(key)) if key and key in self.kinds else None

    def remember(self, key: Key, kind: Kind) -> Kind:
        """Remember a kind, and forget the one that was not met for longest."""
        self.kinds[key] = kind
        if len(self.kinds) > KINDS:
            del self.kinds[next(iter(self.kinds))]
        return kind

    @abstractmethod
    def flat(self, found: Found) -> list[Tensor | None]:
        """What the code gave, as a tape gives it."""

    @abstractmethod
    def remember_form(self, kind: Kind, found: Found) -> None:
        """What else is to be known of what the code gives."""

    def learned(
        self, kind: Kind, run: Callable[[], Found], fixed: list[Tensor], fresh: list[Tensor], moving: Sequence[int]
    ) -> Found:
        """What the code gives; it is noted on the way, or a tape of it tried.  Arguments as `Tape` has them."""
        if kind.met == 1 and (like := self.like()):
            return self.noted_again(kind, like, run, [*fixed, *fresh])
        if kind.unfit or (kind.met < MET and not kind.tape):
            return run()
        return self._tried(kind, run, fixed, fresh) if kind.tape else self._noted(kind, run, fixed, fresh, moving)

    def noted_again(self, kind: Kind, like: Kind, run: Callable[[], Found], given: Sequence[Tensor]) -> Found:
        """What the code gives; on the way its operations are noted, and if they are those of the tape of `like`, it
        replays that tape, with the numbers that were noted now.  As in a round with other weights.
        """
        recorder, found = self.watched(run, given)
        assert like.tape
        if like.tape.fits(recorder, self.flat(found)):
            kind.tape, kind.given, kind.form, kind.asks = like.tape, recorder.given(), like.form, like.asks
            self._believe(kind)
        elif like is self.met(self.family):
            like.misfits += 1
            kind.unfit = like.misfits > MISFITS
        return found

    def _believe(self, kind: Kind) -> None:
        """From now on its tape is replayed, also for such calls of the code with other numbers in it, if it fits."""
        kind.believed = True
        if before := self.met(self.family):  # which it takes the place of
            kind.misfits = before.misfits
        for key in (self.family, self.kindred):
            if key:
                self.remember(key, kind)

    def _noted(
        self, kind: Kind, run: Callable[[], Found], fixed: list[Tensor], fresh: list[Tensor], moving: Sequence[int]
    ) -> Found:
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
            tried = kind.tape.bind([held.get(i, t) for i, t in enumerate(fixed)], kind.given)(*fresh)
        found = run()
        pairs = [*zip(tried, self.flat(found), strict=True), *((t, fixed[i]) for i, t in held.items())]
        kind.unfit = not all(a is b if a is None or b is None else torch.equal(a, b) for a, b in pairs)
        if not kind.unfit:
            self._believe(kind)
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


def known(net: nn.Module) -> dict[Key, Kind]:
    """What is known of calls on a net, and on others of its form."""
    return {**_SHARED.get(net, {}), **_KINDS.get(net, {})}


def forget() -> None:
    """Forget what was found out about forms of nets: nets that come share nothing with those that there are.

    What is known of these stays as long as they do.
    """
    _FORMS.clear()


def _of_form(net: nn.Module) -> dict[Key, Kind]:
    """What is known of calls on all nets of this net's form."""
    if net not in _SHARED:
        form = form_of(net)
        _SHARED[net] = {} if form is None else _FORMS.pop(form, {})
        if form is not None:
            _FORMS[form] = _SHARED[net]
        if len(_FORMS) > FORMS:
            del _FORMS[next(iter(_FORMS))]
    return _SHARED[net]


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
