"""What a comparison says of means, against scipy, statsmodels and numbers worked out by hand."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import special, stats
from statsmodels.stats.multitest import multipletests

from fedtune.core import statistics
from fedtune.core.metrics import LOSS_CAP, limits
from fedtune.core.statistics import UNBOUNDED, arms, interval, number
from fedtune.studies import fresh_seeds
from fedtune.studies.comparison import tables as comparison_tables
from fedtune.studies.comparison import text as comparison_text

RNG = np.random.default_rng(0)


def test_an_interval_is_students():
    x = RNG.normal(size=7)
    found = statistics.mean(x)
    low, high = stats.t.interval(0.95, 6, loc=x.mean(), scale=stats.sem(x))
    assert found.mean == pytest.approx(x.mean(), abs=1e-14)
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high), abs=1e-12)
    assert statistics.mean([1.0, 2.0, 3.0]).half == pytest.approx(4.302652729749464 / math.sqrt(3), abs=1e-12)


ENDS = dict.fromkeys(("test_acc", "val_acc_worst10", "test_f1", "test_acc_all", "val_acc_etf"), (0, 1))
ENDS |= {"test_loss": (0, LOSS_CAP), "val_acc_std": (0, 0.5), "comm_mb": (0, math.inf)}
ENDS |= dict.fromkeys(("val_gain", "test_gain", "val_acc_se", "train_loss"), UNBOUNDED)


@pytest.mark.parametrize(("name", "ends"), ENDS.items())
def test_figures_reach_no_further_than_their_metric(name: str, ends: tuple[float, float]) -> None:
    assert limits(name) == ends
    above, below = arms([0.95, 0.02, math.nan], [0.1, 0.1, math.nan], limits(name))
    high = min(0.1, ends[1] - 0.95) if ends[1] < 0.95 + 0.1 else 0.1
    assert above[0] == pytest.approx(max(0, high)) and below[1] == pytest.approx(0.1 if ends[0] < 0 else 0.02)


@pytest.mark.parametrize("name", ["test_acc", "val_acc_worst10", "test_acc_foreign", "val_acc_etf", "test_f1"])
def test_shares_of_rows_are_in_percent(name: str) -> None:
    assert statistics.figure(name, 0.951, 0.1) == "95.10 ± 10.00 % (≤ 100)"
    assert statistics.gained(name, 0.01) == "+1.00 points"


@pytest.mark.parametrize("name", ["test_loss", "val_gain", "epsilon", "val_accuracy", "test_acceleration"])
def test_other_metrics_and_those_of_users_are_as_they_are(name: str) -> None:
    assert (statistics.figure(name, 0.951, 0.1), statistics.gained(name, 0.01)) == ("0.9510 ± 0.1000", "+0.0100")


def test_costs_have_their_unit() -> None:
    assert [statistics.figure(n, 13.0) for n in ("sim_seconds", "comm_mb")] == ["13.0000 s", "13.0000 MB"]


def test_statistics_are_nan_without_enough_values():
    assert all(map(math.isnan, statistics.mean([])))
    assert all(map(math.isnan, statistics.mean([1.0, math.nan])))
    assert statistics.mean([2.0]).mean == 2.0 and math.isnan(statistics.mean([2.0]).half)
    same = statistics.paired([1.0, 2.0], [1.0, 2.0])
    assert same[:2] == (0.0, 0.0) and math.isnan(same.p)
    # equal differences leave nothing to estimate a spread from, though the last bits differ
    for found in (statistics.paired([1.5, 2.5], [1.0, 2.0]), statistics.paired([0.9, 0.8, 0.7], [0.85, 0.75, 0.65])):
        assert found.mean > 0 and math.isnan(found.half) and math.isnan(found.p)
    assert math.isnan(statistics.paired([1.0], [2.0]).p) and math.isnan(statistics.paired([1, math.nan], [2, 3]).p)


def test_a_paired_difference_is_scipys_t_test():
    a = RNG.normal(size=6)
    b = a + RNG.normal(0.3, 0.2, size=6)
    found, want = statistics.paired(a, b), stats.ttest_rel(a, b)
    assert found.p == pytest.approx(want.pvalue, abs=1e-12)
    ends = want.confidence_interval(0.95)
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((ends.low, ends.high), abs=1e-12)


@pytest.mark.parametrize("count", [1, 2, 9])
def test_the_correction_is_statsmodels_holm(count):
    p = RNG.uniform(size=count) ** 3
    for values in (p, 1 - p / 2):  # the latter's products exceed 1
        assert statistics.holm(list(values)) == pytest.approx(list(multipletests(values, method="holm")[1]), abs=1e-14)


def test_what_was_not_tested_does_not_count_in_the_correction():
    found = statistics.holm([0.01, math.nan, 0.04, 0.03])
    assert found[0] == pytest.approx(0.03) and found[2:] == pytest.approx([0.06, 0.06]) and math.isnan(found[1])


def made_up():
    """Three algorithms, three seeds: b = a − 0.1 but for some noise, c diverged once when tuned."""
    rows = []
    for name, base, noise in (("a", 0.8, (0, 0, 0)), ("b", 0.7, (0.01, -0.01, 0.0)), ("c", 0.5, (0, 0, 0))):
        for configuration, lift, val in (("default", -0.2, 0.3), ("top 1", -0.05, 0.6), ("top 2", 0.0, 0.65)):
            for seed, jitter in enumerate((0.0, 0.02, 0.04)):
                test = base + lift + jitter + noise[seed]
                diverged = (name, configuration, seed) == ("c", "top 2", 1)
                row = {"algorithm": name, "configuration": configuration, "seed": seed, "trial": "t", "reason": ""}
                row |= {"score": 0.4 if configuration == "default" else 0.9, "val_acc": val}
                row |= {"test_acc": math.nan if diverged else test, "test_acc_std": 0.1, "test_acc_worst10": 0.4}
                row |= {"comm_mb": 5.0, "rounds": 10, "rounds_to_95": 4, "mb_to_95": 2.0, "mb_per_round": 0.5}
                row |= {"seconds": 3.0, "config/lr": 0.1 if configuration == "top 2" else 0.2, "config/lam": math.nan}
                rows.append(row)
    frame = pd.DataFrame(rows)
    return frame.assign(chosen=fresh_seeds.is_tuned(frame))


SPENT = {n: {"trials": 4, "rounds": 40, "mb": 20.0, "seconds": 9.0} for n in "abc"}


def test_the_chosen_configuration_is_that_of_the_highest_validation_mean():
    frame = made_up()
    assert set(frame.loc[frame["chosen"], "configuration"]) == {"top 2"}
    frame["test_acc"] = frame["test_acc"].sample(frac=1, random_state=0).to_numpy()  # test figures decide nothing
    assert fresh_seeds.is_tuned(frame).equals(frame["chosen"])
    frame.loc[(frame["configuration"] == "top 2") & (frame["seed"] == 0), "val_acc"] = math.nan  # it diverged there
    assert set(frame.loc[fresh_seeds.is_tuned(frame), "configuration"]) == {"top 1"}


def test_where_every_candidate_diverged_the_search_s_best_stays_and_says_so():
    frame = made_up()
    lost = (frame["algorithm"] == "c") & (frame["configuration"] != "default") & (frame["seed"] == 1)
    frame.loc[lost, ["val_acc", "test_acc"]] = math.nan
    frame["chosen"] = fresh_seeds.is_tuned(frame)
    assert set(frame.loc[frame["chosen"] & (frame["algorithm"] == "c"), "configuration"]) == {"top 1"}
    shown = comparison_text.shown(comparison_tables.table(frame, SPENT, {})).set_index("algorithm")
    assert shown.loc["c", "tuned %"] == "diverged in 1 of 3" and list(shown.index)[-1] == "c"
    pairs = comparison_text.shown_pairs(comparison_tables.pairs(frame))
    assert pairs["pair"].tolist() == ["a − b", "a − c", "b − c"]
    assert "verdict" not in pairs, "one search each: nothing is known of another"


def test_the_table_of_made_up_figures():
    table = comparison_tables.table(made_up(), SPENT, {"a": "81.00"}).set_index("algorithm")
    assert list(table.index) == ["a", "b", "c"]
    a = table.loc["a"]
    half = 4.302652729749464 * 0.02 / math.sqrt(3)
    assert (a["default"], a["tuned"], a["gain"]) == pytest.approx((0.62, 0.82, 0.2), abs=1e-12)
    assert (a["default_half"], a["tuned_half"]) == pytest.approx((half, half), abs=1e-12) and math.isnan(a["gain_half"])
    assert a["selection_gap"] == pytest.approx(0.9 - 0.6)  # of the search's best, not of the one that was chosen
    assert a["default_gap"] == pytest.approx(0.4 - 0.3)
    assert a["worst10"] == pytest.approx(0.4) and a["search_rounds"] == 40
    assert (a["rounds_to_95"], a["mb_to_95"], a["mb_per_round"]) == (4, 2, 0.5)
    assert a["configuration"] == "lr = 0.1" and a["published"] == "81.00"
    assert math.isnan(table.loc["c", "tuned"])
    text = comparison_text.shown(table.reset_index())
    assert text["tuned %"].tolist() == ["82.00 ± 4.97", "72.00 ± 4.30", "diverged in 1 of 3"]
    assert text["gain"].tolist() == ["+20.00", "+20.00", "–"] and set(text["gap (default's)"]) == {"+30.00 (+10.00)"}
    assert "published %" in text
    assert "published %" not in comparison_text.shown(table.reset_index().assign(published=""))
    lacking = comparison_tables.table(made_up().assign(chosen=False), SPENT, {})
    assert set(comparison_text.shown(lacking)["tuned %"]) == {"none found"}


def test_pairs_of_made_up_figures():
    found = comparison_tables.pairs(made_up()).set_index(["algorithm", "other"])
    ab = found.loc["a", "b"]
    assert ab["difference"] == pytest.approx(0.1, abs=1e-12)
    assert ab["p"] == pytest.approx(stats.ttest_1samp([0.09, 0.11, 0.1], 0).pvalue, rel=1e-9)
    assert ab["p_holm"] == pytest.approx(ab["p"]) and math.isnan(found.loc["a", "c"]["p"])  # only one pair was tested


def test_the_expected_best_is_the_mean_over_all_subsets():
    values = np.random.default_rng(0).normal(size=9)
    for kept in (values, values[:1], np.round(values)):  # with ties too
        every = [np.mean([max(of) for of in itertools.combinations(kept, n)]) for n in range(1, len(kept) + 1)]
        np.testing.assert_allclose(statistics.expected_best(kept), every, rtol=0, atol=1e-13)
    n = np.arange(1, 1001)
    many = statistics.expected_best(n)  # of n of the numbers 1 … B the largest is n (B + 1) / (n + 1) in the mean
    np.testing.assert_allclose(many, n * 1001 / (n + 1), rtol=1e-11)
    assert statistics.expected_best([]).size == 0


def test_a_draw_without_a_value_is_the_worst_and_where_all_may_be_such_there_is_no_mean():
    found = statistics.expected_best([-math.inf, 0.5, -math.inf, 0.7])
    assert np.isnan(found[:2]).all()
    np.testing.assert_allclose(found[2:], [(0.7 * 3 + 0.5) / 4, 0.7], atol=1e-15)


def test_names_are_no_markup_in_markdown():
    frame = pd.DataFrame({"a": ["own|net", "<b>", "*all*", "1 < 2", "two\nlines"]})
    cells = [row.removeprefix("| ").removesuffix(" |") for row in comparison_text.markdown(frame).splitlines()[2:]]
    assert cells == [r"own\|net", r"\<b>", r"\*all\*", "1 < 2", "two lines"]


def test_tables_as_markdown_and_latex():
    frame = pd.DataFrame({"a_b": ["1 | 2", "50 % & more"], "c": ["3 ± 4", "−1"]})
    rows = comparison_text.markdown(frame).splitlines()
    assert rows == ["| a_b | c |", "| --- | --- |", "| 1 \\| 2 | 3 ± 4 |", "| 50 % & more | −1 |"]
    lines = comparison_text.latex("figures", frame, "tab:figures").splitlines()
    head = lines.index(r"a\_b & c \\")
    assert lines[head + 2 : head + 4] == [r"1 | 2 & 3 $\pm$ 4 \\", r"50 \% \& more & $-$1 \\"]


def test_figures_are_written_with_a_true_minus_and_an_unsigned_half():
    assert number(-0.5, ".1f") == "−0.5" and number(math.nan, ".1f") == "–"
    assert [number(v, ".4f") for v in (3.2e-5, -3.2e-5, 1e-4, 0.0, 1e-17)] == [
        "3.2e−05",
        "−3.2e−05",
        "0.0001",
        "0.0000",
        "0.0000",
    ]
    assert interval(-1.0, 0.25, "+.2f") == "−1.00 ± 0.25" and interval(1.0, 0.25, "+.2f") == "+1.00 ± 0.25"
    assert interval(0.99, 0.025, ".4f", within=(0, 1)) == "0.9900 ± 0.0250 (≤ 1)"  # it ends there
    assert interval(np.float64(2.0), np.float64(2.5), ".2f", within=(0, 100)) == "2.00 ± 2.50 (≥ 0)"
    assert interval(0.5, 0.6, ".1f", within=(0, 1)) == "0.5 ± 0.6 (≥ 0, ≤ 1)"
    assert interval(0.75, 0.25, ".2f", within=(0, 1)) == "0.75 ± 0.25" and interval(1.0, math.nan, ".0f") == "1"
    assert interval(1234.5, 2.0, ".4g", ".1g") == "1234 ± 2" and interval(0.5, math.nan, ".2f") == "0.50"


def of_pairs(y: np.ndarray) -> list[np.ndarray]:
    """Differences [K] of every two of A algorithms.  y: [A, K]."""
    return [a - b for a, b in itertools.combinations(y, 2)]


def test_a_difference_alone_keeps_its_own_variance() -> None:
    d = RNG.normal(1, 2, 5)
    (spread,) = statistics.moderated([d])
    assert (spread.variance, spread.freedom) == (pytest.approx(d.var(ddof=1), rel=1e-14), 4)
    assert statistics.paired_by(d, spread) == pytest.approx(statistics.paired(d, 0 * d), rel=1e-12)
    for claim in (statistics.beyond, statistics.inside):
        assert claim(d, 0.5, spread) == pytest.approx(claim(d, 0.5), rel=1e-12)


def test_a_claim_that_the_data_contradict_has_p_1() -> None:
    d = np.array([-0.1, 0.0, 0.1])
    assert statistics.beyond(d, 5.0) == 1.0 and statistics.beyond(d, 5.0, statistics.moderated([d])[0]) == 1.0


def test_variances_that_differ_by_chance_are_pooled_and_others_shrunk() -> None:
    """Of sets of their own, so that what they are drawn from is known: 6 degrees of freedom, scale 4."""
    sets = np.random.default_rng(1).normal(size=(20_000, 4))
    alike = statistics.moderated(list(2 * sets))
    assert np.std([s.variance for s in alike]) < 0.05 and np.mean([s.variance for s in alike]) == pytest.approx(
        4, rel=0.02
    )
    barely = math.sqrt(2 * (1e-14 + float(special.polygamma(1, 1.5))))  # two logarithms so far apart differ by chance
    assert math.isinf(statistics._common_variance(np.exp([0.0, barely]), 3)[0])
    shifted = statistics.moderated([sets[0], sets[0] + 1, sets[0] - 2])
    assert [s.variance for s in shifted] == pytest.approx([sets[0].var(ddof=1)] * 3, rel=1e-12)
    variances = 4 * 6 / np.random.default_rng(2).chisquare(6, len(sets))
    drawn = sets * np.sqrt(variances)[:, None]
    prior, common = statistics._common_variance(drawn.var(1, ddof=1), 3)
    assert (prior, common) == (pytest.approx(6, rel=0.1), pytest.approx(4, rel=0.05))
    found = statistics.moderated(list(drawn))
    assert found[7].variance == pytest.approx((prior * common + 3 * drawn[7].var(ddof=1)) / (prior + 3), rel=1e-12)
    assert found[7].freedom == pytest.approx(prior + 3, rel=1e-12)
    t = drawn.mean(1) / np.sqrt([s.variance / 4 for s in found])
    assert stats.kstest(t, stats.t(found[7].freedom).cdf).pvalue > 0.01


def test_the_freedom_is_at_most_that_of_all_values() -> None:
    y = np.random.default_rng(3).normal(size=(5, 3))
    assert all(s.freedom <= 4 * 2 for s in statistics.moderated(of_pairs(y)))


def test_what_cannot_be_tested_stays_so_and_tells_nothing_of_others() -> None:
    a, b = np.array([0.1, 0.3, 0.2]), np.array([0.2, 0.1, 0.5])
    same, lost = np.ones(3), np.array([0.1, math.nan, 0.2])
    alone, among = statistics.moderated([a, b]), statistics.moderated([same, a, lost, b])
    assert [among[1].variance, among[3].variance] == [s.variance for s in alone] and among[0] is among[2] is None
    assert math.isnan(statistics.paired_by(same, None).p) and math.isnan(statistics.paired_by(lost, None).mean)
    assert statistics.moderated([same, lost]) == [None, None] and statistics.moderated([]) == []


@pytest.mark.parametrize("algorithms", [4, 10, 30])
def test_algorithms_whose_searches_differ_unequally_are_called_different_as_often_as_said(algorithms: int) -> None:
    """Three searches each, with the standard deviations of six tables, in points: 5 % false alarms, at most 7 %.

    And a difference of two points is found much oftener than by a variance of its own, after correction for all pairs.
    """
    stream, alarms, found = np.random.default_rng(algorithms), [], {"own": [], "shrunk": []}
    measured = np.array([0.71, 0.50, 0.42, 0.43, 0.33, 0.65])
    for _ in range(1200 // algorithms):
        y = stream.normal(size=(algorithms, 3)) * stream.choice(measured, algorithms)[:, None]
        d = of_pairs(y)
        spreads = statistics.moderated(d)
        p = np.array([statistics.paired_by(x, s).p for x, s in zip(d, spreads, strict=True)])
        alarms.append((p < 0.05).mean())
        some = list(zip(d, spreads, strict=True))[:: algorithms // 4]  # of 435 pairs every seventh: they take longest
        larger = [(statistics.beyond(x + 2, 0.5, s), statistics.beyond(x + 2, 0.5)) for x, s in some]
        for name, of in zip(("shrunk", "own"), zip(*larger, strict=True), strict=True):
            found[name].append((np.array(of) * len(d) < 0.05).mean())
    assert 0.035 < np.mean(alarms) < 0.07
    assert np.mean(found["shrunk"]) > 3 * np.mean(found["own"])
