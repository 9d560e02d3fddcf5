"""Whether a step of an author's own code may be replayed: what all it can depend on is known, and is part of its key.

A tape repeats operations and not the Python that led to them.  That is the same if the Python depends on nothing but
the shapes of its tensors and values that are the same again, and leaves nothing behind.  Here this is shown, not tried:

    names       every function that loss and model can call is read as bytecode (`core.code_reads`).  It sets nothing
                outside.  Each global, variable of a function around it and default argument is a pure function, another
                such function, or a value whose content is in the key: a number, a text, a small tensor, a list of them.
    attributes  what `self.…` can mean, of the algorithm and of the net's modules, is in the key whole; of all else only
                such attributes are read as tell nothing but shapes, types and values.
    watched     while a step is noted, no Python runs but such functions, PyTorch's and fedtune's (`core.watch`); and
                afterwards all contents are what they were, so nothing was counted or kept.

Whatever does not fit runs as it stands in every step.  The key is made for every phase: anew, or, where nothing has
changed that was read for the last one (`core.snapshot`), from what was found then.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn

from fedtune.core.code_reads import Mention, Unprovable, reads, resolved
from fedtune.core.contents import LIMIT, Contents, Held, Kept, Key, Unreadable, in_words
from fedtune.core.pure_functions import ATTRIBUTES, is_known, is_pure, module_of
from fedtune.core.snapshot import Snapshot
from fedtune.core.trees import Ragged
from fedtune.experiment.algorithm import Algorithm, Batch, Client, Data, Model, Task

_MODULES = ("_parameters", "_buffers", "_modules")  # where a module holds what it consists of
_PLUMBING = {*vars(nn.Module()), *_MODULES}
_NAMES = {n for t in (Batch, Client, Data, Ragged, Task) for n in t._fields} | {
    n
    for n in (*vars(Model), "net", "tensors", "named_parameters", "named_buffers", "children", "training")
    if n[0] != "_"
}


class Proof(NamedTuple):
    """What code can depend on besides its tensors, as it is now, and the code that may run."""

    form: Hashable
    contents: Key
    codes: list[CodeType]
    changeable: bool  # whether it reads a list or the like, which it could write into


_READ: WeakKeyDictionary[nn.Module, dict[Hashable, _Reader]] = WeakKeyDictionary()
_MOST = 32  # codes whose reading is remembered for a net


def prove(loss: Any, net: nn.Module) -> Proof:
    """All that a loss on this net can depend on; Unprovable where that cannot be shown."""
    try:
        root, owner, arguments = _taken_apart(loss)
        found = Contents(_no_other)
        try:
            given = found(arguments)
        except Unreadable:
            return _Reader(root, owner, arguments, net).proof
        known = _READ.setdefault(net, {})
        place = (root, id(owner), type(net), id(vars(net)))  # which the reader holds
        reader = known.get(place)
        if reader is None or not reader.holds():
            if len(known) >= _MOST:
                known.clear()
            reader = known[place] = _Reader(root, owner, (), net)
        proof = reader.proof
        return proof._replace(contents=Key((given, proof.contents)), changeable=proof.changeable or found.changeable)
    except RecursionError:
        raise Unprovable("", "reads a value that holds itself") from None


def _taken_apart(loss: Any) -> tuple[FunctionType, Algorithm | None, tuple[Any, ...]]:
    """The function that is run at last, the algorithm whose method it is, and its first arguments."""
    if isinstance(loss, partial) and not loss.keywords:
        root, owner, arguments = _taken_apart(loss.func)
        return root, owner, (*arguments, *loss.args)
    owner = None
    if isinstance(loss, MethodType) and isinstance(loss.__self__, Algorithm):
        owner, loss = loss.__self__, loss.__func__
    if not isinstance(loss, FunctionType):
        raise Unprovable("", f"has a loss that is {in_words(loss)}")
    return loss, owner, ()


def _no_other(value: Any) -> Hashable:
    raise Unreadable(in_words(value))


class _Reader:
    """Goes from a loss and a net to every function that they can call, and notes what these can read."""

    def __init__(self, root: FunctionType, owner: Algorithm | None, arguments: tuple[Any, ...], net: nn.Module) -> None:
        self.contents = Contents(self._other)
        self.snapshot = Snapshot()
        self.lasts = True  # the snapshot has all that was read
        self.dtype = torch.get_default_dtype()
        self.found: list[Hashable] = [self.dtype]
        self.codes: list[CodeType] = []
        self.waiting: list[FunctionType] = []
        self.met: set[FunctionType] = set()
        self.members: dict[str, list[FunctionType]] = {}  # methods by name
        self.names: set[str] = set()  # of what the algorithm, the modules and their classes hold besides
        self.unreadable: dict[str, str] = {}  # some of these, with what they are
        self.changeable: set[str] = set()  # and those that could be written into
        self.read: dict[str, str] = {}  # attributes that somebody reads, and where
        self.classes: set[type] = set()  # the algorithm's and those of the author's modules
        self.owner = owner  # held, so that no other gets its identity
        self._note("an argument of the loss", arguments)
        if owner is not None:
            self._algorithm(owner)
        self._meet(root)
        self._modules(net)
        self.proof = self._proof(root, net)

    def holds(self) -> bool:
        """Whether the proof would be the same now."""
        self.contents.left = LIMIT
        return self.lasts and self.dtype is torch.get_default_dtype() and self.snapshot.unchanged(self.contents)

    def _proof(self, root: FunctionType, net: nn.Module) -> Proof:
        self._surroundings(root)
        for function in self.waiting:  # which grows
            self._function(function)
        for name, where in self.read.items():
            if name in self.unreadable:
                raise Unprovable(where, f"reads .{name}, {self.unreadable[name]}")
        changeable = "" in self.changeable or not self.changeable.isdisjoint(self.read)
        if "training" in self.read:  # that of the parts is known to whoever keeps the key
            self.found += [module.training for module in net.modules()]
        return Proof(root.__code__, Key(tuple(self.found)), self.codes, changeable)

    def _meet(self, function: FunctionType) -> None:
        if function not in self.met:
            self.met.add(function)
            self.waiting.append(function)

    # what is there -------------------------------------------------------------------------------------------------

    def _algorithm(self, algorithm: Algorithm) -> None:
        self.snapshot.holder(algorithm)
        for name, value in vars(algorithm).items():
            self._attribute(name, value)
        self._class(type(algorithm))

    def _modules(self, net: nn.Module) -> None:
        """Everything that the net's modules hold but the values of their tensors, which a step is given."""
        for path, module in net.named_modules():
            own = not is_known(type(module).__module__)
            if module is net:  # which is not to be held: this is forgotten with it
                self.snapshot.namespace(vars(net))
            else:
                self.snapshot.holder(module)
            self.found += [path, Kept(type(module))]
            if own:
                self._class(type(module))
                self._named("forward", "", own=False)
            for name, value in vars(module).items():
                if name in _MODULES:
                    self.snapshot.namespace(value)
                    self.names.update(value)
                    self.found += [(n, Kept(v)) for n, v in value.items()]
                elif name not in _PLUMBING and (own or name[0] != "_"):
                    self._attribute(name, value)
                elif name.endswith(("forward_hooks", "forward_pre_hooks", "backward_hooks")):
                    if value:
                        raise Unprovable("", f"has a hook on the module {path or type(module).__name__}")
                    self.snapshot.empty.append(value)

    def _class(self, cls: type) -> None:
        """What instances find on a class and its bases: methods by name, and what an author's class holds besides."""
        if cls in self.classes:
            return
        self.classes.add(cls)
        self.snapshot.orders.append((cls, cls.__mro__))
        for owner in cls.__mro__:
            if owner in (object, nn.Module):
                continue
            self.snapshot.namespace(vars(owner))
            self.found.append(Kept(owner))
            for name, value in vars(owner).items():
                if function := _function_in(value):
                    self.members.setdefault(name, []).append(function)
                    self.found.append((name, function))
                elif not is_known(owner.__module__) and name[:2] != "__":
                    self._attribute(name, value)

    def _attribute(self, name: str, value: Any) -> None:
        """What an algorithm, a class or a module holds under a name: in the way only if somebody reads it."""
        self.names.add(name)
        try:
            self.found.append((name, self._content(value, name)))
        except Unreadable as error:
            self.unreadable[name] = str(error)

    def _content(self, value: Any, name: str = "") -> Hashable:
        self.contents.changeable = self.contents.fluid = False
        content = self.contents(value)
        if self.contents.fluid:
            self.snapshot.contents.append((value, content))
        if self.contents.changeable:
            self.changeable.add(name)
        return content

    def _note(self, what: str, value: Any, where: str = "") -> None:
        try:
            self.found.append((what, self._content(value)))
        except Unreadable as error:
            raise Unprovable(where, f"reads {what}, {error}") from None

    def _other(self, value: Any) -> Hashable:
        """The key of what is no data: a pure function, one to be looked into, a class, an algorithm, a layer."""
        if is_pure(value):
            return Kept(value)
        if isinstance(value, FunctionType) and not is_known(module_of(value)):
            self._meet(value)
            return Kept(value)
        if isinstance(value, type) and value is not object and any(issubclass(c, value) for c in self.classes):
            return Kept(value)
        self.lasts = False  # what these hold is not asked for again
        if isinstance(value, Algorithm):
            self._algorithm(value)
            return Kept(type(value))
        if isinstance(value, nn.Module) and all(is_known(type(m).__module__) for m in value.modules()):
            return tuple(self._layer(m) for m in value.modules())
        raise Unreadable(in_words(value))

    def _layer(self, module: nn.Module) -> Hashable:
        """A layer of PyTorch's that is no part of the net."""
        held = {n: v for n, v in vars(module).items() if n[0] != "_"}
        tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        return Kept(module), self.contents(held), *((n, Held(t)) for n, t in tensors)

    # what is read --------------------------------------------------------------------------------------------------

    def _function(self, function: FunctionType) -> None:
        """What a function that may be called says by name."""
        said, own = reads(function.__code__), not is_known(module_of(function))
        self.snapshot.code(function)
        self.found.append(function.__code__)
        if own:
            if said.refusal:
                raise said.refusal
            self.codes += said.codes
            self._surroundings(function)
            for mention in said.mentions:
                self._mention(function, mention)
        for name, where in said.attributes.items():
            self._named(name, where, own)

    def _surroundings(self, function: FunctionType) -> None:
        """Its default arguments, attributes, and variables of the functions around it."""
        code = function.__code__
        where = f"{code.co_filename}:{code.co_firstlineno}"
        self._note("a default argument", (function.__defaults__, *(function.__kwdefaults__ or {}).items()), where)
        self._note("an attribute of its own", (*vars(function).items(),), where)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:
                raise Unprovable(where, f"reads {name}, which is not defined yet") from None
            self._note(name, value, where)
        self.snapshot.function(function)

    def _mention(self, function: FunctionType, mention: Mention) -> None:
        value, rest = resolved(function, mention, self.snapshot.entry)
        if isinstance(value, FunctionType) and mention.names[0] not in function.__globals__:
            raise Unprovable(mention.where, f"reads {mention.names[0]}, {in_words(value)}")  # Ray's print, say
        self._note(".".join(mention.names[: len(mention.names) - len(rest)]), value, mention.where)
        for name in rest:
            self._named(name, mention.where, own=True)

    def _named(self, name: str, where: str, own: bool) -> None:
        """An attribute that is read of some value."""
        for function in self.members.get(name, ()):
            self._meet(function)
        self.read.setdefault(name, where)
        if own and not (name in self.members or name in self.names or name in ATTRIBUTES or name in _NAMES):
            raise Unprovable(where, f"reads .{name}")


def _function_in(value: Any) -> FunctionType | None:
    """The function of a method, of a static or class method, or of a property; not of one that is bound already."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    value = value.fget if isinstance(value, property) else value
    return value if isinstance(value, FunctionType) else None
