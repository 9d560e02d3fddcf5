"""The measured tables: what is averaged over what."""

import pandas as pd
import pytest

from analysis import fedpa_table2


def test_table2_takes_the_last_round_and_names_the_papers_rule_apart() -> None:
    rows = [
        {"scenario": "fedpa-fmnist-a0.3", "algorithm": algo, "preset": "as_text", "seed": seed, "round": t,
         "val_acc": 0.5, "test_acc": 0.1 * t + 0.02 * seed, "comm_mb": t, "seconds": 1.0}
        for algo in ("fedpa", "fedavg") for seed in (0, 1) for t in (3, 7, 1, 2, 4, 5, 6)
    ]  # fmt: skip
    table = fedpa_table2.summary(pd.DataFrame(rows))
    assert list(table.algorithm) == ["fedavg", "fedpa"] and list(table.paper) == [84.36, 85.52]
    assert list(table.seeds) == [2, 2] and list(table.rounds) == [7, 7]
    assert table.test.tolist() == pytest.approx([71, 71]) and table.test_std.tolist() == pytest.approx([2**0.5] * 2)
    assert table.best_five.tolist() == pytest.approx([51, 51])  # rounds 3 to 7
    assert "| fedpa | as_text | 71.00 ± 1.41 | 51.00 | 50.00 | 7 | 85.52 |" in fedpa_table2.text(table)
