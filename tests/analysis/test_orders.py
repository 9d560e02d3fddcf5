"""Orders of algorithms in two settings, on made-up tables whose τ is known."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import pytest

from fedtune.analysis import orders
from fedtune.core.errors import UserError
from fedtune.studies.comparison.tables import COLUMNS

ONE = pd.DataFrame({"algorithm": list("abcd"), "default": [0.1, 0.2, 0.3, 0.4], "tuned": [0.5, 0.6, 0.7, 0.8]})
ONE["gain"] = [0.4, 0.3, 0.2, 0.1]


BOTH = ("one", "other")


def written(file: Path, names: Iterable[str], figures: list[float]) -> Path:
    """A comparison's table in which tuning changes nothing."""
    columns = {"algorithm": list(names), "default": figures, "tuned": figures}
    pd.DataFrame(columns, columns=list(COLUMNS)).to_csv(file, index=False)
    return file


def test_one_order_has_tau_1_and_the_opposite_one_minus_1() -> None:
    other = ONE.assign(tuned=ONE["tuned"][::-1].to_numpy()).sample(frac=1, random_state=0)  # rows in any order
    found = orders.taus(orders.orders(ONE, other, BOTH), {})
    assert found.set_index("order")["tau"].to_dict() == {
        "by defaults, own classes: one, other": 1,
        "tuned, own classes: one, other": -1,
        "what tuning gains: one, other": 1,
        "one: by defaults, tuned": 1,
        "other: by defaults, tuned": -1,
    }
    assert found["p"].tolist() == pytest.approx([1 / 12] * 5)  # 2 of the 24 orders of four


def test_who_diverged_or_is_in_one_table_alone_does_not_count() -> None:
    other = pd.concat([ONE.assign(tuned=[float("nan"), 0.8, 0.6, 0.7]), ONE.iloc[:1].assign(algorithm="e")])
    found = orders.taus(orders.orders(ONE, other, BOTH), {}).set_index("order")
    assert found["algorithms"].to_dict()["tuned, own classes: one, other"] == 3
    assert found["tau"]["tuned, own classes: one, other"] == pytest.approx(-1 / 3)


def test_a_control_and_a_twin_do_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["fedavg", "fedavg-again", "fedbn", "gfpl", "local"]
    one = written(tmp_path / "one.csv", names, [0.1, 0.1, 0.1, 0.3, 0.2])
    other = written(tmp_path / "other.csv", names, [0.1, 0.1, 0.15, 0.3, 0.2])  # here FedBN is no FedAvg
    assert orders.main([str(one), str(other)]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if "| all |" in line]
    assert {row[0].strip("| "): int(row[2]) for row in rows} == {
        "by defaults, own classes: one, other": 3,
        "tuned, own classes: one, other": 3,
        "one: by defaults, tuned": 3,
        "other: by defaults, tuned": 4,
    }


def test_two_kinds_far_apart_are_an_order_that_neither_has_within() -> None:
    """Of three a kind: the same order of the kinds, the opposite one within each."""
    figures = {"default": [1, 2, 3, 11, 12, 13], "tuned": [3, 2, 1, 13, 12, 11]}
    one = pd.DataFrame({"algorithm": list("abcxyz")} | figures)
    kinds = dict.fromkeys("abc", "own models") | dict.fromkeys("xyz", "one model")
    found = orders.taus(orders.orders(one, one, BOTH), kinds).query("order == 'one: by defaults, tuned'")
    assert found.set_index("kind")["tau"].to_dict() == pytest.approx(
        {"all": (9 - 6) / 15, "own models": -1, "one model": -1, "across the kinds": 1}
    )


def test_one_model_serves_all_where_nothing_that_predicts_stays_with_a_client() -> None:
    own = ("fedavgft", "fedper", "fesem", "local", "fedproto")
    want = dict.fromkeys(("fedavg", "ccvr"), "one model") | dict.fromkeys(own, "own models")
    assert orders.kinds(list(want)) == want


def test_tables_with_too_little_in_common_are_refused(tmp_path: Path) -> None:
    files = [written(tmp_path / f"{i}.csv", names, [0.1, 0.2, 0.3]) for i, names in enumerate(("abc", "cde"))]
    with pytest.raises(UserError, match="need 3 algorithms in common"):
        orders.text(files[0], files[1])
