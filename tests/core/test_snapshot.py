"""A snapshot tells of whatever changed in what was read, and of nothing else."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedtune.core.contents import Contents, Unreadable
from fedtune.core.snapshot import Snapshot


class Base:
    pass


class Other:
    pass


class Subject:
    """What is read in these tests: a namespace, an entry of another, a function, a value that can be written into."""

    def __init__(self) -> None:
        self.held = {"a": 1.0, "b": (2, 3)}
        self.world: dict[str, Any] = {"torch": torch, "beside": 1}
        self.list, self.tensor = [1, [2]], torch.ones(2)
        self.hooks: dict[int, str] = {}
        self.holder = Base()
        self.thing, self.kind = Base(), type("Kind", (Base,), {})
        about = 1

        def function(x: int, at: int = 1, *, pace: int = 2) -> int:
            return x + at + pace + about

        self.function = function
        self.contents = Contents(self._other)
        self.snapshot = s = Snapshot()
        s.namespace(self.held)
        s.entry(self.world, "torch")
        s.entry(self.world, "absent")
        s.function(function)
        s.code(function)
        s.holder(self.holder)
        s.empty.append(self.hooks)
        s.types.append((self.thing, Base))
        s.orders.append((self.kind, self.kind.__mro__))
        s.contents += [(value, self.contents(value)) for value in (self.list, self.tensor)]

    def unchanged(self) -> bool:
        return self.snapshot.unchanged(self.contents)

    @staticmethod
    def _other(value: Any) -> Any:
        raise Unreadable("an object")


def _cell(s: Subject, value: Any) -> None:
    assert s.function.__closure__
    s.function.__closure__[0].cell_contents = value


def _emptied(s: Subject) -> None:
    assert s.function.__closure__
    del s.function.__closure__[0].cell_contents


def _reordered(s: Subject) -> None:
    s.held["a"] = s.held.pop("a")


CHANGES: dict[str, Callable[[Subject], Any]] = {
    "another value": lambda s: s.held.update(a=2.0),
    "another value that is equal": lambda s: s.held.update(b=tuple([2, 3])),
    "one more": lambda s: s.held.update(c=1),
    "one less": lambda s: s.held.pop("b"),
    "another order": _reordered,
    "another global": lambda s: s.world.update(torch=pytest),
    "a global that was not there": lambda s: s.world.update(absent=None),
    "a global that is gone": lambda s: s.world.pop("torch"),
    "another code": lambda s: setattr(s.function, "__code__", (lambda x: x + s.held["a"]).__code__),
    "another default": lambda s: setattr(s.function, "__defaults__", (2,)),
    "another named default": lambda s: s.function.__kwdefaults__.update(pace=3),
    "no named defaults": lambda s: setattr(s.function, "__kwdefaults__", None),
    "an attribute of a function": lambda s: setattr(s.function, "count", 1),
    "another dict of a function": lambda s: setattr(s.function, "__dict__", {}),
    "another dict of an object": lambda s: setattr(s.holder, "__dict__", {}),
    "another type of an object": lambda s: setattr(s.holder, "__class__", Other),
    "another variable around it": lambda s: _cell(s, 2),
    "no variable around it": _emptied,
    "a hook": lambda s: s.hooks.update({0: "hook"}),
    "another type": lambda s: setattr(s.thing, "__class__", Other),
    "another base": lambda s: setattr(s.kind, "__bases__", (Other,)),
    "a list within a list": lambda s: s.list[1].append(3),
    "a tensor's number": lambda s: s.tensor.mul_(2),
    "a value that cannot be read": lambda s: s.list.append(object()),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_told(name: str) -> None:
    subject = Subject()
    assert subject.unchanged() and subject.unchanged()
    CHANGES[name](subject)
    assert not subject.unchanged()


def test_what_nobody_read_may_change() -> None:
    subject = Subject()
    subject.world.update(beside=2, more=3)
    assert subject.unchanged()


def test_what_was_changed_back_is_unchanged() -> None:
    subject = Subject()
    subject.tensor.mul_(2)
    subject.tensor.div_(2)
    subject.list.append(subject.list.pop())
    assert subject.unchanged()
