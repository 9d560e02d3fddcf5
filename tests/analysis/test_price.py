"""Bytes to a share of the best accuracy, by hand."""

import numpy as np
import pandas as pd

from fedtune.analysis import price


def test_the_chosen_configuration_of_each_search_counts_and_the_first_round_that_is_good_enough() -> None:
    names = ["none", "sign", "sign"]
    runs = pd.DataFrame(
        {
            "algorithm": [*names, *names],
            "configuration": ["top 1", "top 1", "default"] * 2,
            "search": [1] * 3 + [2] * 3,
            "seed": [7] * 3 + [8] * 3,
            "chosen": [True, True, False] * 2,
        }
    )
    curves = {  # accuracy of both rounds, of each run
        ("none", "top 1", 7): [0.9, 1.0],
        ("sign", "top 1", 7): [0.95, 0.5],
        ("sign", "default", 7): [1.0, 1.0],
        ("none", "top 1", 8): [0.5, 1.0],
        ("sign", "top 1", 8): [0.85, 0.91],
        ("sign", "default", 8): [1.0, 1.0],
    }
    rounds = pd.DataFrame(
        [
            (*run, t, accuracy, 2e6 if run[0] == "none" else 1e6, 5.0 * t)
            for run, of in curves.items()
            for t, accuracy in enumerate(of, 1)
        ],
        columns=["algorithm", "configuration", "seed", "round", "val_acc", "up_bytes", "comm_mb"],
    )
    runs["val_acc"] = [
        curves[run][-1] for run in zip(runs["algorithm"], runs["configuration"], runs["seed"], strict=True)
    ]
    table = price.reached(runs, rounds, 0.9).set_index("algorithm")
    assert list(table.index) == ["sign", "none"] and table["reached"].tolist() == [2, 2]
    np.testing.assert_allclose(table["val_acc"], [(0.5 + 0.91) / 2, 1.0])
    np.testing.assert_allclose(table[["round", "up_mb", "comm_mb"]], [[1.5, 1.5, 7.5], [1.5, 3.0, 7.5]])
    np.testing.assert_allclose(
        table["half"], [12.706204736 * 0.5, 12.706204736], rtol=1e-6
    )  # t of one degree of freedom
    never = price.reached(runs, rounds, 0.95).set_index("algorithm")
    assert np.isnan(never["up_mb"]["sign"]) and never["reached"].tolist() == [2, 1]
    runs.loc[0, "val_acc"] = np.nan  # it diverged after its rounds
    lost = price.reached(runs, rounds, 0.9).set_index("algorithm")
    assert np.isnan(lost.loc["none", ["val_acc", "up_mb", "half"]].tolist()).all() and lost["reached"]["none"] == 1
