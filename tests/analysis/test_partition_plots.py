"""The picture of a partition says what its table says, and its table what the clients hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedtune.analysis.partition_plots import partition
from fedtune.data import datasets
from fedtune.data.federation import Federation
from fedtune.experiment import partitioning
from fedtune.experiment.scenario import Scenario
from fedtune.studies import partition_view

DIGITS = datasets.load("digits")


def made(**fields: Any) -> tuple[pd.DataFrame, Federation]:
    f = partitioning.partition(DIGITS, Scenario(**fields), 0)
    return partition_view.counts(f, DIGITS, fields.get("skip_classes", 0)), f


def test_the_table_counts_what_each_client_holds_and_calls_classes_by_their_names() -> None:
    table, f = made(partition="dirichlet", clients=6, skip_classes=2, label_noise=0.3)
    assert set(table["class"]) == {str(c) for c in range(2, 10)}
    for k in range(6):
        for split in ("train", "val", "test"):
            one = getattr(f, split)
            held = np.bincount(f.y[one.rows[k, : one.counts[k]]], minlength=8)[:8]
            own = table[(table["client"] == k) & (table["split"] == split)].set_index("class")["rows"]
            assert [own[str(c + 2)] for c in range(8)] == held.tolist()


def test_label_skew_is_none_for_equal_shares_and_grows_to_one_less_a_clients_share() -> None:
    def table(rows: list[list[int]]) -> pd.DataFrame:
        cells = [(k, str(c), "train", n) for k, row in enumerate(rows) for c, n in enumerate(row)]
        return pd.DataFrame(cells, columns=["client", "class", "split", "rows"])

    np.testing.assert_allclose(partition_view.label_skew(table([[3, 6], [10, 20]])), 0, atol=1e-15)
    np.testing.assert_allclose(partition_view.label_skew(table([[5, 0], [0, 5]])), 0.5)
    np.testing.assert_allclose(partition_view.label_skew(table(np.diag([4] * 10).tolist())), 0.9)


@pytest.mark.parametrize("clients", [8, 60])
def test_circles_have_the_area_of_the_rows_and_many_clients_are_a_heat_map(clients: int) -> None:
    table, _ = made(partition="dirichlet", clients=clients, floor=5)
    figure = partition(table)
    rows = table.groupby(["class", "client"])["rows"].sum()
    first = figure.data[0]
    if clients == 8:
        want = [rows[c, k] for c, k in zip(first.y, first.x, strict=True)]
        area = np.array(first.marker.size) ** 2
        np.testing.assert_allclose(area / area.sum(), np.array(want) / len(DIGITS.y))
        assert len(first.x) == (rows > 0).sum()
    else:
        assert np.nansum(np.array(first.z, float)) == len(DIGITS.y) and np.array(first.z).shape == (10, 60)
    assert sum(sum(bar.y) for bar in figure.data[1:4]) == len(DIGITS.y)


def test_images_stand_below_their_clients() -> None:
    table, f = made(partition="iid", clients=4, rotation=90.0)
    looks = partition_view.looks(f)
    assert looks is not None and looks.shape == (4, 8, 8)
    strip = partition(table, images=looks).data[-1]
    for k in range(4):
        inside = np.abs(np.array(strip.x) - k) < 0.45
        np.testing.assert_array_equal(np.array(strip.z, float)[:, inside], looks[k])
