"""Client code that is called again and again: which of its calls are alike, and the operations recorded of them.

`vmap` and autograd find out anew in every call which operations that is.  Here they do it a few times for each form
of net, code and form of what it is given; then the operations are run by themselves.  So the trials of a search that a
process trains share them, each with its own numbers.  Recorded is code that is declared pure (`purity`).  What draws
random numbers while it runs is run eagerly in every call, as their addresses count the draws.

A record is compared with the code itself at its 1st, 2nd, 4th, 8th … replay and then at every 512th, within a hundredth
of the time.  The record gets copies to write into, so that the code alone changes what is there.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedtune.core.pure import is_known
from fedtune.core.trees import Tree
from fedtune.tracing import purity
from fedtune.tracing.form import form_of
from fedtune.tracing.recording import Given, Recorder
from fedtune.tracing.tape import Replay, Tape, Untraceable

CALLS_BEFORE = 3  # calls of one kind before one is recorded: that costs as much as three, and saves half of one
ENTRIES = 256  # of calls remembered for a form of net: those that came last
FORMS = 8  # of nets that are remembered
MAX_RETRACES = 3  # times that code with other numbers may be other operations before it is left as it is
SELDOM = 512  # replays between two comparisons, in the end
SHARE, FREE = 0.005, 0.03  # of the time, and seconds besides, that comparisons after the first may take
SWITCH = "FEDTUNE_EAGER"  # an environment variable: 1 records nothing

Found = TypeVar("Found")


class Impure(RuntimeError):
    """Code that is taken as pure, but gave other numbers than its record."""


class CacheEntry:
    """Calls that are alike in code, shapes and memory orders: how many there were, and their tape."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.calls_seen, self.retraces, self.verified, self.untraceable = 0, 0, False, False
        self.tape: Tape | None = None
        self.given: Given | None = None  # the code's constants and numbers, where its tape was recorded with others
        self.form: Any = None  # of what the code gives
        self.asks: list[str] = []


