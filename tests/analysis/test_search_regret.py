"""Simulated searches on tables whose best configuration is known."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.commands import refusal
from support.processes import below, lives, working
from support.rows import first
from support.searches import command
from support.tabulated import ABOUT, flat
from support.waiting import wait_for

from fedtune.analysis import simulate, tabulate
from fedtune.analysis.simulation import search_regret, tabulated
from fedtune.analysis.simulation.search_regret import Strategy, choices
from fedtune.analysis.simulation.simulated_search import SimulatedRound
from fedtune.analysis.simulation.tabulated import Tabulated
from fedtune.core.errors import UserError
from fedtune.core.objectives import Goal, parse


def mean_regret(table: Tabulated, strategy: Strategy, budget: float, searches: int) -> np.ndarray:
    """Over searches, at each share of the budget."""
    return np.mean([[c.regret for c in choices(table, strategy, budget, 1, i)] for i in range(searches)], 0)


def test_a_random_search_has_the_regret_of_its_closed_form() -> None:
    """One of ten configurations is better by 1, and k are drawn after the default: it is missed with chance .9^k."""
    worth = np.zeros(10)
    worth[3] = 1.0
    found = mean_regret(flat(worth), Strategy("random", "none", 0), 8, 200)
    want = [0.9 ** (budget - 1) for budget in (1, 2, 4, 8)]
    assert found == pytest.approx(want, abs=3 * 0.5 / 200**0.5)
    assert found[0] == 1  # the default alone


def test_a_choice_is_judged_on_seeds_that_it_was_not_made_on() -> None:
    """Where all is luck, the best of many on one seed is no better on the others than any: its regret is the best's."""
    regrets, bests = [], []
    for draw in range(150):
        table = flat(np.zeros(200), spread=1.0, draw=draw)
        regrets.append(choices(table, Strategy("random", "none", 0), 16, 1, 0)[-1].regret)
        bests.append(table.final_means([1, 2])[table.final_means([0, 1, 2]).argmax()])
    assert np.mean(regrets) == pytest.approx(np.mean(bests), abs=4 * 0.71 / 150**0.5)


def test_the_whole_grid_on_one_seed_chooses_the_luckiest() -> None:
    """By hand: seed 0 chooses the first, which is 0.3 on the others, seeds 1 and 2 the second, the best of all."""
    values = np.array([[0.9, 0.3, 0.3], [0.5, 0.8, 0.8]])[:, :, None]
    table = Tabulated(levels={"a": [0, 1]}, seeds=range(3), values=values, default=(0,), about=ABOUT)
    assert search_regret.regret_of_whole_grid(table) == pytest.approx((0.5 + 0 + 0) / 3)
    assert search_regret.regret_of_whole_grid(flat(np.linspace(0, 1, 7))) == 0


def test_training_is_counted_in_rounds_of_every_seed() -> None:
    worth = np.linspace(0, 1, 50)
    one, two = (choices(flat(worth), Strategy("random", "none", 0, seeds), 16, 1, 5) for seeds in (1, 2))
    assert [c.trials for c in one] == [2, 4, 8, 16]
    assert [c.trials for c in two] == [1, 2, 4, 8]
    assert [c.rounds for c in one] == [2, 4, 8, 16]


def test_more_seeds_for_the_best_pay_where_seeds_differ_and_cost_where_they_agree() -> None:
    worth = np.linspace(0, 1, 100)
    top, alone = (Strategy("random", "none", 0, choose_seeds=k) for k in (2, 1))
    same, luck = flat(worth, 4), flat(worth, 4, spread=1.0)
    assert mean_regret(same, top, 16, 80)[-1] > mean_regret(same, alone, 16, 80)[-1]
    assert mean_regret(luck, top, 32, 80)[-1] < mean_regret(luck, alone, 32, 80)[-1]


