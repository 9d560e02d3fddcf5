"""What a user's owners, classes and numbers are called and hold, at the edges."""

import numpy as np
import pytest
from PIL import Image

from fedtune.core.errors import UserError
from fedtune.data import user_arrays, user_pictures
from fedtune.data.federation import Federation, Split
from fedtune.data.normalising import prepared
from fedtune.data.user_options import Options

NAMES = {
    "ward\n1": r"ward\n1",
    "a\tb": r"a\tb",
    "red\x1b[31m": r"red\x1b[31m",
    "end\u2028": r"end\u2028",
    "Ä b|<c>": "Ä b|<c>",
}


def dataset(arrays):
    return user_arrays.to_dataset("d", "d", user_arrays.rows("d", arrays))


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_one_line_wherever_it_is_shown(name):
    x, names = np.zeros((12, 2), np.float32), np.array([name, "plain"] * 6)
    data = dataset({"x": x, "y": names, "owner": names})
    assert NAMES[name] in data.class_names and NAMES[name] in data.owner_names
    numbered = {"x": x, "y": np.arange(12) % 2, "classes": np.array([name, "plain"])}
    assert dataset(numbered).class_names == (NAMES[name], "plain")


def test_two_names_that_would_look_the_same_are_refused():
    names = np.array(["a\n", r"a\n"] * 6)
    with pytest.raises(UserError, match="must look different"):
        dataset({"x": np.zeros((12, 2), np.float32), "y": names})


@pytest.mark.parametrize("ending", ["png", "jpg", "webp"])
def test_what_is_no_picture_is_named_with_what_would_be_read(ending, tmp_path):
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        (tmp_path / place / f"1.{ending}").write_text("no picture")
    with pytest.raises(UserError, match=f"a/1.{ending} cannot be read as a picture.* save it as PNG, JPEG"):
        user_pictures.read(tmp_path, Options())


def test_pictures_of_a_split_lie_in_folders_of_classes(tmp_path):
    for place in ("train/a", "train/b", "test"):
        (tmp_path / place).mkdir(parents=True)
        Image.new("RGB", (2, 2)).save(tmp_path / place / "1.png")
    with pytest.raises(UserError, match="test needs class folders with pictures"):
        user_pictures.read(tmp_path, Options())


WHOLE = {
    (2**53 + 1, "i8"): False,
    (2**63 - 1, "i8"): False,
    (2**64 - 1, "u8"): False,
    (2**24 + 1, "i4"): False,
    (2**53, "i8"): True,
    (-(2**63), "i8"): True,
    (65535, "u2"): True,
}


@pytest.mark.parametrize("number", WHOLE)
def test_whole_numbers_as_given_are_kept_or_refused(number):
    rows = Split(np.arange(6).reshape(2, 3), np.array([3, 3]))
    f = Federation(np.full((6, 2), *number), np.zeros(6, int), 2, rows, rows, rows)
    if WHOLE[number]:
        assert (prepared(f, "d", "numbers", False).x.astype(number[1]) == number[0]).all()
        return
    with pytest.raises(UserError, match="whole numbers that float32 cannot represent"):
        prepared(f, "d", "numbers", False)
