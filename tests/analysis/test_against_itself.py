"""A comparison of an algorithm with itself: false alarms and finds have the chances that theory gives them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from support.commands import refusal
from support.tabulated import flat

from fedtune.analysis import simulate, tabulate
from fedtune.analysis.simulation import against_itself, tabulated
from fedtune.analysis.simulation.against_itself import ChosenPlaces, Procedure, judge, judge_equals
from fedtune.analysis.simulation.tabulated import ROUND, SEED, Fresh, Tabulated
from fedtune.core import statistics
from fedtune.core.errors import UserError
from fedtune.core.metrics import METRIC
from fedtune.studies.comparison import tables

NEAR = 4 * (0.05 * 0.95 / 4000) ** 0.5  # of a share near 5 % of 4,000 comparisons


def lucky(apart: float, noise: float = 1.0, fresh: int = 30, places: int = 400, seed: int = 1) -> ChosenPlaces:
    """Searches whose choices differ by so much (a standard deviation), and seeds by noise of each choice's own."""
    stream = np.random.default_rng(seed)
    means = apart * stream.normal(size=(places, 1))
    worth = means + noise * stream.normal(size=(places, fresh))
    return ChosenPlaces([[(i,) for i in range(places)]], {(i,): worth[i] for i in range(places)})


def test_a_test_over_searches_is_wrong_as_often_as_it_says_whatever_differs() -> None:
    for apart in (0.0, 1.0, 10.0):
        found = judge(lucky(apart), [Procedure(3, 2), Procedure(5, 3), Procedure(10, 1)], [], 32)
        assert found["found 0"].tolist() == pytest.approx([0.05] * 3, abs=NEAR)


def test_a_test_over_the_seeds_of_one_search_takes_the_luck_of_the_search_for_a_difference() -> None:
    """The chance is that of a noncentral t, whose noncentrality is normal with the searches' spread."""
    apart, noise, s = 0.4, 1.0, 10
    found = judge(lucky(apart, noise), [Procedure(1, s)], [], 32).iloc[0]
    scale = noise * np.sqrt(2 / s)
    at = np.linspace(-6, 6, 2001) * apart * np.sqrt(2)
    weight = stats.norm.pdf(at, scale=apart * np.sqrt(2))
    beyond = stats.t.ppf(0.975, s - 1)
    chance = stats.nct.sf(beyond, s - 1, at / scale) + stats.nct.cdf(-beyond, s - 1, at / scale)
    want = np.trapezoid(weight * chance, at) / np.trapezoid(weight, at)
    assert want > 3 * 0.05
    assert found["found 0"] == pytest.approx(want, abs=4 * (want * (1 - want) / 400) ** 0.5)


def test_a_shift_is_found_with_the_power_of_the_t_test() -> None:
    k, shift = 5, 2.0
    found = judge(lucky(0.0, 1.0), [Procedure(k, 2)], [shift], 32).iloc[0]
    want = stats.nct.sf(stats.t.ppf(0.975, k - 1), k - 1, shift / np.sqrt(2 / (2 * k)))
    assert found[f"found {shift:g}"] == pytest.approx(want, abs=0.03)
    assert found["spread"] == pytest.approx(np.sqrt(2 / (2 * k)), rel=0.1)
    assert found["cost"] == 5 * (32 + 2)


def test_equal_choices_and_diverged_runs_have_no_verdict() -> None:
    same = ChosenPlaces([[(0,)] * 5], {(0,): np.zeros(4)})
    assert judge(same, [Procedure(2, 2)], [0.01], 8).iloc[0][["none", "found 0", "found 0.01"]].tolist() == [1, 0, 0]
    lost = ChosenPlaces([[None] * 5], {(0,): np.zeros(4)})
    assert judge(lost, [Procedure(2, 2)], [], 8).iloc[0]["none"] == 1
    equals = judge_equals([lucky(1.0, fresh=4), lost, lucky(1.0, fresh=4, seed=3)], [Procedure(2, 2)], [], 0.0, 20)
    assert equals["none"].tolist() == pytest.approx([2 / 3])