class _Clock:
    """How long comparisons have taken in this process, beside all that it has done since the first."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.spent, self.began = 0.0, 0.0

    def allows(self, cost: float) -> bool:
        """Whether there is time for another one that costs so many seconds."""
        now = time.thread_time()
        self.began = self.began or now
        return self.spent + cost <= FREE + SHARE * (now - self.began)


Key = tuple[Hashable, ...]  # how calls are made, of what code, in which modes, and what else tells them apart
_ENTRIES: WeakKeyDictionary[nn.Module, dict[Key, CacheEntry]] = WeakKeyDictionary()
_FORMS: dict[Hashable, dict[Key, CacheEntry]] = {}
_CLOCK = _Clock()
_SWITCHED_OFF: list[bool] = []


class Calls(ABC, Generic[Found]):
    """Some client code on a net: whether it may be recorded, and what is known of its calls."""

    def __init__(self, net: nn.Module, code: Callable[..., Any], reasons: dict[str, None]) -> None:
        """reasons: where it is said why the code runs eagerly."""
        self.code: Hashable | None = None
        if not (_SWITCHED_OFF or os.environ.get(SWITCH) == "1"):
            self.code, why = purity.look(code, net)
            if why:
                reasons[why] = None
        self.reasons = reasons
        self.ours = is_known(purity.unwrapped(code).__module__) and purity.layers_of(net).ours
        self.modes = (torch.get_default_dtype(), *(part.training for part in net.children()))
        self.entries = {} if self.code is None else _of_form(net)
        self.same_code: Key | None = None  # where there is what is known of the code with other first arguments
        self.same_method: Key | None = None  # and with other fields of its object

    def entry(self, *rest: Hashable) -> CacheEntry:
        """What is known of calls that are alike in all this, the code and the net's modes."""
        key, self.same_code, self.same_method = (
            None if code is None else (type(self), code, self.modes, *rest)
            for code in (self.code, purity.same_code(self.code), purity.same_method(self.code))
        )
        assert key
        return self._known(key) or self._remember(key, CacheEntry())

    def like(self) -> CacheEntry | None:
        """What is known of such calls of the code with other numbers in it."""
        return self._known(self.same_code) or self._known(self.same_method)

    def _known(self, key: Key | None) -> CacheEntry | None:
        return self._remember(key, self.entries.pop(key)) if key and key in self.entries else None

    def _remember(self, key: Key, entry: CacheEntry) -> CacheEntry:
        """Remember an entry, and forget the one that was not asked for longest."""
        self.entries[key] = entry
        if len(self.entries) > ENTRIES:
            del self.entries[next(iter(self.entries))]
        return entry

    @abstractmethod
    def flat(self, found: Found) -> list[Tensor | None]:
        """What the code gave, as a tape gives it."""

    @abstractmethod
    def remember_form(self, entry: CacheEntry, found: Found) -> None:
        """What else is to be known of what the code gives."""

    def replay(self, entry: CacheEntry, fixed: Sequence[Tensor]) -> Replay:
        """The recorded operations on these fixed tensors, as a function of the fresh ones."""
        assert entry.tape
        return entry.tape.bind(fixed, entry.given)

    def is_due(self, entry: CacheEntry) -> bool:
        """Count a replay; whether it is one that is to be compared with the code."""
        tape = entry.tape
        assert tape
        tape.replays += 1
        return tape.replays >= tape.due and _CLOCK.allows(tape.cost)

    def record(
        self,
        entry: CacheEntry,
        run: Callable[[], Found],
        fixed: list[Tensor],
        fresh: list[Tensor],
        moving: Sequence[int],
    ) -> Found:
        """What the code gives; it is recorded on the way, or compared with its record.  Arguments: as `Tape` has."""
        if entry.calls_seen == 1 and (like := self.like()):
            return self.record_again(entry, like, run, [*fixed, *fresh])
        if entry.untraceable or (entry.calls_seen < CALLS_BEFORE and not entry.tape):
            return run()
        if entry.tape:
            return self.compare(entry, run, fixed, fresh)
        return self._recorded(entry, run, fixed, fresh, moving)

    def record_again(
        self, entry: CacheEntry, like: CacheEntry, run: Callable[[], Found], given: Sequence[Tensor]
    ) -> Found:
        """What the code gives; on the way its operations are recorded, and if they are those of the tape of `like`, it
        replays that tape, with the numbers that were recorded now.  As in a round with other weights.
        """
        with (recorder := Recorder(given)):
            found = run()
        assert like.tape
        if like.tape.fits(recorder, self.flat(found)):
            entry.tape, entry.given, entry.form, entry.asks = like.tape, recorder.given(), like.form, like.asks
            self._verified(entry)
        elif like is self._known(self.same_code):
            like.retraces += 1
            entry.untraceable = like.retraces > MAX_RETRACES
        return found

    def _verified(self, entry: CacheEntry) -> None:
        """From now on its tape is replayed, also for such calls of the code with other numbers in it, if it fits."""
        entry.verified = True
        if before := self._known(self.same_code):  # which it takes the place of
            entry.retraces = before.retraces
        for key in (self.same_code, self.same_method):
            if key:
                self._remember(key, entry)

    def _recorded(
        self,
        entry: CacheEntry,
        run: Callable[[], Found],
        fixed: list[Tensor],
        fresh: list[Tensor],
        moving: Sequence[int],
    ) -> Found:
        with (recorder := Recorder([*fixed, *fresh])):
            found = run()
        try:
            entry.tape = Tape(recorder, len(fixed), len(fresh), moving, self.flat(found))
        except Untraceable as error:
            entry.untraceable = True
            self.reasons[str(error)] = None
        self.remember_form(entry, found)
        return found

    def compare(self, entry: CacheEntry, run: Callable[[], Found], fixed: list[Tensor], fresh: list[Tensor]) -> Found:
        """What the code gives, compared with its record, which gets copies to write into.  Impure if they differ."""
        tape = entry.tape
        assert tape
        began = time.thread_time()
        tried = self._tried(entry, fixed, fresh)
        repeats = not fixed[0].is_cuda or _same(tried, self._tried(entry, fixed, fresh))  # some kernels never do
        found = run()
        same = _same(tried, [*self.flat(found), *fixed])
        tape.cost = time.thread_time() - began
        _CLOCK.spent += tape.cost if entry.verified else 0.0
        while tape.due <= tape.replays:
            tape.due = min(2 * tape.due, tape.due + SELDOM)
        if same:
            if not entry.verified:
                self._verified(entry)
        elif repeats and (entry.verified or not self.ours):
            raise Impure
        else:
            entry.verified, entry.untraceable = False, True
            self.reasons["its operations do not give the same bits again here"] = None
        return found

    def _tried(self, entry: CacheEntry, fixed: list[Tensor], fresh: list[Tensor]) -> list[Tensor | None]:
        """What the record gives, and the fixed tensors after it: copies of those that can be written into."""
        assert entry.tape
        held = [t.detach() if 0 in t.stride() else t.detach().clone() for t in fixed]
        with torch.inference_mode():
            return [*entry.tape.bind(held, entry.given)(*fresh), *held]


def _same(one: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a is b if a is None or b is None else _equal(a, b) for a, b in pairs)


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same numbers; nan is nan."""
    if a is b or torch.equal(a, b):
        return True
    nan = a.is_floating_point() and a.shape == b.shape
    return nan and bool(((a == b) | (a.isnan() & b.isnan())).all())


def known(net: nn.Module) -> dict[Key, CacheEntry]:
    """What is known of calls on a net and on others of its form."""
    return dict(_ENTRIES.get(net, {}))


def forget() -> None:
    """Forget what was recorded: nets that come share nothing with those that there are.

    What is known of these stays as long as they do.
    """
    _FORMS.clear()
    _CLOCK.begin()


@contextmanager
def eager() -> Iterator[None]:
    """Within this, nothing that begins is recorded or replayed."""
    _SWITCHED_OFF.append(True)
    try:
        yield
    finally:
        _SWITCHED_OFF.pop()


def _of_form(net: nn.Module) -> dict[Key, CacheEntry]:
    """What is known of calls on all nets of this net's form."""
    if net not in _ENTRIES:
        form = form_of(net)
        _ENTRIES[net] = {} if form is None else _FORMS.pop(form, {})
        if form is not None:
            _FORMS[form] = _ENTRIES[net]
        if len(_FORMS) > FORMS:
            del _FORMS[next(iter(_FORMS))]
    return _ENTRIES[net]


def metadata(tensors: Sequence[Tensor]) -> Hashable:
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
