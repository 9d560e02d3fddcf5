"""What tells one step's code from another's: code of ours by its fields, an author's by all that it can depend on."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

from torch import nn

from fedtune.core.code_reads import Unprovable
from fedtune.core.pure_functions import is_known
from fedtune.tracing.user_steps import prove


class Applied(NamedTuple):
    """Code with its first arguments, such as a loss that knows the round."""

    code: Hashable
    arguments: Hashable
    types: tuple[type, ...] = ()  # of the arguments, as 1 and 1.0 are equal


class Method(NamedTuple):
    """A method of ours with the algorithm whose it is, which is told from others by its fields."""

    function: Callable[..., Any]
    owner: Hashable


class Identity(NamedTuple):
    """Code as a key; what Python it may run, if not all is ours; or why it has no key."""

    code: Hashable | None
    own: list[CodeType] | None = None
    form: Hashable | None = None  # of an author's code: what stays when values change that it reads
    why: str = ""
    changeable: bool = False  # whether it reads a list or the like, which another's code could write into


def family(code: Hashable) -> Hashable | None:
    """Under what code is known whatever its first arguments are; None if it has none."""
    return Applied(code.code, "any") if isinstance(code, Applied) else None


def kindred(code: Hashable) -> Hashable | None:
    """Under what code of ours is known whatever its algorithm's fields and its first arguments are."""
    if isinstance(code, Applied):
        return kindred(code.code)
    return Method(code.function, type(code.owner)) if isinstance(code, Method) else None


def identity(loss: Callable[..., Any], net: nn.Module) -> Identity:
    """What tells code from other code, with everything that its steps can depend on."""
    if all(map(_ours, {type(m) for m in net.modules()})) and (code := _of_ours(loss)) is not None:
        return Identity(code)
    try:
        proof = prove(loss, net)
    except Unprovable as error:
        return Identity(None, why=str(error))
    return Identity(Applied(proof.form, proof.contents), proof.codes, proof.form, "", proof.changeable)


def _of_ours(code: Any) -> Hashable | None:
    """Code of ours with its fields and arguments; None for other code, and what may depend on more."""
    if isinstance(code, partial):
        inner = _of_ours(code.func)
        types = tuple(map(type, code.args))
        return None if inner is None or code.keywords else _hashed(Applied(inner, code.args, types))
    if isinstance(code, MethodType):
        return _hashed(Method(code.__func__, code.__self__)) if _ours(type(code.__self__)) else None
    return code if isinstance(code, FunctionType) and _ours(code) and not code.__closure__ else None


def _hashed(value: Hashable) -> Hashable | None:
    try:
        hash(value)
    except TypeError:
        return None
    return value


def _ours(thing: Any) -> bool:
    """Whether a class or function is fedtune's or PyTorch's."""
    return is_known(thing.__module__)
