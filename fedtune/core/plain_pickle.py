"""Read and write pickles of arrays, dictionaries, lists, numbers and text; nothing in a pickle is ever run.

A pickle is a program.  Here only the instructions that build plain values work, and all that it can call are stand-ins
for the few functions with which NumPy stores arrays: each checks what it is given and builds the array from its bytes.
Anything else is refused by name.
"""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, BinaryIO, ClassVar

import numpy as np

INSTRUCTIONS = (
    "PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT "
    "BINFLOAT STRING BINSTRING SHORT_BINSTRING BINBYTES BINBYTES8 SHORT_BINBYTES UNICODE BINUNICODE BINUNICODE8 "
    "SHORT_BINUNICODE EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT DICT SETITEM "
    "SETITEMS GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE GLOBAL STACK_GLOBAL"
)
DTYPE = re.compile(r"[?biufUS]\d*|O8?")  # numbers and text, or plain values of any kind
DEEPEST = 20  # values within values
NUMPY_1, NUMPY_2 = "numpy.core", "numpy._core"  # NumPy 1 and 2; both read the first


class Refused(ValueError):
    """A pickle that holds something else, or is damaged; says what."""


def load(content: bytes) -> Any:
    """The value of a pickle; Refused for anything but arrays, dictionaries, lists, numbers and text."""
    try:
        return _value(_Reader(_Bytes(content)).load(), _Allowance(len(content)))
    except Refused:
        raise
    except RecursionError:
        raise Refused("it is nested too deeply") from None
    except Exception as error:  # whatever wrong instructions lead to
        raise Refused(f"it is damaged ({' '.join(str(error).split()) or type(error).__name__})") from error


def dump(value: Any, file: BinaryIO) -> None:
    """Write a value so that NumPy 1 can read it too."""
    _Writer(file, protocol=4).dump(value)


class _Bytes:
    """The bytes of a pickle.  A length that exceeds them is an error before memory is taken for it."""

    def __init__(self, content: bytes) -> None:
        self._content, self._position = content, 0

    def read(self, size: int) -> bytes:
        if size > len(self._content) - self._position:
            raise EOFError("it ends too early")
        self._position += size
        return self._content[self._position - size : self._position]

    def readline(self) -> bytes:
        end = self._content.find(b"\n", self._position) + 1 or len(self._content)
        return self.read(end - self._position)


class _Dtype:
    """Stand-in for a NumPy type while it is read."""

    def __init__(self, code: Any, *_: Any) -> None:
        if not isinstance(code, str) or not DTYPE.fullmatch(code):
            raise Refused(f"it holds an array of type {code!r:.50}")
        self._code, self._order = code, "|"

    def build(self, state: Any) -> None:
        """Take the byte order."""
        self._order = {"<": "<", ">": ">", "|": "|", "=": "="}[state[1]]

    def of(self) -> np.dtype[Any]:
        """The type itself."""
        return np.dtype(self._code).newbyteorder(self._order)  # type: ignore[arg-type]


class _Array:
    """Stand-in for an array while it is read: shape, type, order and bytes, or its values."""

    def __init__(self, *_: Any) -> None:
        self._state: tuple[Any, ...] = ()

    def build(self, state: Any) -> None:
        """Take what the array is made of."""
        _, *parts = state
        self._state = tuple(parts)

    def of(self, allowance: _Allowance) -> np.ndarray:
        """The array itself; Refused if its parts do not fit each other."""
        shape, dtype, by_column, content = self._state
        if not isinstance(dtype, _Dtype) or not all(isinstance(n, int) and n >= 0 for n in shape):
            raise Refused("it holds an array without a shape or a type")
        kind, order = dtype.of(), "F" if by_column else "C"
        if kind.hasobject:
            flat = np.empty(len(content), object)
            for i, value in enumerate(content):
                flat[i] = _value(value, allowance)
            return flat.reshape(shape, order=order)  # type: ignore[call-overload]
        if isinstance(content, str):  # Python 2 wrote bytes as text
            content = content.encode("latin1")
        if len(content) != math.prod(shape) * kind.itemsize:
            raise Refused(f"it holds an array of shape {tuple(shape)} and type {kind} with {len(content):,} bytes")
        return np.frombuffer(content, kind).reshape(shape, order=order)  # type: ignore[call-overload]