def test_a_choice_among_the_best_goes_by_all_seeds_that_they_were_trained_on() -> None:
    def chosen(others: list[float], k: int) -> int | None:
        values = np.zeros((4, 3, 3))
        values[:, 0] = np.array([0.1, 0.2, 0.3, 0.05])[:, None]  # on the seed that selects
        values[:, 1, -1] = others  # at the end on the other
        table = Tabulated(levels={"a": [0, 1, 2, 3]}, seeds=range(3), values=values, default=(0,), about=ABOUT)
        ledger = search_regret._Ledger(table, Strategy("random", "promote", 1, choose_seeds=k), [0, 1])
        for i in range(4):
            ledger.take(SimulatedRound(3.0, i, {"a": i}, 3, float(values[i, 0, -1]), "finished"))
        choice = ledger.choice()
        return choice and choice["a"]

    assert chosen([0.9, 0.5, 0.0, 1.0], 1) == 2
    assert chosen([0.9, 0.5, 0.0, 1.0], 2) == 0  # of the best three
    assert chosen([np.nan, 0.5, 0.0, 1.0], 2) == 1  # one that diverges on a seed that selects is out
    assert chosen([np.nan, np.nan, np.nan, 1.0], 2) == 3  # and if all three are, the next
    assert chosen([np.nan] * 4, 2) is None  # none stands, as `runs.choice` has it


def test_combinations_that_make_no_sense_are_left_out_or_refused() -> None:
    found = search_regret.strategies(["tpe"], ["asha", "none"], [1, 2], [1], [1, 2])
    assert [str(s) for s in found] == [
        "tpe, asha, first rung 1",
        "tpe, asha, first rung 1, best 3 chosen by 2 seeds",
        "tpe, asha, first rung 2",
        "tpe, asha, first rung 2, best 3 chosen by 2 seeds",
        "tpe, none",
        "tpe, none, best 3 chosen by 2 seeds",
    ]
    for names, judges, why in ((["grid"], ["asha"], "samples its configurations"), (["tpe"], ["pbt"], "change their")):
        with pytest.raises(UserError, match=why):
            search_regret.strategies(names, judges, [1], [1], [1])
    with pytest.raises(UserError, match="judged on seeds that it does not select on"):
        search_regret.require_seeds([flat(np.zeros(3))], [Strategy("tpe", "none", 0, 2, 2)])


def test_the_summary_has_mean_interval_and_the_spread_of_one_search() -> None:
    regrets = {("good", 2): [0.01, 0.03], ("good", 4): [0.0, 0.02], ("bad", 2): [0.1, 0.1], ("bad", 4): [0.1, 0.3]}
    frame = pd.DataFrame(
        [
            {"table": "t", "strategy": strategy, "budget": budget, "trials": 8, "turn": 0, "regret": regret}
            for (strategy, budget), of in regrets.items()
            for regret in of
        ]
    )
    found = search_regret.summary(frame).set_index("strategy")
    assert found.index.tolist() == ["good", "bad"] and found["trials"].tolist() == [8, 8]
    assert found.loc["good", ["regret 2", "regret 4", "spread"]].tolist() == pytest.approx([2, 1, 2**0.5])
    assert found.loc["bad", "± 4"] == pytest.approx(12.706 * 10, rel=1e-4)  # Student's t with one degree of freedom
    assert found.loc["bad", "spread"] == pytest.approx(200**0.5)
    # on a seed where all choose worse by as much, a search varies no more
    luckless = frame.assign(turn=1, regret=frame["regret"] + 0.5)
    both = search_regret.summary(pd.concat([frame, luckless])).set_index("strategy")
    assert both["spread"].to_dict() == pytest.approx(found["spread"].to_dict())


def priced(worth: np.ndarray, cost: np.ndarray, rounds: int = 9) -> Tabulated:
    """Configurations that reach this on every seed in every round, and cost so many megabytes a round."""
    costs = cost[:, None, None] * np.broadcast_to(np.arange(1, rounds + 1), (len(cost), 3, rounds))
    return dataclasses.replace(flat(worth, rounds=rounds), costs=costs)


BOTH = Goal(parse("val_acc,comm_mb"))


