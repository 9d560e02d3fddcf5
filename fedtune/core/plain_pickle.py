"""Read pickles of arrays, dictionaries, lists, numbers and text; nothing in a pickle is ever run.

A pickle is a program.  All that it can call here are stand-ins for the functions with which NumPy stores arrays.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np

DTYPE = re.compile(r"[?biufUS]\d*|O8?")  # numbers and text, or plain values of any kind


class Refused(ValueError):
    """A pickle that would call something else, or is damaged; says what."""


def load(content: bytes) -> Any:
    """The value of a pickle; Refused if it needs more than arrays, dictionaries, lists, numbers and text."""
    try:
        return _Reader(io.BytesIO(content)).load()
    except Refused:
        raise
    except Exception as error:  # whatever wrong instructions lead to
        raise Refused(f"it is damaged ({' '.join(str(error).split()) or type(error).__name__})") from error


class _Dtype:
    """Stand-in for a NumPy type, of which a pickle may say the byte order and nothing else."""

    def __init__(self, code: Any, *_: Any) -> None:
        if not isinstance(code, str) or not DTYPE.fullmatch(code):
            raise Refused(f"it holds an array of type {code!r:.50}")
        self.type: np.dtype[Any] = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        self.type = self.type.newbyteorder(state[1])


class _Array(np.ndarray):
    """An array of such a type, with as many values as its shape says: NumPy itself does not count objects."""

    def __setstate__(self, state: Any) -> None:
        version, shape, dtype, by_column, content = state
        if not isinstance(dtype, _Dtype) or not all(isinstance(n, int) and n >= 0 for n in shape):
            raise Refused("it holds an array without a shape or a type")
        size = 1 if isinstance(content, list) else dtype.type.itemsize
        if dtype.type.hasobject != isinstance(content, list) or len(content) != math.prod(shape) * size:
            raise Refused(f"it holds an array of shape {tuple(shape)} and type {dtype.type} with other values")
        super().__setstate__((version, shape, dtype.type, by_column, content))


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """A stand-in, made anew each time, so that no pickle can change that of another."""
        stand_ins: dict[str, Callable[..., Any]] = {
            "numpy._core.multiarray._reconstruct": lambda *_: _Array(0),
            "numpy._core.multiarray.scalar": lambda dtype, content: np.frombuffer(content, dtype.type)[0],
            "numpy.ndarray": lambda *_: None,  # only named, never called
            "numpy.dtype": lambda *code: _Dtype(*code),
            "_codecs.encode": lambda text, *_: text.encode("latin1"),  # bytes in Python 2's protocols
        }
        full = f"{module.replace('numpy.core', 'numpy._core')}.{name}"  # as NumPy 1 calls it
        if full not in stand_ins:
            raise Refused(f"it holds {module}.{name}"[:200])
        return stand_ins[full]
