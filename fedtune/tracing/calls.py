"""Record client code that is called many times, and decide which calls can share a recording.

After a few calls of each combination of net, code and argument shapes, the recorded operations run by themselves.  The
trials of a process share recordings, each with its own constants.  Only code that is declared pure is recorded
(`purity`), and none that draws random numbers, because a number's address counts the draws before it.

A recording is compared with the code itself at its 1st, 2nd, 4th, 8th … replay and then at every 512th, in at most
30 ms and a 200th of the time.  The recording works on copies then, so only the code changes the state.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from fedtune.core.pure import is_known
from fedtune.core.trees import Tree
from fedtune.tracing import purity
from fedtune.tracing.recording import Captures, OperationRecorder
from fedtune.tracing.tape import Tape, Untraceable

CALLS_BEFORE = 3  # calls of one kind before recording: it costs as much as three, and saves half of each later one
ENTRIES = 256  # recently used recordings per form of net
FORMS = 8  # recently used forms of nets
MAX_RETRACES = 3  # failed attempts to reuse a tape for other constants before the code runs eagerly
SELDOM = 512  # the most replays between two comparisons
SHARE, FREE = 0.005, 0.03  # comparisons after the first take at most this share of the time plus these seconds
SWITCH = "FEDTUNE_EAGER"  # an environment variable: 1 records nothing

Result = TypeVar("Result")


class Impure(RuntimeError):
    """Code that counts as pure computed something else than its recording."""


class CacheEntry:
    """A group of calls with the same code, shapes and memory orders: how often it was called, and its tape."""

    def __init__(self) -> None:
        """A group without any calls."""
        self.calls_seen, self.retraces, self.verified, self.untraceable = 0, 0, False, False
        self.tape: Tape | None = None
        self.captures: Captures | None = None  # the code's own constants and numbers, if its tape is another entry's
        self.form: Any = None  # the structure of the code's result


class _Clock:
    """How much of this process's time comparisons have taken since the first one."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.spent, self.began = 0.0, 0.0

    def allows(self, cost: float) -> bool:
        """Whether there is time for another comparison that takes this many seconds."""
        seconds = time.thread_time()
        self.began = self.began or seconds
        return self.spent + cost <= FREE + SHARE * (seconds - self.began)


Key = tuple[Hashable, ...]  # the class of calls, the code, the net's modes, and what else distinguishes the calls
_ENTRIES: WeakKeyDictionary[nn.Module, dict[Key, CacheEntry]] = WeakKeyDictionary()
_FORMS: dict[Hashable, dict[Key, CacheEntry]] = {}
_CLOCK = _Clock()
_SWITCHED_OFF: list[bool] = []