def test_sides_search_on_the_same_seed_and_train_on_the_same_fresh_ones() -> None:
    """Were they on others, the seeds' own luck, 100, would not cancel."""
    luck = 100 * np.arange(6.0)
    pool = ChosenPlaces([[(0,)] * 2, [(1,)] * 2], {(0,): luck, (1,): luck + 7})
    for seed in range(20):
        assert np.abs(pool.differences(Procedure(2, 3), np.random.default_rng(seed))).max() == 0


def test_what_was_not_trained_or_too_seldom_is_refused() -> None:
    pool = lucky(0.0, fresh=5, places=3)
    untrained = dataclasses.replace(pool, places=[[*pool.places[0], (9,)]])
    for of, how, why in (
        (pool, Procedure(3, 2), "so 6 are needed, but there are 5"),
        (untrained, Procedure(1, 2), "1 of 4 configurations that searches choose have none"),
    ):
        with pytest.raises(UserError, match=why):
            judge(of, [how], [], 32)
    with pytest.raises(UserError, match="at least two numbers"):
        against_itself.procedures([1], [1])


def test_two_equals_are_called_different_as_often_as_the_t_test_says_and_a_shift_is_found_with_its_power() -> None:
    """However much better one of them is, as that is taken off; one pair alone is shrunk to nothing."""
    one, other = lucky(1.0), lucky(1.0, seed=2)
    other = dataclasses.replace(other, worth={place: of + 40 for place, of in other.worth.items()})
    k, shift = 5, 1.0
    found = judge_equals([one, other], [Procedure(k, 2)], [shift], margin=0.0).iloc[0]
    assert found[["each", "any", "larger"]].tolist() == pytest.approx([0.05] * 3, abs=NEAR)
    per_search = 1.0 + 1 / 2  # of the choices, and of the noise of two seeds; twice, as there are two sides
    want = stats.nct.sf(stats.t.ppf(0.975, k - 1), k - 1, shift / np.sqrt(2 * per_search / k))
    assert found[f"found {shift:g}"] == pytest.approx(want, abs=0.03)
    assert judge_equals([one, other], [Procedure(k, 2)], [], margin=50.0, played=50)["larger"].tolist() == [0]


def test_of_several_equals_a_comparison_is_judged_as_compare_judges_it() -> None:
    """Each pair by variances shrunk to all, the family by Holm: with one comparison the shares are 0 or 1."""
    pools, how = [lucky(1.0, fresh=4, places=3, seed=s) for s in range(4)], Procedure(3, 2)
    for margin in (0.0, 0.3):
        got = judge_equals(pools, [how], [3.0], margin, played=1).iloc[0]
        stream = np.random.default_rng(how)
        fresh, turn = stream.integers(4, size=how), int(stream.integers(1))
        drawn = [pool.drawn(turn, fresh, 1, stream)[0] - pool.on_fresh()[0] for pool in pools]
        rows = [
            {"algorithm": name, "configuration": "top 1", "chosen": True, "search": k, "seed": s, "test_acc": v}
            for name, of in zip("abcd", drawn, strict=True)
            for k, seeds in enumerate(of)
            for s, v in enumerate(seeds)
        ]
        pairs = tables.pairs(pd.DataFrame(rows), margin=margin)
        assert got["each"] == pytest.approx((pairs["p"] < 0.05).mean())
        assert got["any"] == (pairs["p_holm"] < 0.05).any() and got["larger"] == (pairs["verdict"] == "larger").any()
        better = [row | {"test_acc": row["test_acc"] + 3.0 * (row["algorithm"] == "a")} for row in rows]
        moved = tables.pairs(pd.DataFrame(better))
        mine = moved[(moved[["algorithm", "other"]] == "a").any(axis=1)]
        assert got["found 3"] == pytest.approx((mine["p_holm"] < 0.05).mean())


