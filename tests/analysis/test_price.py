"""Bytes to a share of the best accuracy, by hand."""

import pandas as pd

from fedtune.analysis import price


def test_each_codec_is_its_best_trial_and_the_first_round_that_is_good_enough() -> None:
    trials = pd.DataFrame(
        {
            "trial": ["a", "b", "c"],
            "config/compress": ["none", "sign", "sign"],
            "config/lr": [0.1, 0.1, 0.3],
            "config/momentum": 0.5,
            "last_val_acc": [1.0, 0.5, 0.95],
        }
    )
    rounds = pd.DataFrame(
        {
            "trial": [*"aabbcc"],
            "round": [1, 2] * 3,
            "val_acc": [0.9, 1.0, 0.95, 0.5, 0.8, 0.95],
            "up_bytes": [2e6] * 2 + [1e6] * 4,
            "comm_mb": [5.0, 10.0, 4.0, 8.0, 4.0, 8.0],
        }
    )
    table = price.reached(trials, rounds, 0.9)
    assert table.to_dict("list") == {
        "compress": ["none", "sign"],
        "lr": [0.1, 0.3],
        "val_acc": [1.0, 0.95],
        "round": [1, 2],
        "up_mb": [2.0, 2.0],
        "comm_mb": [5.0, 8.0],
    }
    assert price.reached(trials, rounds, 1.01)["up_mb"].isna().all()