class Calls(Generic[Result]):
    """The calls of one piece of client code on one net: whether they may be recorded, and their recordings."""

    def __init__(self, net: nn.Module, code: Callable[..., Any], reasons: dict[str, None]) -> None:
        """reasons: collects the reasons why the code runs eagerly."""
        self.code: Hashable | None = None
        if not (_SWITCHED_OFF or os.environ.get(SWITCH) == "1"):
            self.code, reason = purity.look(code, net)
            if reason:
                reasons[reason] = None
        self.reasons = reasons
        classes = (purity.unwrapped(code), *map(type, net.modules()))
        self.is_fedtune = all(is_known(of.__module__) for of in classes)
        self.modes = (torch.get_default_dtype(), *(part.training for part in net.children()))
        self.entries = {} if self.code is None else _of_form(net)
        self.same_code: Key | None = None  # the key of this code with any bound arguments
        self.same_method: Key | None = None  # the key of this method with any fields of its object

    def entry(self, *rest: Hashable) -> CacheEntry:
        """The cache entry for calls with this key, for this code and the net's current modes."""
        kind: Any = type(self)
        key, self.same_code, self.same_method = (
            None if code is None else (kind, code, self.modes, *rest)
            for code in (self.code, purity.same_code(self.code), purity.same_method(self.code))
        )
        assert key
        return self._find(key) or self._remember(key, CacheEntry())

    def similar(self) -> CacheEntry | None:
        """The cache entry for the same code with other constants, if there is one."""
        return self._find(self.same_code) or self._find(self.same_method)

    def _find(self, key: Key | None) -> CacheEntry | None:
        return self._remember(key, self.entries.pop(key)) if key and key in self.entries else None

    def _remember(self, key: Key, entry: CacheEntry) -> CacheEntry:
        """Keep an entry, and drop the least recently used one if there are too many."""
        self.entries[key] = entry
        if len(self.entries) > ENTRIES:
            del self.entries[next(iter(self.entries))]
        return entry

    def replay(self, entry: CacheEntry, fixed: Sequence[Tensor]) -> Callable[..., Result]:
        """The code's result on these fixed tensors, by its recorded operations, as a function of the fresh ones."""
        assert entry.tape
        run, form = entry.tape.bind(fixed, entry.captures), entry.form
        return lambda *fresh: tree_unflatten(run(*fresh), form)

    def is_due(self, entry: CacheEntry) -> bool:
        """Count a replay; whether this one should be compared with the code."""
        tape = entry.tape
        assert tape
        tape.replays += 1
        return tape.replays >= tape.next_check and _CLOCK.allows(tape.cost)

    def record(
        self,
        entry: CacheEntry,
        run: Callable[[], Result],
        fixed: list[Tensor],
        fresh: list[Tensor],
        moving: Sequence[int],
    ) -> Result:
        """Run the code and return its results; record it, or compare it with its recording.  Arguments: as `Tape`'s."""
        similar = self.similar() if entry.calls_seen == 1 else None
        if entry.tape:
            return self.compare(entry, run, fixed, fresh)
        if not similar and (entry.untraceable or entry.calls_seen < CALLS_BEFORE):
            return run()
        with (recorder := OperationRecorder([*fixed, *fresh])):
            result = run()
        results, entry.form = tree_flatten(result)
        if similar:
            self._adopt(entry, similar, recorder, results)
            return result
        try:
            entry.tape = Tape(recorder, len(fixed), len(fresh), moving=moving, results=results)
        except Untraceable as error:
            entry.untraceable = True
            self.reasons[str(error)] = None
        return result

    def _adopt(
        self, entry: CacheEntry, similar: CacheEntry, recorder: OperationRecorder, results: list[Tensor | None]
    ) -> None:
        """Use `similar`'s tape with the constants of this recording, if it has the same operations."""
        assert similar.tape
        if similar.tape.fits(recorder, results):
            entry.tape, entry.captures = similar.tape, recorder.captures()
            self._mark_verified(entry)
        elif similar is self._find(self.same_code):
            similar.retraces += 1
            entry.untraceable = similar.retraces > MAX_RETRACES

    def _mark_verified(self, entry: CacheEntry) -> None:
        """From now on replay the tape, also for calls of the same code with other constants if the tape fits them."""
        entry.verified = True
        if previous := self._find(self.same_code):
            entry.retraces = previous.retraces
        for key in (self.same_code, self.same_method):
            if key:
                self._remember(key, entry)

    def compare(self, entry: CacheEntry, run: Callable[[], Result], fixed: list[Tensor], fresh: list[Tensor]) -> Result:
        """Run the code, and its recording on copies; returns the code's results; Impure if they differ."""
        tape = entry.tape
        assert tape
        began = time.thread_time()
        out = self._replay(entry, fixed, fresh)
        repeats = not fixed[0].is_cuda or _same(out, self._replay(entry, fixed, fresh))  # some CUDA kernels never do
        result = run()
        equal = _same(out, [*tree_leaves(result), *fixed])
        tape.cost = time.thread_time() - began
        _CLOCK.spent += tape.cost if entry.verified else 0.0
        while tape.next_check <= tape.replays:
            tape.next_check = min(2 * tape.next_check, tape.next_check + SELDOM)
        if equal:
            if not entry.verified:
                self._mark_verified(entry)
        elif repeats and (entry.verified or not self.is_fedtune):
            raise Impure
        else:
            entry.verified, entry.untraceable = False, True
            self.reasons["its operations do not give the same bits again here"] = None
        return result

    def _replay(self, entry: CacheEntry, fixed: list[Tensor], fresh: list[Tensor]) -> list[Tensor | None]:
        """The recording's results, followed by the fixed tensors; those that are written into are copies."""
        assert entry.tape
        copies = [t.detach() if 0 in t.stride() else t.detach().clone() for t in fixed]
        with torch.inference_mode():
            return [*entry.tape.bind(copies, entry.captures)(*fresh), *copies]


def _same(one: Sequence[Tensor | None], two: Sequence[Tensor | None]) -> bool:
    pairs = zip(one, two, strict=True)
    return all(a is b if a is None or b is None else _equal(a, b) for a, b in pairs)


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same numbers; NaN equals NaN."""
    if a is b or torch.equal(a, b):
        return True
    nan = a.is_floating_point() and a.shape == b.shape
    return nan and bool(((a == b) | (a.isnan() & b.isnan())).all())


def recordings_of(net: nn.Module) -> dict[Key, CacheEntry]:
    """All recordings for this net and for other nets of the same form."""
    return dict(_ENTRIES.get(net, {}))


def forget() -> None:
    """Drop all recordings for new nets; existing nets keep theirs."""
    _FORMS.clear()
    _CLOCK.begin()


@contextmanager
def eager() -> Iterator[None]:
    """Code that starts within this context is neither recorded nor replayed."""
    _SWITCHED_OFF.append(True)
    try:
        yield
    finally:
        _SWITCHED_OFF.pop()


def _of_form(net: nn.Module) -> dict[Key, CacheEntry]:
    """The recordings that all nets of this net's form share."""
    if net not in _ENTRIES:
        form = purity.form_of(net)
        _ENTRIES[net] = {} if form is None else _FORMS.pop(form, {})
        if form is not None:
            _FORMS[form] = _ENTRIES[net]
        if len(_FORMS) > FORMS:
            del _FORMS[next(iter(_FORMS))]
    return _ENTRIES[net]


def metadata(tensors: Sequence[Tensor]) -> Hashable:
    """What a tape relies on in its arguments: shapes, memory orders, types, and which tensors are identical."""
    first: dict[int, int] = {}
    return tuple((t.shape, t.stride(), t.dtype, t.device, first.setdefault(id(t), i)) for i, t in enumerate(tensors))


def names(tree: Tree) -> Iterator[str]:
    """The structure of a tree: its names and types without its tensors."""
    if isinstance(tree, dict):
        for name, part in tree.items():
            yield name
            yield from names(part)
    elif isinstance(tree, tuple):
        yield type(tree).__name__
        for part in tree:
            yield from names(part)
    yield ""