def test_the_share_of_a_front_that_a_search_has_not_found_is_the_area_that_it_lacks() -> None:
    """The default reaches 0.5 at 1 MB, the other 1 at 5 MB, of at most 45: areas of 22, and 20 more."""
    table, alone = priced(np.array([0.5, 1.0]), np.array([1.0, 5.0])), Strategy("random", "none", 0)
    found = np.array([[c.regret for c in choices(table, alone, 8, 1, i, BOTH)] for i in range(20)])
    assert set(found[:, 0].round(9)) == {round(20 / 42, 9)}  # the default alone
    assert set(found[:, -1].round(9)) <= {0.0, round(20 / 42, 9)} and found[:, -1].mean() < 0.05


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ("--objective val_acc,comm_mb", "a front needs comm_mb of every round, but fedavg on made up has none"),
        ("--objective comm_mb", "val_acc comes first, and alone with --against-itself, but got --objective comm_mb"),
        ("--objective val_acc,comm_mb --against-itself", "val_acc comes first, and alone with --against-itself"),
        ("--objective val_acc,seconds", "unknown objective 'seconds'"),
        ("{priced} --objective val_acc,comm_mb --searcher cmaes", "a front has no choice by more seeds, nor cmaes one"),
        ("{priced} --objective val_acc,comm_mb --choose-seeds 2", "a front has no choice by more seeds, nor tpe one"),
    ],
)
def test_a_front_is_simulated_where_there_is_one(
    words: str, rule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flat(np.zeros(3)).write(tmp_path / "t.parquet")
    priced(np.zeros(3), np.ones(3)).write(tmp_path / "p.parquet")
    file = "" if "{priced}" in words else f"{tmp_path}/t.parquet "
    assert rule in refusal(simulate.main, file + words.format(priced=tmp_path / "p.parquet"), capsys)


GRID = "from ray import tune\nSPACE = {'lr': tune.choice([0.01, 0.1, 0.3]), 'local_epochs': tune.choice([1, 2])}\n"


@pytest.mark.usefixtures("one_ray")
def test_a_grid_is_trained_once_and_searched_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "grid.py").write_text(GRID)
    words = (
        f"--algo local --scenario digits-w4 --space {tmp_path}/grid.py --clients 3 --rounds 3 --seeds 2 "
        f"--storage-path {tmp_path} --name runs-of-it --no-dashboard -o {tmp_path}"
    )
    assert tabulate.main(f"{words}/one.parquet".split()) == 0
    assert "local on digits-w4: 6 configurations, 2 seeds, 3 rounds" in capsys.readouterr().out
    runs = sorted((tmp_path / "runs-of-it" / "runs").glob("*.json"))
    assert len(runs) == 12
    runs[4].unlink()
    before = {f: f.stat().st_mtime_ns for f in runs if f.exists()}
    assert tabulate.main(f"{words}/two.parquet".split()) == 0
    assert {f: f.stat().st_mtime_ns for f in before} == before and runs[4].exists()
    one, two = (tabulated.read(tmp_path / f"{n}.parquet") for n in ("one", "two"))
    assert np.array_equal(one.values, two.values) and one.values.shape == (3, 2, 2, 3)
    assert one.about["scenario_name"] == "digits-w4" and one.about["command"]
    assert one.default == (0, 0)  # nearest to lr 0.03, one epoch
    capsys.readouterr()
    line = f"{tmp_path}/one.parquet --searcher random,tpe --scheduler none,asha --budget 4 --searches 3 --processes 1"
    assert simulate.main(f"{line} -o {tmp_path}/all.csv".split()) == 0
    shown, every = capsys.readouterr().out, pd.read_csv(tmp_path / "all.csv")
    assert "local on digits-w4: regret in points, mean of 3 searches; of the whole grid " in " ".join(shown.split())
    assert "tpe, asha, first rung 3" in shown
    assert len(every) == 4 * 3 * 4 and set(every["budget"]) == {0.5, 1, 2, 4}


