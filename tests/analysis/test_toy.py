"""The toy of FedGenP's figure 3 is what its docstring says."""

import numpy as np
import pandas as pd
import pytest
from support.commands import refusal

from fedtune.analysis import fedgenp_toy as toy


def test_rows_follow_the_law():
    data = toy.draw(0)
    assert data.x.shape == (2 * 3 * 240, 1, 1, 2) and data.x.dtype == np.float32
    for split, n in toy.ROWS.items():
        rows = getattr(data, split).rows
        assert rows.shape == (3, 2 * n) and (data.y[rows].sum(1) == n).all()  # as many of each class
    held = np.concatenate([getattr(data, split).rows.ravel() for split in toy.ROWS])
    assert sorted(held) == list(range(len(data.y)))  # nobody holds another's row, nor one twice
    for k, rows in enumerate(data.test.rows):
        x, y = data.x[rows].reshape(-1, 2), data.y[rows]
        centres = np.stack([x[y == label].mean(0) for label in (0, 1)])
        middle, apart = centres.mean(0), centres[1] - centres[0]
        assert np.linalg.norm(middle) == pytest.approx(toy.RADIUS, abs=0.1), k
        assert np.linalg.norm(apart) == pytest.approx(2 * toy.OFFSET, abs=0.1), k
        spoke = middle / np.linalg.norm(middle)
        assert apart @ spoke == pytest.approx(0, abs=0.15)
        along, across = (x - centres[y]) @ spoke, (x - centres[y]) @ [-spoke[1], spoke[0]]
        assert (along.std(), across.std()) == pytest.approx(tuple(toy.SPREAD[k]), rel=0.2)


def test_the_command_prints_and_writes_what_each_seed_determines(tmp_path, capsys, monkeypatch):
    monkeypatch.delitem(toy.PLAYED, "fedgenp")  # FedAvg takes a twentieth of the time; both: tests/docs/test_results.py
    assert toy.main(["--rounds", "10,20", "--seeds", "2", "--seed", "3", "--write", str(tmp_path)]) == 0
    table = pd.read_csv(tmp_path / "fedgenp-toy.csv")
    pd.testing.assert_frame_equal(table, pd.concat([toy.run([10, 20], seed) for seed in (3, 4)], ignore_index=True))
    assert [*table["seed"]] == [3, 3, 4, 4] and [*table["rounds"]] == [10, 20] * 2
    assert table["accuracy"].is_unique and table["accuracy"][3] > 0.6
    printed = [line.split()[3] for line in capsys.readouterr().out.splitlines()[1:]]
    assert printed == [f"{x:.4f}" for x in table["accuracy"]]


@pytest.mark.parametrize("bad", ["--rounds 0", "--rounds forty", "--seed -1", "--seeds 0", "--seed x", "--colour red"])
def test_bad_arguments_give_one_line(bad, capsys):
    assert bad.split()[0] in refusal(toy.main, bad, capsys)