def test_equals_have_one_setting_and_one_set_of_seeds() -> None:
    table = flat(np.linspace(0, 1, 5))
    given = fresh(table, [2, 3, 4])
    against_itself.require_one_setting([table, table], [given, given])
    elsewhere, later = (
        dataclasses.replace(table, **how) for how in ({"about": {"scenario_name": "x"}}, {"seeds": [7]})
    )
    for other, its, why in (
        (elsewhere, given, "one setting, but the tables have .* and x"),
        (later, given, "one set of seeds"),
        (table, fresh(table, [2, 3]), r"one set of fresh seeds, but the tables have \[2, 3, 4\] and \[2, 3\]"),
    ):
        with pytest.raises(UserError, match=why):
            against_itself.require_one_setting([table, other], [given, its])


def test_p_of_a_mean_is_students() -> None:
    d = np.random.default_rng(0).normal(0.3, 1, 7)
    assert statistics.p_of_mean(d) == pytest.approx(stats.ttest_1samp(d, 0).pvalue, rel=1e-12)
    assert np.isnan([statistics.p_of_mean(np.array(x)) for x in ([1.0], [1.0, 1.0], [1.0, np.nan])]).all()


def fresh(table: Tabulated, seeds: list[int], off: float = 0.0) -> Fresh:
    """Two configurations of a table of one hyperparameter on these seeds; the last run diverges on a fresh one."""
    rows = []
    for place, seed in ((p, s) for p in (1, 3) for s in seeds):
        value = table.values[place, 0, -1] + off if seed in table.seeds else place + seed / 100
        rows.append({"a": place, SEED: seed, ROUND: table.rounds, METRIC: value})
    rows[-1][METRIC] = np.nan
    return Fresh(Path("fresh.parquet"), pd.DataFrame(rows))


def test_fresh_seeds_are_those_that_the_table_has_not(capsys: pytest.CaptureFixture[str]) -> None:
    table = flat(np.linspace(0, 1, 5))
    found = fresh(table, [2, 3, 4]).of(table)
    assert found.keys() == {(1,), (3,)}
    np.testing.assert_allclose(found[1,], [1.03, 1.04])
    np.testing.assert_allclose(found[3,], [3.03, np.nan])
    given = fresh(table, [2, 3])  # sums that are rounded otherwise in some configurations are told
    given.frame.loc[0, METRIC] += 0.002
    assert given.of(table).keys() == {(1,), (3,)}
    said = " ".join(capsys.readouterr().err.split())
    assert "1 of 2 configurations differ, as where sums are rounded otherwise, and the others are the same" in said
    assert "a = 1 reached 0.2500 in the table and 0.2520" in said


def test_fresh_seeds_of_another_experiment_are_refused() -> None:
    table = flat(np.linspace(0, 1, 5))
    for seeds, off, why in (
        ([2, 3], 0.01, "on seed 2 2 of 2 configurations differ: a = 1 reached 0.2500 in the table and 0.2600"),
        ([3, 4], 0.0, "has the seeds 3, 4"),
        ([1, 2], 0.0, "has the seeds 1, 2"),
    ):
        with pytest.raises(UserError, match=why):
            fresh(table, seeds, off).of(table)
    with pytest.raises(UserError, match="has the seeds 1, 2"):  # a table of the same grid, which has costs, too
        Fresh(Path("t.parquet"), fresh(table, [1, 2]).frame.assign(**{tabulated.COST: 1.0})).of(table)
    other = fresh(table, [2, 3])
    with pytest.raises(UserError, match="which varies a over 4 rounds"):
        Fresh(other.file, other.frame.rename(columns={"a": "b"})).of(table)
    with pytest.raises(UserError, match="not trained on every seed"):
        Fresh(other.file, other.frame.drop(index=1)).of(table)


