"""Nothing that a user's numbers hold is lost between their file and training, or it is said in a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.user_data import made, saved, taken

from fedtune.core.errors import UserError

RNG = np.random.default_rng(0)
WORTH = RNG.integers(0, 50, 60)  # what a column says of its row, whatever its unit
WANTED = (WORTH - WORTH.mean()) / WORTH.std()


def column(values: np.ndarray, **fields: Any) -> Any:
    """Writes a table of one column, of which every row is for training but few, and gives what is trained on."""

    def given(folder: Path) -> np.ndarray:
        split, row = np.r_[np.zeros(60, int), 1, 1, 2, 2], np.arange(64)
        path = saved(folder / "w.npz", x=np.r_[values, values[:4]][:, None], y=row % 2)
        who = saved(folder / "p.npz", row=row, client=row % 2, split=split)
        f = made(taken(path, who, **({"x_as": "numbers"} | fields)))
        rows = np.concatenate([f.train.rows[k, : f.train.counts[k]] for k in range(2)])
        return f.x[np.sort(rows), 0]

    return given


KEPT = {
    "of 1e-9": WORTH * 1e-9,
    "of 1e-200": WORTH * 1e-200,
    "of 1e-320": np.array(WORTH, np.float64) * 1e-320,
    "of 1e9 that differ little": 1e9 + WORTH * 1e-3,
    "of 1e300": WORTH * 1e300,
    "whole beyond 2**24": 2**24 + WORTH,
    "whole beyond 2**53": 2**60 + WORTH,
    "whole, negative": -(2**60) - 50 + WORTH,
    "unsigned": np.uint64(2**63) + WORTH.astype(np.uint64),
    "uint16": (60000 + WORTH).astype(np.uint16),
    "int8": (WORTH - 120).astype(np.int8),
    "float32": WORTH.astype(np.float32),
    "float16": WORTH.astype(np.float16),
    "big-endian, that differ little": (1e9 + WORTH * 1e-3).astype(">f8"),
}


@pytest.mark.parametrize("unit", KEPT)
def test_a_column_says_the_same_in_every_unit(unit: str, tmp_path: Path) -> None:
    np.testing.assert_allclose(column(KEPT[unit])(tmp_path), WANTED, atol=1e-4 if "little" in unit else 2e-6)


def test_a_column_that_never_varies_is_0(tmp_path: Path) -> None:
    assert not column(np.full(60, 1e-9))(tmp_path).any() and not column(np.full(60, 2**60))(tmp_path).any()


OUTLIER = np.where(np.arange(60) == 30, 1e12, WORTH)


@pytest.mark.parametrize(
    ("values", "normalise", "message"),
    [
        (OUTLIER, "train", "feature 0 of x of w.npz keeps 2 of .* distinct values once they have mean 0"),
        (np.where(np.arange(60) == 30, -9.96921e36, WORTH % 2), "train", "clip it, or take its logarithm"),
        (OUTLIER.astype(np.float32), "train", "clip it, or take its logarithm"),
        (1e9 + WORTH * 1e-3, "none", "keeps 1 of .* distinct values in float32, because it ranges from 1e"),
        (WORTH * 1e-60, "none", "keeps 1 of .* distinct values in float32"),
        (WORTH * 1e300, "none", "must be finite in float32"),
        (2**24 + WORTH, "none", "whole numbers that float32 cannot represent, from 16777216 to 167772"),
    ],
)
def test_what_would_become_one_number_is_refused(
    values: np.ndarray, normalise: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        column(values, normalise=normalise)(tmp_path)


WHOLE = [(2**53, "i8"), (-(2**63), "i8"), (65535, "u2")]
ROUNDED = [(2**53 + 1, "i8"), (2**63 - 1, "i8"), (2**64 - 1, "u8"), (2**24 + 1, "i4")]


@pytest.mark.parametrize(("number", "kind"), WHOLE + ROUNDED)
def test_whole_numbers_as_given_are_kept_or_refused(number: int, kind: str, tmp_path: Path) -> None:
    given = column(np.full(60, number, kind), normalise="none")
    if (number, kind) in WHOLE:
        assert (given(tmp_path).astype(kind) == number).all()
        return
    with pytest.raises(UserError, match="whole numbers that float32 cannot represent"):
        given(tmp_path)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int64, np.float64, bool])
def test_images_of_every_type_say_the_same(kind: type, tmp_path: Path) -> None:
    dark = RNG.integers(0, 2, (40, 1, 4, 4))
    x = (dark * (1 if kind is bool else 200)).astype(kind)
    f = made(taken(saved(tmp_path / "i.npz", x=x, y=np.arange(40) % 2), "iid", clients=2))
    np.testing.assert_allclose(np.unique(f.x), np.unique((dark - dark.mean()) / dark.std()), atol=0.2)
    assert len(np.unique(f.x)) == 2
