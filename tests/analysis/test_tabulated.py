"""Tables of grids: what is written is read, what is damaged is told, and a mean ends where one of its runs did."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedtune.analysis.simulation import tabulated
from fedtune.analysis.simulation.tabulated import Tabulated, nearest, of_points
from fedtune.core.errors import UserError
from fedtune.core.metrics import METRIC

LEVELS = {"lr": [0.01, 0.1, 1.0], "optimizer": ["sgd", "adam"], "local_epochs": [1, 2, 4, 8]}


def table(seeds: int = 3, rounds: int = 5) -> Tabulated:
    values = np.random.default_rng(0).random((3, 2, 4, seeds, rounds)).astype(np.float32).astype(float)
    values[2, 0, 3, 1, 2:] = np.nan
    values[0, 0, 0, 0] = np.nan
    about = {"algorithm": "fedavg", "scenario_name": "d"}
    return Tabulated(
        levels=LEVELS, seeds=range(7, 7 + seeds), values=values, default=(1, 0, 2), about=about, first_effect=3
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    t = table()
    t.write(tmp_path / "t.parquet")
    back = tabulated.read(tmp_path / "t.parquet")
    assert back.levels == LEVELS and list(back.seeds) == [7, 8, 9] and back.default == (1, 0, 2)
    assert np.array_equal(back.values, t.values, equal_nan=True)
    assert back.about == t.about and back.name == "fedavg on d"
    assert (back.configurations, back.rounds, back.first_effect, back.costs) == (24, 5, 3, None)
    priced = dataclasses.replace(t, costs=2 * t.values)
    priced.write(tmp_path / "priced.parquet")
    again = tabulated.read(tmp_path / "priced.parquet")
    assert again.levels == LEVELS and np.array_equal(again.costs, 2 * t.values, equal_nan=True)


def test_a_search_judges_nobody_before_a_tenth_of_the_rounds_and_the_first_effect() -> None:
    for rounds, first_effect, grace in ((30, 1, 3), (30, 14, 14), (5, 9, 5)):
        assert dataclasses.replace(table(rounds=rounds), first_effect=first_effect).grace == grace


def test_configurations_that_act_alike_are_counted() -> None:
    t = table()
    assert t.repeated == 0
    t.values[1, 1, 2] = t.values[2, 0, 3]  # whose second seed diverged
    t.values[0, 0, 1:3] = np.nan  # nothing was reached
    assert t.repeated == 1


def test_a_curve_is_the_mean_over_seeds_until_one_of_them_diverged() -> None:
    t = table()
    config = {"lr": 2, "optimizer": 0, "local_epochs": 3}
    assert np.array_equal(t.curve(config, [0, 2]), t.values[2, 0, 3][[0, 2]].mean(0))
    assert np.array_equal(t.curve(config, [0, 1]), t.values[2, 0, 3][[0, 1], :2].mean(0))
    assert len(t.curve({"lr": 0, "optimizer": 0, "local_epochs": 0}, [0])) == 0
    assert t.final_means([1])[2, 0, 3] == 0 and t.final_means([0, 2])[1, 1, 1] == t.values[1, 1, 1][[0, 2], -1].mean()


def test_a_search_sees_places_in_the_order_of_numbers_and_choices_of_all_else() -> None:
    domains = table().space().domains
    assert (domains["lr"].lower, domains["lr"].upper) == (0, 3)
    assert domains["optimizer"].categories == [0, 1]
    assert table().first() == {"lr": 1, "optimizer": 0, "local_epochs": 2}


def test_levels_are_those_of_a_full_grid() -> None:
    points = [{"lr": lr, "optimizer": o} for lr in (1.0, 0.01, 0.1) for o in ("sgd", "adam")]
    assert of_points(points) == {"lr": [0.01, 0.1, 1.0], "optimizer": ["sgd", "adam"]}
    for wrong in (points[:-1], [*points[:-1], {"lr": 1.0}]):
        with pytest.raises(UserError, match="a table needs a full grid, but the space has"):
            of_points(wrong)


@pytest.mark.parametrize(
    ("value", "place"),
    [(0.1, 1), (0.03, 0), (0.04, 1), (5.0, 2), (None, 0), ("sgd", 0)],
)
def test_the_default_is_the_nearest_by_ratio(value: object, place: int) -> None:
    assert nearest({"lr": [0.01, 0.1, 1.0]}, {"lr": value}) == (place,)
    assert nearest({"momentum": [0.0, 0.5, 0.9]}, {"momentum": 0.3}) == (1,)  # by difference where there is a zero


ABOUT = {"default": ("[1, 0, 2]", "[1, 0, 4]"), "first effect": ('"first_effect": 3', '"first_effect": "soon"')}


@pytest.mark.parametrize("how", ["cut", "words", "column", "attrs", *ABOUT, "bytes", "none"])
def test_what_is_damaged_is_told_in_a_line(how: str, tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    table().write(file)
    frame = pd.read_parquet(file)
    attrs = {} if how == "attrs" else dict(frame.attrs)
    if how in ABOUT:
        attrs[tabulated.ABOUT] = attrs[tabulated.ABOUT].replace(*ABOUT[how])
    made = {"cut": frame[:-1], "words": frame.assign(**{METRIC: "much"}), "column": frame.drop(columns="seed")}
    spoiled = made.get(how, frame)
    spoiled.attrs = attrs
    spoiled.to_parquet(file, index=False)
    if how == "bytes":
        file.write_bytes(file.read_bytes()[:300])
    elif how == "none":
        file.unlink()
    with pytest.raises(UserError, match="t.parquet is damaged") as error:
        tabulated.read(file)
    assert len(str(error.value).splitlines()) == 1