def test_what_choices_reach_on_fresh_seeds_and_how_many_of_their_runs_diverge() -> None:
    """Of four searches one chose nothing, and one run of another's choice diverged: 3 of 8 runs."""
    worth = {(0,): np.array([0.5, 0.7]), (1,): np.array([0.9, np.nan])}
    pool = ChosenPlaces([[(0,), None], [(0,), (1,)]], worth)
    assert pool.on_fresh() == pytest.approx(((0.5 + 0.7 + 0.5 + 0.7 + 0.9) / 5, 3 / 8))
    assert judge(pool, [Procedure(1, 2)], [], 3, played=2)[["reached", "diverged"]].iloc[0].tolist() == [
        pytest.approx(0.66),
        3 / 8,
    ]


GRID = 'from ray import tune\nSPACE = {"lr": tune.choice([0.01, 0.1, 0.3]), "momentum": tune.choice([0.0, 0.5])}\n'


@pytest.mark.long
def test_from_a_table_to_its_judgement(
    tmp_path: Path, one_ray: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands that docs/background/simulate.md names, on a small table."""
    monkeypatch.chdir(tmp_path)
    Path("grid.py").write_text(GRID)
    what = "--algo local --clients 3 --rounds 2 --no-dashboard"
    assert tabulate.main(f"{what} --space grid.py --seeds 2 -o t.parquet".split()) == 0
    play = "t.parquet --against-itself --searches 4 --budget 3 --processes 1"
    assert simulate.main(f"{play} --choose-seeds 1,2 --chosen chosen.py".split()) == 0
    assert "configurations of 6 that searches choose: chosen.py" in capsys.readouterr().out
    more = f"{what} --space chosen.py --more-of t.parquet --seeds 4 --name more"
    assert tabulate.main(f"{more} -o more.parquet".split()) == 0
    assert "a CPU with" not in capsys.readouterr().err
    worth = tabulated.read_fresh(Path("more.parquet")).of(tabulated.read(Path("t.parquet")))
    assert {len(of) for of in worth.values()} == {4}
    line = f"{play} --fresh more.parquet --compare-searches 1,2 --fresh-seeds 2 --shift 50 -o judged.csv"
    assert simulate.main(line.split()) == 0
    judged = pd.read_csv("judged.csv")
    assert judged[["searches", "seeds", "cost"]].values.tolist() == [[1, 2, 5], [2, 2, 10]]
    said = capsys.readouterr().out
    assert "called different at 5%" in said and "what searches choose reaches " in said
    twice = line.replace("t.parquet", "t.parquet t.parquet", 1).replace("more.parquet", "more.parquet more.parquet")
    assert simulate.main(twice.replace("judged", "equals").replace("1,2", "2").split()) == 0
    assert pd.read_csv("equals.csv")[["searches", "seeds"]].values.tolist() == [[2, 2]]
    assert "any larger than 0.5" in " ".join(capsys.readouterr().out.split())
    judge_it = f"{play} --fresh more.parquet"
    for main, line, why in (
        (simulate.main, play, "takes a file of --fresh for each table, or one table and --chosen"),
        (simulate.main, f"{judge_it} more.parquet", "got 1 table, 2 files of fresh seeds and no --chosen"),
        (simulate.main, judge_it, "so 50 are needed, but there are 4"),
        (simulate.main, f"{play} --fresh t.parquet", "t.parquet has the seeds 0, 1"),
        (simulate.main, f"{judge_it} --margin 1", "--margin is of the verdicts on several tables"),
        (simulate.main, f"{judge_it} --shift half", "--shift must be a number above 0"),
        (simulate.main, f"{judge_it} --shift 1,nan", "--shift must be a number above 0"),
        (simulate.main, f"{twice} --margin -1", "--margin: must be a number above 0"),
        (
            tabulate.main,
            f"{what} --space grid.py --more-of t.parquet --rounds 3 --name x -o x.parquet",
            "goes on with the table's 2 rounds of local, but got 3 rounds",
        ),
    ):
        assert why in refusal(main, line, capsys)