def test_nobody_is_judged_before_the_first_effect_unless_one_says_so(tmp_path: Path) -> None:
    late = dataclasses.replace(flat(np.linspace(0, 1, 9), rounds=20), first_effect=14)
    late.write(tmp_path / "late.parquet")
    flat(np.linspace(0, 1, 9), rounds=20).write(tmp_path / "early.parquet")
    words = "--scheduler asha,median,none --searches 2 --budget 2 --processes 1"
    line = f"{tmp_path}/early.parquet {tmp_path}/late.parquet {words} -o {tmp_path}"
    for more, rounds in (("", (3, 14)), ("--grace 5,14", (5, 14))):
        assert simulate.main(f"{line}/of{more[8:]}.csv {more}".split()) == 0
        found = pd.read_csv(tmp_path / f"of{more[8:]}.csv")["strategy"]
        want = [f"tpe, {how} {t}" for t in rounds for how in ("asha, first rung", "median, from round")]
        assert set(found) == {*want, "tpe, none"}


@pytest.mark.long  # runs of Ray's
def test_a_table_knows_its_first_effect(tmp_path: Path, one_ray: None) -> None:
    """GFPL's values act from an event on; t* = 3 brings the first, t* = 9 none within a run."""
    (tmp_path / "grid.py").write_text("from ray import tune\nSPACE = {'first': tune.choice([2, 3, 9])}\n")
    words = f"--algo gfpl --scenario digits-w4 --space {tmp_path}/grid.py --clients 3 --rounds 4 --seeds 1"
    assert tabulate.main(f"{words} --storage-path {tmp_path} --no-dashboard -o {tmp_path}/t.parquet".split()) == 0
    assert tabulated.read(tmp_path / "t.parquet").first_effect == 3


@pytest.mark.parametrize("number", first([signal.SIGKILL, signal.SIGTERM, signal.SIGINT], 1))
def test_no_process_is_left_of_a_simulation_that_is_ended(number: signal.Signals, tmp_path: Path) -> None:
    flat(np.linspace(0, 1, 50), rounds=30).write(tmp_path / "t.parquet")
    words = "--searcher random,tpe --scheduler none --searches 40 --processes 2"
    process = command("fedtune.analysis.simulate", f"{tmp_path}/t.parquet", *words.split())
    assert process.stdout and "1 of 2 done (random, none" in process.stdout.readline()  # all are at work
    started = set(below(working(process.pid)))
    assert len(started) >= 3
    os.killpg(process.pid, number) if number == signal.SIGINT else os.kill(working(process.pid), number)
    wait_for(lambda: not any(map(lives, started)))
    said = process.communicate()[0]
    assert "2 of 2 done" not in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("main", "words", "why"),
    [
        (simulate.main, "none.parquet", "none.parquet is damaged"),
        (simulate.main, "{t} --grace 0", "--grace must be a whole number in 1.."),
        (simulate.main, "{t} --grace 99", "--grace must be a whole number in 1.."),
        (simulate.main, "{t} --choose-seeds all", "--choose-seeds must be a whole number"),
        (simulate.main, "{t} --searcher tpee", "tpee"),
        (simulate.main, "{t} --seeds-per-trial 3", "give fewer --seeds-per-trial"),
        (simulate.main, "{t} -o nowhere/x.csv", "--output needs a new file"),
        (tabulate.main, "--algo gfpl -o x.parquet", "--space, the grid of the table, is needed"),
        (tabulate.main, "--algo gfpl --space default -o x.parquet", "a grid needs a list of values"),
        (tabulate.main, "--algo gfpl --space paper -o x.parquet", "a table needs a full grid"),
    ],
)
@pytest.mark.usefixtures("nothing_starts")
def test_what_cannot_be_simulated_is_refused_in_a_line(
    main: Any, words: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    flat(np.zeros(4)).write(tmp_path / "t.parquet")
    assert why in refusal(main, words.format(t=tmp_path / "t.parquet"), capsys)
    assert [f.name for f in tmp_path.iterdir()] == ["t.parquet"]
