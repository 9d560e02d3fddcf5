"""The toy of FedGenP's figure 3 is what its docstring says, and draws."""

import itertools

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


@pytest.mark.long
def test_a_seed_determines_the_figure():
    first, again, other = toy.run([2, 3], 3), toy.run([2], 3), toy.run([2], 4)
    assert [s[:3] for s in first[::2]] == [s[:3] for s in again]
    assert all(np.array_equal(a.margin, b.margin) for a, b in zip(first[::2], again, strict=True))
    assert not np.array_equal(first[0].margin, other[0].margin)
    assert [(s.algorithm, s.rounds) for s in first] == [("fedavg", 2), ("fedavg", 3), ("fedgenp", 2), ("fedgenp", 3)]
    assert not np.array_equal(first[1].margin, first[3].margin)  # generators have had their effect


def test_accuracy_is_of_the_margin_that_is_drawn(monkeypatch):
    monkeypatch.delitem(toy.PLAYED, "fedgenp")  # FedAvg's is enough, and takes a twentieth of the time
    data, shot = toy.draw(0), toy.run([30], 0)[0]
    rows = data.test.rows.ravel()
    x, y = data.x[rows].reshape(-1, 2), data.y[rows]
    cell = np.rint((x + toy.REACH) / (2 * toy.REACH) * (toy.CELLS - 1)).astype(int).clip(0, toy.CELLS - 1)
    guessed = shot.margin[cell[:, 1], cell[:, 0]] > 0  # the nearest grid point's class
    assert shot.accuracy > 0.6 and (guessed == y).mean() == pytest.approx(shot.accuracy, abs=0.02)


@pytest.mark.long
def test_command_draws_and_prints(tmp_path, capsys):
    path = tmp_path / "toy.png"
    assert toy.main(["--rounds", "1,2", "--seeds", "2", "--write", str(tmp_path), "--output", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 20_000
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [tuple(line[:2]) for line in lines[1:5]] == list(itertools.product(("fedavg", "fedgenp"), "12"))
    table = pd.read_csv(tmp_path / "fedgenp-toy.csv")
    assert [*table["seed"]] == [0] * 4 + [1] * 4
    assert [f"{x:.4f}" for x in table["accuracy"]] == [line[3] for line in lines[1:9]]


@pytest.mark.parametrize(
    "bad",
    ["--rounds 0", "--rounds forty", "--rounds 1,2,3,4,5", "--seed -1", "--seeds 0", "--output toy.xyz"]
    + ["--output nowhere/toy.png", "--seed x", "--colour red"],
)
def test_bad_arguments_give_one_line(bad, capsys):
    assert bad.split()[0] in refusal(toy.main, bad, capsys)