class _Call:
    """What a pickle may call; it has no attributes that a pickle could set."""

    __slots__ = ("_run",)

    def __init__(self, run: Any) -> None:
        self._run = run

    def run(self, arguments: tuple[Any, ...]) -> Any:
        """Call it."""
        return self._run(*arguments)


def _scalar(dtype: Any, content: Any) -> Any:
    """A NumPy number."""
    return np.frombuffer(content.encode("latin1") if isinstance(content, str) else content, dtype.of())[0]


def _encoded(text: str, _: str = "") -> bytes:
    """Bytes as Python 2's protocols write them."""
    return text.encode("latin1")


CALLS: Mapping[tuple[str, str], _Call] = MappingProxyType(
    {
        (f"{NUMPY_1}.multiarray", "_reconstruct"): _Call(_Array),
        (f"{NUMPY_1}.multiarray", "scalar"): _Call(_scalar),
        ("numpy", "ndarray"): _Call(_Array),
        ("numpy", "dtype"): _Call(_Dtype),
        ("_codecs", "encode"): _Call(_encoded),
    }
)


class _Reader(pickle._Unpickler):  # the class written in Python: its table of instructions can be reduced
    def find_class(self, module: str, name: str) -> Any:
        function = CALLS.get((module.replace(NUMPY_2, NUMPY_1), name))
        if function is None:
            raise Refused(f"it holds {module}.{name}"[:200])
        return function

    def load_reduce(self) -> None:
        """Call a stand-in."""
        arguments = self.stack.pop()  # type: ignore[attr-defined]
        called = self.stack[-1]  # type: ignore[attr-defined]
        if not isinstance(called, _Call):
            raise Refused("it calls what is no function")
        self.stack[-1] = called.run(arguments)  # type: ignore[attr-defined]

    def load_build(self) -> None:
        """Give a stand-in its parts."""
        state = self.stack.pop()  # type: ignore[attr-defined]
        built = self.stack[-1]  # type: ignore[attr-defined]
        if not isinstance(built, _Array | _Dtype):
            raise Refused("it holds an object that is no array")
        built.build(state)

    def refuse(self) -> None:
        """Stop at an instruction that plain values do not need."""
        raise Refused("it holds an object that is no array")

    dispatch: ClassVar[dict[int, Any]] = (
        dict.fromkeys(range(256), refuse)
        | {c: pickle._Unpickler.dispatch[c] for c in (getattr(pickle, name)[0] for name in INSTRUCTIONS.split())}
        | {pickle.REDUCE[0]: load_reduce, pickle.BUILD[0]: load_build}
    )


class _Writer(pickle._Pickler):  # the class written in Python: it lets names be changed
    def save_global(self, obj: Any, name: str | None = None) -> None:
        """Write the name of a function of NumPy as NumPy 1 knows it."""
        module = str(getattr(obj, "__module__", ""))
        if not module.startswith(NUMPY_2):
            super().save_global(obj, name)  # type: ignore[misc]
            return
        self.save(module.replace(NUMPY_2, NUMPY_1))  # type: ignore[attr-defined]
        self.save(name or obj.__qualname__)  # type: ignore[attr-defined]
        self.write(pickle.STACK_GLOBAL)  # type: ignore[attr-defined]
        self.memoize(obj)  # type: ignore[attr-defined]


class _Allowance:
    """How many values may follow: a pickle of n bytes cannot hold more than n, unless it refers to one many times."""

    def __init__(self, values: int) -> None:
        self.values = values

    def take(self, values: int) -> None:
        """Count values; Refused if there are too many."""
        self.values -= values
        if self.values < 0:
            raise Refused("it refers to the same values over and over")


def _value(value: Any, left: _Allowance, depth: int = 0) -> Any:
    """A value without stand-ins."""
    if depth > DEEPEST:
        raise Refused("it is nested too deeply")
    left.take(1)
    if isinstance(value, _Array):
        return value.of(left)
    if isinstance(value, list | tuple):
        left.take(len(value))
        if any(isinstance(v, list | tuple | dict | _Array | _Dtype | _Call) for v in value):
            return type(value)(_value(v, left, depth + 1) for v in value)
        return value
    if isinstance(value, dict):
        return {_value(k, left, depth + 1): _value(v, left, depth + 1) for k, v in value.items()}
    if isinstance(value, _Dtype | _Call):
        raise Refused("it holds an object that is no array")
    return value
