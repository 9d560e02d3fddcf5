"""LEAF's JSON: users are owners, flat images are reshaped, text becomes tokens where it is said how."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.foreign_data import leaf, writers
from support.user_data import made, refused, taken

from fedtune.data import user_data

PLAY = ["to be or not to be", "that is the question", "whether tis nobler"] * 4


def test_users_are_clients_and_test_rows_stay_test_rows(tmp_path: Path) -> None:
    scenario = taken(writers(tmp_path / "data"), normalise="none")
    f = made(scenario)
    assert scenario.clients == 3 and scenario.model == "mlp" and f.shape == (16,) and f.classes == 3
    assert [f.owner(k) for k in range(3)] == ["f0001_41", "f0003_41", "f0012_08"]
    assert (f.test.counts == 6).all() and (f.train.counts + f.val.counts == 12).all()
    file = json.loads(next((tmp_path / "data" / "test").iterdir()).read_text())
    whose = file["user_data"]["f0003_41"]["x"]
    assert {*map(tuple, f.x[f.test.rows[1]])} == {*map(tuple, np.float32(whose))}


def test_flat_images_are_images_when_their_shape_is_given(tmp_path: Path) -> None:
    f = made(taken(f"{writers(tmp_path / 'femnist')}/(shape=(1, 4, 4))"))
    assert f.shape == (1, 4, 4)


@pytest.mark.parametrize("place", ["", "data", "all_data"])
def test_rows_that_are_not_split_are_split_at_random(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "femnist"
    writers(folder / "data" if place == "data" else folder, split=False)
    f = made(taken(folder / "all_data" if place == "all_data" else folder))
    assert (f.train.counts + f.val.counts + f.test.counts == 12).all() and f.test.counts[0] == 3
    file = next(folder.rglob("*.json"))
    assert made(taken(file)).clients == 3  # a single file


def test_text_is_tokens_of_words_or_characters(tmp_path: Path) -> None:
    users = {name: (PLAY, list("abc") * 4) for name in ("HAMLET", "OPHELIA")}
    leaf(tmp_path / "data" / "train" / "a.json", users)
    leaf(tmp_path / "data" / "test" / "a.json", {n: (["to be unheard of"] * 3, list("abc")) for n in users})
    refused("is text, like 'to be or not to be': give text='words' or text='characters'", tmp_path / "data")
    words = taken(f"{tmp_path}/data/(text='words')")
    f = made(words)
    assert words.model == "tokens" and f.shape == (6,) and f.class_names == ("a", "b", "c")
    test = f.x[f.test.rows[0, 0]]
    assert test.tolist()[2:] == [1, 1, 0, 0] and test[0] != test[1] and (test[:2] > 1).all()  # unheard of, then padding
    letters = made(taken(f"{tmp_path}/data/(text='characters', length=5)"))
    assert letters.shape == (5,)
    assert "cut to 5" in user_data.about("data/(text='characters',length=5)").notes[0]


def test_a_field_of_each_row_is_named_by_its_number(tmp_path: Path) -> None:
    rows = [["1467810369", "Mon Apr 06", "NO_QUERY", "ann", text] for text in PLAY]
    leaf(tmp_path / "s" / "all_data.json", {n: (rows, [0, 1] * 6) for n in ("ann", "bob")})
    refused("have fields, .*; name one, as in x=4", tmp_path / "s")
    assert made(taken(f"{tmp_path}/s/(x=4, text='words')")).shape == (6,)


def test_numbers_of_rows_that_leaf_miscounts_do_not_count(tmp_path: Path) -> None:
    users = {n: ([[0.1, 0.2]] * 6, [0.0, 1.0] * 3) for n in ("a", "b")}  # labels of CelebA are floats
    leaf(tmp_path / "d" / "x.json", users, num_samples=[6, 85])
    f = made(taken(tmp_path / "d"))
    assert f.y.dtype == np.int64 and len(f.y) == 12


def test_users_only_to_test_are_named_and_may_be_split_anew(tmp_path: Path) -> None:
    rows = ([[0.1, 0.2]] * 6, [0, 1] * 3)
    leaf(tmp_path / "d" / "train" / "x.json", {"a": rows, "b": rows})
    leaf(tmp_path / "d" / "test" / "x.json", {"c": rows})
    refused(
        r"by the split of d/ owner c, of 6 rows, has no train .*split=None\), so", tmp_path / "d", "natural", clients=3
    )
    assert made(taken(f"{tmp_path}/d/(split=None)")).clients == 3


def users(**changes: Any) -> Callable[[Path], Any]:
    rows = {"ann": ([[0.1, 0.2]] * 6, [0, 1] * 3), "bob": ([[0.3, 0.4]] * 6, [0, 1] * 3)}
    return lambda folder: leaf(folder / "all.json", rows, **changes)


def rows_of(x: Any, y: Any) -> Callable[[Path], Any]:
    return lambda folder: leaf(folder / "all.json", {"ann": ([[0.1, 0.2]] * 6, [0, 1] * 3), "bob": (x, y)})


def text(content: bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / "all.json").write_bytes(content)


def empty_part(folder: Path) -> None:
    leaf(folder / "train" / "x.json", {n: ([[0.1, 0.2]] * 6, [0, 1] * 3) for n in ("a", "b")})
    leaf(folder / "test" / "x.json", {"a": ([], [])})


def one_part(folder: Path) -> None:
    writers(folder)
    next((folder / "test").iterdir()).unlink()


def twice(folder: Path) -> None:
    users()(folder)
    (folder / "b.json").write_bytes((folder / "all.json").read_bytes())


def pools(folder: Path) -> None:
    writers(folder, split=False)
    (folder / "sampled_data").mkdir()
    (folder / "sampled_data" / "a.json").write_text("{}")


JSON, UNLIKE = "all.json cannot be read as LEAF's JSON: .* it needs users, and user_data", "must all be alike, but are"
WRONG: list[tuple[Callable[[Path], Any], str]] = [  # files, and a word of the rule that they break
    *((text(content), JSON) for content in (b"{", b"\xff\xfe\x00", b"[" * 100_000, b"[1, 2]", b'{"users": []}')),
    *((users(users=names), JSON) for names in (["ann"], ["ann", "eve"], ["ann", 7], [])),
    (users(user_data=[1, 2]), JSON),
    (rows_of([[0.1, 0.2]] * 6, [0, 1]), JSON),
    (rows_of([[0.1, float("nan")]] * 6, [0, 1] * 3), "x of .*user bob must be finite, but 6 rows are not"),
    (rows_of([[0.1, None]] * 6, [0, 1] * 3), "x of .*user bob has missing values in 6 rows"),
    (rows_of([[0.1]] * 6, [0, 1] * 3), rf"{UNLIKE} .* \(2,\) in ann, .* \(1,\) in bob"),
    (rows_of(["text"] * 6, [0, 1] * 3), f"{UNLIKE} .* in ann, text in bob"),
    (rows_of([[0.1], [0.2, 0.3]] * 3, [0, 1] * 3), "user bob is not an array: its rows differ in length"),
    (rows_of([{"a": 1}] * 6, [0, 1] * 3), "x of .*user bob"),
    (rows_of([["a", "b"]] * 6, [0, 1] * 3), "rows of .*user bob have fields"),
    (rows_of(["000001.jpg"] * 6, [0, 1] * 3), "names pictures .*; --dataset celeba reads CelebA's"),
    (rows_of([[0.1, 0.2]] * 6, [{"target_tokens": 1}] * 6), "must be one class per row, but is .*target_tokens"),
    (rows_of([[0.1, 0.2]] * 6, [0, None] * 3), "y of .*user bob has missing values in 3 rows"),
    (rows_of([[0.1, 0.2]] * 6, [0.5, 1] * 3), "holds real numbers"),
    (rows_of([[0.1, 0.2]] * 6, ["a", 1] * 3), "y of .*user bob must be numbers or text, but holds both"),
    (empty_part, "needs train rows and test rows"),
    (one_part, "has files only in train"),
    (twice, "each with a name of its own"),
    (pools, "rows in several folders of LEAF's; give one, such as .*all_data"),
]


@pytest.mark.parametrize("i", range(len(WRONG)))
def test_a_wrong_file_is_refused_in_a_line(i: int, tmp_path: Path) -> None:
    damage, message = WRONG[i]
    (tmp_path / "femnist").mkdir()
    damage(tmp_path / "femnist")
    refused(message, tmp_path / "femnist")
