"""Convert what a user gives as an array into NumPy numbers or text in native byte order, or refuse it in one line.

pandas and PyTorch objects are converted by their values.  Missing values (NaN, a mask, NA, None) are refused, never
filled in.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedtune.core.errors import UserError


def plain(source: str, name: str, values: Any) -> np.ndarray:
    """An array of numbers or text; UserError for anything else, and for missing values."""
    what = f"{name} of {source}"
    try:
        array = _array(what, values, features=name == "x")
    except UserError:
        raise
    except (ValueError, TypeError, RuntimeError, MemoryError, OverflowError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        ragged = "its rows differ in length; pad them" if "inhomogeneous" in text or "same shape" in text else text
        raise UserError(f"{what} is not an array: {ragged}") from error
    array = _of_objects(what, array) if array.dtype.kind == "O" else array
    array = array.astype(str) if array.dtype.kind == "T" else array
    _require_plain(what, array, "biufU")
    kind = np.dtype(np.float64) if array.dtype.kind == "f" and array.dtype.itemsize > 8 else array.dtype
    return array.astype(kind.newbyteorder("="), copy=False)


def require_aligned(source: str, arrays: Mapping[str, Any]) -> None:
    """UserError if pandas tables have the same index in different orders: rows are paired by position."""
    pandas = sys.modules.get("pandas")
    tables = {n: v.index for n, v in arrays.items() if pandas and isinstance(v, pandas.DataFrame | pandas.Series)}
    for name, index in tables.items():
        first, other = next(iter(tables.items()))
        alike = len(index) == len(other) and index.is_unique and not index.equals(other)
        if alike and index.sort_values().equals(other.sort_values()):
            raise UserError(
                f"rows are paired by position, but {first} and {name} of {source} have the same index in different "
                f"orders; give {name}.loc[{first}.index]"
            )


def _array(what: str, values: Any, features: bool) -> np.ndarray:
    """A NumPy array of these values, of any type."""
    pandas = sys.modules.get("pandas")
    if _is_tensor(values):
        return _of_tensor(values)
    if pandas and isinstance(values, pandas.DataFrame):
        return _of_table(what, values, features)
    if pandas and isinstance(values, pandas.Series | pandas.Index | pandas.api.extensions.ExtensionArray):
        return _of_column(what, pandas.Series(values), features)
    listed = isinstance(values, list | tuple)
    if listed and any(isinstance(v, np.ma.MaskedArray) for v in values):
        values = np.ma.stack(values)
    elif listed and values and all(map(_is_tensor, values)):
        values = list(map(_of_tensor, values))
    if isinstance(values, np.ma.MaskedArray):
        _require_none(what, np.ma.getmaskarray(values))
        values = values.data
    array = np.asarray(values)
    if listed and (array.dtype.kind == "U" or (array.dtype.kind == "f" and (np.abs(array) >= 2.0**53).any())):
        return np.array(values, object)  # otherwise NumPy turns NaN and 1 into text, and rounds
    return array


def _is_tensor(value: Any) -> bool:
    """Whether a value is a PyTorch tensor; then PyTorch is imported already, so it is not imported here."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _of_tensor(t: Any) -> np.ndarray:
    t = t.detach().cpu().resolve_conj().resolve_neg()
    array: np.ndarray = (t.float() if t.is_floating_point() and t.element_size() < 4 else t).numpy()
    return array


def _of_table(what: str, table: Any, features: bool) -> np.ndarray:
    """A DataFrame's columns in one type that represents every value."""
    names = [f"column {n!r} of {what}" for n in table.columns]  # which may be alike
    arrays = [(n, _of_column(n, table.iloc[:, i], features)) for i, n in enumerate(names)]
    if not arrays:
        return np.empty((len(table), 0))
    for column, values in arrays:
        if features or len(arrays) > 1:
            _require_plain(column, values, "biuf")
    joined = np.column_stack([values for _, values in arrays])
    for column, values in arrays:
        if values.dtype.kind in "iu" and joined.dtype.kind == "f":
            _require_exact(column, values[np.abs(values.astype(np.float64)) >= 2.0**53].tolist())
    return joined


def _of_column(what: str, column: Any, features: bool) -> np.ndarray:
    """A Series's values; UserError for missing values, and for categories among features."""
    _require_none(what, column.isna().to_numpy())
    if features and hasattr(column, "cat"):
        raise UserError(f"{what} holds categories; encode them, as pandas.get_dummies or .cat.codes does")
    array = np.asarray(column)
    return _of_objects(what, array) if array.dtype.kind == "O" else array


def _of_objects(what: str, array: np.ndarray) -> np.ndarray:
    """An array of Python numbers or of text."""
    values = array.ravel().tolist() if array.ndim else [array.item()]
    no_values = ("NoneType", "NAType", "NaTType")
    nothing = [type(v).__name__ in no_values or (isinstance(v, float) and math.isnan(v)) for v in values]
    _require_none(what, np.reshape(nothing, array.shape))
    if array.ndim and all(isinstance(v, str) for v in values):
        return array.astype(str)
    real = (bool, int, float, np.bool_, np.integer, np.floating)
    if strange := [v for v in values if not array.ndim or not isinstance(v, real)]:
        is_row = isinstance(strange[0], list | tuple | np.ndarray) or _is_tensor(strange[0])
        actual = "both" if isinstance(strange[0], str) else f"a {type(strange[0]).__name__}"
        raise UserError(
            f"{what} must be numbers or text, but holds {actual}; {'numpy.stack it' if is_row else 'convert it first'}"
        )
    numbers = np.array(values)
    if numbers.dtype.kind not in "biu":
        _require_exact(what, values)
    return numbers.reshape(array.shape)


def _require_plain(what: str, array: np.ndarray, kinds: str) -> None:
    """UserError for a type that is not of these kinds."""
    if array.dtype.kind not in kinds:
        raise UserError(
            f"{what} must be numbers{' or text' * ('U' in kinds)}, but is of type {array.dtype}; convert it first, for "
            "example dates to days, categories by pandas.get_dummies, bytes by .astype(str)"
        )


def _require_exact(what: str, values: list[Any]) -> None:
    """UserError for an integer that float64 cannot represent."""
    for v in values:
        if isinstance(v, int | np.integer) and int(float(v)) != int(v):
            raise UserError(f"{what} has {v} among floats, which float64 cannot represent; scale it or give it as text")


def _require_none(what: str, missing: np.ndarray) -> None:
    """UserError for missing values."""
    if missing.any():
        rows = missing.reshape(len(missing), -1).any(1) if missing.ndim else missing[None]
        raise UserError(
            f"{what} has missing values in {int(rows.sum())} rows, the first is row {int(rows.argmax())}; leave them "
            "out or fill them in"
        )
