"""A partition of one's own: who holds what is what the file says, and what a partition becomes is such a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.user_data import made, refused, saved, taken, wards

from fedtune.core.errors import UserError
from fedtune.data import datasets, user_partition
from fedtune.experiment import partitioning, user_scenario
from fedtune.experiment.scenario import Scenario

ROWS = np.arange(240)
CLIENT, SPLIT = ROWS % 5, ROWS // 5 % 4 % 3  # half of each client's rows to train on
GIVEN = {"row": ROWS, "client": CLIENT, "split": SPLIT}


@pytest.mark.parametrize("names", [True, False])
def test_clients_hold_the_rows_that_the_file_names_in_any_order(names: bool, tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(200)  # 40 rows are nobody's
    split = np.array(["train", "val", "test"])[SPLIT] if names else SPLIT
    file = saved(tmp_path / "p.npz", row=ROWS[order], client=CLIENT[order], split=split[order])
    scenario = taken(saved(tmp_path / "w.npz", **wards()), file, normalise="none")
    assert scenario.clients == 5 and scenario.partition == "p.npz"
    f = made(scenario)
    x = wards()["x"][:, 0].astype(np.float32)
    for k in range(5):
        for s, table in enumerate((f.train, f.val, f.test)):
            held = f.x[table.rows[k, : table.counts[k]], 0]
            assert set(held) == set(x[:200][(CLIENT[:200] == k) & (SPLIT[:200] == s)]) and len(held) == len(set(held))


def test_the_files_split_and_not_the_data_sets_counts(tmp_path: Path) -> None:
    data = saved(tmp_path / "w.npz", **wards(), split=2 - SPLIT)
    f = made(taken(data, saved(tmp_path / "p.npz", **GIVEN)))
    assert [t.counts.sum() for t in (f.train, f.val, f.test)] == [120, 60, 60]


def test_a_built_in_data_set_takes_one_too_and_shifts_go_on_top(tmp_path: Path) -> None:
    file = saved(tmp_path / "p.npz", row=ROWS + 1000, client=CLIENT, split=SPLIT)
    plain, shifted = (made(taken("digits", file, **more)) for more in ({}, {"label_noise": 0.5, "thinning": 1.0}))
    assert plain.clients == 5 and shifted.train.counts.sum() < plain.train.counts.sum()
    np.testing.assert_array_equal(plain.y, datasets.load("digits").y[1000:1240])
    fewer = made(taken("digits", file, skip_classes=3))
    assert fewer.clients == 5 and len(fewer.y) == (plain.y >= 3).sum()


def test_what_a_law_gives_is_the_same_from_its_file(tmp_path: Path) -> None:
    data, scenario = datasets.load("digits"), Scenario(partition="dirichlet", clients=6, thinning=0.3)
    user_partition.write(tmp_path / "p.npz", partitioning.rows_of_clients(data, scenario, 3))
    one, other = partitioning.partition(data, scenario, 3), made(taken("digits", tmp_path / "p.npz"))
    np.testing.assert_array_equal(one.x, other.x)
    for a, b in zip((one.train, one.val, one.test), (other.train, other.val, other.test), strict=True):
        np.testing.assert_array_equal(a.counts, b.counts)
        for k in range(6):
            assert set(a.rows[k, : a.counts[k]]) == set(b.rows[k, : b.counts[k]])


def test_the_number_of_clients_is_the_files(tmp_path: Path) -> None:
    scenario = taken("digits", saved(tmp_path / "p.npz", **GIVEN))
    assert scenario.override(rounds=3).clients == 5
    assert user_scenario.defaults({"partition": "p.npz", "clients": "5"}) == {}
    with pytest.raises(UserError, match="p.npz has 5 clients, but clients was given as 6; leave it out"):
        user_scenario.defaults({"partition": "p.npz", "clients": "6"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row": ROWS % 120}, "list a row only once, but gives row 0 to client 0 for train and client 0 for train"),
        ({"row": np.where(ROWS == 1, 0, ROWS)}, "but gives row 0 to client 0 for train and client 1 for train"),
        ({"row": np.where(ROWS == 5, 0, ROWS)}, "but gives row 0 to client 0 for train and client 0 for val"),
        ({"row": ROWS * 10}, "lists row 2390, but the data set has rows 0 to 1796"),
        ({"row": ROWS - 1}, "row of .* must be whole numbers from 0 on, but is -1"),
        ({"row": ROWS * 1.0}, "row of .* must be whole numbers from 0 on, but is 240 of float64"),
        ({"client": CLIENT + (CLIENT > 2)}, "numbered from 0 without gaps, but 3 of 0 to 5 has no rows"),
        ({"client": CLIENT * 10**12}, "numbered from 0 without gaps, but 1 of 0 to 4000000000000 has no rows"),
        ({"client": np.array(["a", "b"])[ROWS % 2]}, "client of .* must be whole numbers .* np.unique"),
        ({"split": np.where(CLIENT == 3, 0, SPLIT)}, r"p.npz client 3, of \d+ rows, has no val and no test"),
        ({"split": SPLIT + 1}, "split of .* must be 0, 1, 2 or train, val, test, but has 3"),
        ({"split": np.array(["train", "devel"])[ROWS % 2]}, "must be 0, 1, 2 or train, val, test, but has 'devel'"),
        *(
            ({"split": split}, "needs arrays row, client, split of one axis and the same")
            for split in (SPLIT[:-1], None)
        ),
        ({"rows": ROWS}, "unknown array in .*p.npz 'rows': did you mean 'row'"),
        ({"row": ROWS[:0], "client": ROWS[:0], "split": ROWS[:0]}, "whole numbers from 0 on, but is 0 of int64"),
        *(({name: ROWS[:0]}, "one axis and the same length") for name in ("row", "client", "split")),
        ({"row": np.array([{}] * 240)}, "pickled Python objects are never read"),
    ],
)
def test_a_file_that_is_no_partition_is_refused_in_one_line(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    arrays = {n: a for n, a in (GIVEN | changes).items() if a is not None}
    refused(message, "digits", saved(tmp_path / "p.npz", **arrays))
