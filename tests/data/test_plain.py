"""What a user gives as an array: taken right, whatever holds it, or refused in one line; nothing missing is filled."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch

from fedtune.core.errors import UserError
from fedtune.data.dataset import Dataset
from fedtune.data.plain import plain
from fedtune.data.user_arrays import rows, to_dataset

X = np.array([[1.0, 2.5], [3.0, -4.0], [5.0, 6.0]])
Y = np.array([0, 1, 1, 0])
ROWS = np.arange(8.0).reshape(4, 2)

TAKEN: dict[str, tuple[Any, np.ndarray]] = {
    "lists": (X.tolist(), X),
    "a list of text": (["b", np.str_("a")], np.array(["b", "a"])),
    "a list of large real numbers": ([[1e300, -2.0], [0.0, 1e20]], np.array([[1e300, -2.0], [0.0, 1e20]])),
    "big-endian": (X.astype(">f4"), X),
    "big-endian whole numbers": (Y.astype(">i8"), Y),
    "long double": (X.astype(np.longdouble), X),
    "Fortran's order": (np.asfortranarray(X), X),
    "a matrix": (np.ndarray.__new__(np.matrix, X.shape, X.dtype, X.copy()), X),
    "a mask that hides nothing": (np.ma.masked_array(X, False), X),
    "objects": (X.astype(object), X),
    "objects of several types": (np.array([[1, 2.5], [np.float32(3), np.int8(-4)], [True * 5, 6]], object), X),
    "large whole numbers": (np.array([2**62 + 1, 3], object), np.array([2**62 + 1, 3])),
    "a table": (pd.DataFrame(X), X),
    "a table of whole and real numbers": (pd.DataFrame({"a": [1, 3, 5], "b": X[:, 1]}), X),
    "a table of whole numbers and bools": (pd.DataFrame({"a": [7, 8], "b": [True, False]}), np.array([[7, 1], [8, 0]])),
    "a table of nullable types": (pd.DataFrame(X).convert_dtypes().astype({0: "Int64", 1: "Float32"}), X),
    "a table with a name twice": (pd.DataFrame(ROWS, columns=["age", "age"]), ROWS),
    "a nullable column": (pd.array([1, 0, 1], dtype="Int8"), np.array([1, 0, 1])),
    "nullable bools": (pd.Series([True, False], dtype="boolean"), np.array([True, False])),
    "nullable text": (pd.Series(["a", "b"], dtype="string"), np.array(["a", "b"])),
    "categories": (pd.Series(["lo", "hi", "lo"], dtype="category"), np.array(["lo", "hi", "lo"])),
    "categories that are numbers": (pd.Categorical([3, 1, 3]), np.array([3, 1, 3])),
    "a sparse table": (pd.DataFrame(X).astype(pd.SparseDtype(float, 0)), X),
    "an index": (pd.Index([4, 2]), np.array([4, 2])),
    "a tensor": (torch.tensor(X), X),
    "a tensor that learns": (torch.tensor(X, requires_grad=True), X),
    "a tensor of bfloat16": (torch.tensor(X).bfloat16(), X),
    "a list of tensors": ([torch.tensor(row, requires_grad=True) for row in X], X),
    "a negated view": (torch.tensor(X).neg()._neg_view(), X),
}

GONE, TYPE, ROUNDED, BOTH = "missing values in 1 rows", "is of type", "which float64 cannot represent", "holds both"
REFUSED: dict[str, tuple[Any, str]] = {  # values, and a word of the rule
    "masked": (np.ma.masked_array(X, X < 0), "missing values in 1 rows, the first is row 1; leave them out or"),
    "masked whole numbers": (np.ma.masked_array(Y, Y > 0), "missing values in 2 rows, the first is row 1"),
    "a list of masked rows": ([np.ma.masked_array(X[0], [False, True]), X[1]], GONE),
    "a list with a masked value": ([1.0, np.ma.masked], "missing values in 1 rows, the first is row 1"),
    "a table with NaN": (pd.DataFrame({"a": [1, np.nan]}), "column 'a' of x of here has missing values in 1 rows"),
    "a table with NA": (pd.DataFrame({"a": pd.array([1, None], dtype="Int64")}), "column 'a' of x of here has missing"),
    "bools with NA": (pd.array([True, None], dtype="boolean"), GONE),
    "text with NA": (pd.Series(["a", None], dtype="string"), GONE),
    "categories with none": (pd.Categorical(["a", None]), GONE),
    "objects with None": (np.array([[1, 2], [3, None]], object), "has missing values in 1 rows, the first is row 1"),
    "objects with NaN": (np.array([[1, float("nan")], [3, 4]], object), "first is row 0"),
    "a table of categories": (pd.DataFrame({"c": pd.Categorical([1, 2])}), "column 'c' of x of here holds categories"),
    "a table of text": (pd.DataFrame({"a": [1, 2], "b": ["u", "v"]}), "column 'b' of x of here must be numbers"),
    "a table of days": (pd.DataFrame({"t": pd.to_datetime(["2020-01-01", "2021-01-01"])}), "column 't' of x of here"),
    "whole numbers that a table would round": (pd.DataFrame({"a": [2**53 + 1], "b": [0.5]}), ROUNDED),
    "whole numbers that objects would round": (np.array([2**53 + 1, 0.5], object), ROUNDED),
    "sparse": (scipy.sparse.csr_matrix(X), "holds a csr_matrix"),
    "a sparse array": (scipy.sparse.coo_array(X), "holds a coo_array"),
    "a sparse tensor": (torch.tensor(X).to_sparse(), "x of here is not an array"),
    "a tensor without values": (torch.empty(3, 2, device="meta"), "x of here is not an array"),
    "a complex tensor": (torch.tensor(X) * 1j, TYPE),
    "named fields": (np.zeros(3, [("a", float), ("b", int)]), TYPE),
    "records": (np.rec.array([(1, 2.0)], names="a,b"), TYPE),
    "days": (np.array(["2020-01-01"], "M8[D]"), "is of type datetime64[D]; convert it first"),
    "durations": (np.array([1], "m8[s]"), TYPE),
    "complex": (X * 1j, TYPE),
    "text in bytes": (np.array([b"a", b"b"]), "bytes by .astype(str)"),
    "ragged": ([[1, 2], [3]], "is not an array: its rows differ in length; pad them"),
    "ragged objects": (np.array([[1, 2], [3]], object), "holds a list; numpy.stack it"),
    "rows as objects": (pd.Series([X[0], X[1]]), "holds a ndarray; numpy.stack it"),
    "decimals": ([decimal.Decimal(1)], "holds a Decimal; convert it first"),
    "dates": ([datetime.date(2020, 1, 1)], "holds a date"),
    "numbers and text": (np.array([1, "a"], object), BOTH),
    "a list of text with NaN": (["a", float("nan")], "missing values in 1 rows, the first is row 1"),
    "a list of text with None": ([None, "a"], "missing values in 1 rows, the first is row 0"),
    "a list of numbers and text": ([1, "1"], BOTH),
    "whole numbers that a list would round": ([[2**53 + 1, 0.5]], ROUNDED),
    "a list of large numbers of both signs": ([2**63 + 1, -1], ROUNDED),
    "beyond 64 bits": ([2**70, 1], "must be numbers or text"),
    "a generator": ((v for v in X), "holds a generator"),
    "a dictionary": ({"a": X}, "holds a dict"),
    "nothing": (None, "has missing values"),
}  # fmt: skip


@pytest.mark.parametrize("what", TAKEN)
def test_whatever_holds_an_array_it_is_taken_right(what: str) -> None:
    values, wanted = TAKEN[what]
    got = plain("here", "y" if "categories" in what else "x", values)
    assert type(got) is np.ndarray and got.dtype.isnative and got.dtype.kind == wanted.dtype.kind
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_missing_or_no_number_is_refused_with_what_to_do(what: str) -> None:
    values, message = REFUSED[what]
    with pytest.raises(UserError) as told:
        plain("here", "x", values)
    assert message in str(told.value) and "\n" not in str(told.value)


def dataset(arrays: dict[str, Any]) -> Dataset:
    return to_dataset("here", "here", rows("here", arrays))


def test_a_column_of_classes_is_taken_and_what_is_none_is_told() -> None:
    data = dataset({"x": ROWS, "y": pd.DataFrame({"y": Y}), "owner": Y[:, None]})
    assert data.y.tolist() == data.owner.tolist() == Y.tolist()
    for y in (np.eye(2)[Y], pd.DataFrame(np.eye(2)[Y], columns=["a", "a"])):
        with pytest.raises(UserError, match=r"y of here must be one value for each .* \(4, 2\); .*y.argmax"):
            dataset({"x": ROWS, "y": y})
    with pytest.raises(UserError, match="x of here must be numbers of .*; for text give x.astype"):
        dataset({"x": ROWS.astype(str), "y": Y})


def test_tables_indexed_in_two_orders_are_refused() -> None:
    x, y = pd.DataFrame(ROWS), pd.Series(Y)
    with pytest.raises(UserError, match="x and y of here have the same index in different orders; give y.loc"):
        dataset({"x": x, "y": y.iloc[::-1]})
    with pytest.raises(UserError, match="one value for each"):
        dataset({"x": x.set_axis(["a", 1, 2, 3]), "y": y[:3]})
    for index in (range(4), [7, 5, 6, 9]):  # of a selection
        assert dataset({"x": x, "y": y.set_axis(list(index))}).y.tolist() == Y.tolist()
