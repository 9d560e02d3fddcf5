"""Pickles are read as values or refused; nothing in them is run."""

from __future__ import annotations

import collections
import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtune.core import plain_pickle

VALUES: dict[str, Any] = {
    "images": np.arange(80, dtype=np.float32).reshape(5, 1, 4, 4),
    "big endian": np.arange(3, dtype=">i4"),
    "by column": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "names": np.array(["a", "bc"]),
    "bools": np.array([True, False]),
    "pairs": np.array([[[1, 2], 2], [[3, 4], 2]], dtype=object),
    "list": [1, 2.5, "a", None, (1, [2])],
    "number": np.float32(3.5),
    "large": 2**70,
}


@pytest.mark.parametrize("protocol", range(5))
def test_plain_values_come_back_as_pickle_gives_them(protocol: int) -> None:
    found = plain_pickle.load(pickle.dumps(VALUES, protocol))
    assert list(found) == list(VALUES)
    for name, value in VALUES.items():
        if isinstance(value, np.ndarray):
            assert found[name].dtype == value.dtype.newbyteorder("=") and found[name].tolist() == value.tolist()
        else:
            assert found[name] == value and type(found[name]) is type(value)


class Harm:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.file}",)


class Plain:
    pass


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("where", ["itself", "dictionary", "array"])
def test_a_pickle_that_would_run_something_is_refused_by_name(protocol: int, where: str, tmp_path: Path) -> None:
    harm = Harm(tmp_path / "harm")
    value = {"itself": harm, "dictionary": {"x": harm}, "array": np.array([harm], object)}[where]
    with pytest.raises(plain_pickle.Refused, match="holds posix.system"):
        plain_pickle.load(pickle.dumps(value, protocol))
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (collections.OrderedDict(a=1), "collections.OrderedDict"),
        (Plain(), "Plain"),
        (bytearray(b"ab"), "bytearray"),
        (len, "builtins.len"),
        (np.array([("a", 1)], dtype=[("n", "U1"), ("v", int)]), "array of type"),
        (np.array(1, "M8[s]"), "array of type"),
    ],
)
def test_other_values_are_refused_with_what_they_are(value: Any, said: str) -> None:
    with pytest.raises(plain_pickle.Refused, match=said):
        plain_pickle.load(pickle.dumps({"x": value}, 4))


ATTACKS = {
    "a name that is reached through another": b"cnumpy\nndarray.tolist\n.",
    "a function of NumPy's that reads a file": b"cnumpy\nload\n(S'/etc/passwd'\ntR.",
    "an instance by an old instruction": b"(ios\nsystem\n.",
    "a class from the registry of extensions": b"\x82\x01.",
    "a persistent id": b"Pname\n.",
    "an array of Python objects by its address": b"cnumpy\ndtype\n(S'V8'\ntR.",
    "a call of a list": b"]]R.",
    "no end": b"]",
    "nothing": b"",
    "a text that is longer than the file": b"\x8d\xff\xff\xff\xff\xff\xff\xff\x0f.",
    "a frame that is longer than the file": b"\x80\x04\x95\xff\xff\xff\xff\xff\x00\x00\x00N.",
    "a byte array of a terabyte": b"\x96\x00\x00\x00\x00\x00\x01\x00\x00.",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_refused(attack: str) -> None:
    with pytest.raises(plain_pickle.Refused):
        plain_pickle.load(ATTACKS[attack])


def test_what_a_pickle_does_to_a_stand_in_ends_with_it() -> None:
    of_ndarray = plain_pickle.load(b"cnumpy\nndarray\n}S'_run'\nNsb.")
    assert vars(of_ndarray) == {"_run": None} and not vars(plain_pickle.load(b"cnumpy\nndarray\n."))


def test_damaged_pickles_are_values_or_refused() -> None:
    whole, draw = pickle.dumps(VALUES, 4), random.Random(0)
    for i in range(400):
        bad = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            bad[draw.randrange(len(bad))] = draw.randrange(256)
        try:
            plain_pickle.load(bytes(bad[: draw.randrange(len(bad))] if i % 3 == 0 else bad))
        except plain_pickle.Refused:
            pass
