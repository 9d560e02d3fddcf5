"""What the page of results says of GFPL's pseudo-features is what the kept tables hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
from support.results_page import contrasts, listed, measured, require, section, significant, span, told

DOSES, HIGHER = (1, 10, 50), (10, 50)
OWN, ALL, FOREIGN = "test_acc", "test_acc_all", "test_acc_foreign"
ABOVE, BELOW, NO_EFFECT, UNDECIDED = "above", "below", "no effect above 0.5 points", "undecided here"
GFPL, PLAIN, NO_DUAL, STEPS = (
    "GFPL, dose {}",
    "GFPL w/o PFG",
    "GFPL w/o DCS, dose {}",
    "Local with equal head steps, dose {}",
)
SIX, EIGHT, FROZEN, SLOW = "w̄ = 6", "w̄ = 8", "frozen bodies", "bodies at a tenth"


def by_dose(table: pd.DataFrame) -> Callable[..., pd.DataFrame]:
    """One algorithm's contrasts with another in a setting, a row for each dose."""

    def found(one: str, other: str, where: str, metric: str = OWN, doses: Any = DOSES) -> pd.DataFrame:
        return pd.DataFrame([table.loc[one.format(d), other.format(d), where, metric] for d in doses])

    return found


def test_is_it_the_pseudo_features_or_the_steps() -> None:
    kept, asked = measured("gfpl-few"), contrasts("gfpl-few")
    of, own = by_dose(asked), kept["ours"]
    foreign = measured("gfpl-few", "foreign")["ours"].unstack()[[GFPL.format(d) for d in DOSES]].stack()
    printed = measured("gfpl-table2-fashion-mnist")["published"]["ŝ = 1"]

    def share(where: str) -> str:
        gained = own[where] - own[where]["Local"]
        of_steps = [gained[STEPS.format(d)] / gained[NO_DUAL.format(d)] for d in HIGHER]
        return listed(f"{100 * (1 - s):.0f}" for s in of_steps)

    def everywhere(one: str, other: str, doses: Any = DOSES) -> pd.Series:
        return pd.concat([of(one, other, where, doses=doses) for where in (SIX, EIGHT)])

    require(
        section("## Is it GFPL's pseudo-features, or the steps?"),
        [
            f"{kept['rounds'].iloc[0]} rounds, ten seeds",
            f"{significant(asked)} of {len(asked)} contrasts differ significantly from 0",
            f"The gain over GFPL without them, at doses 1, 10 and 50, is {told(of(GFPL, PLAIN, SIX))} points with six",
            f"With eight it is {told(of(GFPL, PLAIN, EIGHT))}.",
            f"The paper prints {printed['GFPL'] - printed[PLAIN]:+.2f} for this step of its ablation, on CIFAR10",
            f"At doses 10 and 50 they gain {told(of(NO_DUAL, STEPS, EIGHT, doses=HIGHER))} with eight classes",
            f"At doses 10 and 50 it is {share(EIGHT)} % with eight classes",
            f"With six classes it is {share(SIX)} %, which is not significant",
            f"The dual classifier gains {span(everywhere(GFPL, NO_DUAL)['difference'])} points at every dose",
            f"Without retraining it gains {span(everywhere(PLAIN, 'Local', [0])['difference'])} over Local",
            f"by {span(-everywhere(GFPL, 'FedProto')['difference'])} points.",
            f"On foreign classes GFPL has {span(foreign, '.2f')} %",
        ],
    )
    assert {*kept["seeds"]} == {10}
    assert {*everywhere(NO_DUAL, STEPS, [1])["verdict"]} == {NO_EFFECT}
    assert {*of(NO_DUAL, STEPS, SIX, doses=HIGHER)["verdict"]} == {NO_EFFECT, UNDECIDED}
    for pair, verdict in (((GFPL, PLAIN), ABOVE), ((GFPL, NO_DUAL), ABOVE), ((GFPL, "FedProto"), BELOW)):
        assert {*everywhere(*pair)["verdict"]} == {verdict}


def test_where_bodies_start_from_one_extractor() -> None:
    kept, asked = measured("gfpl-common"), contrasts("gfpl-common")
    of, own = by_dose(asked), kept["ours"]
    everywhere, foreign = (measured("gfpl-common", of)["ours"] for of in ("all_classes", "foreign"))

    def recognised(where: str) -> list[float]:
        return [foreign[where][GFPL.format(d)] for d in DOSES]

    def last(other: str, where: str, metric: str = ALL, sign: int = 1) -> str:
        return told(of(GFPL, other, where, metric, [50]), "+.1f" if sign > 0 and metric == ALL else ".1f", sign)

    best = max(own[FROZEN][GFPL.format(d)] for d in DOSES)
    against = asked[asked["verdict"] == BELOW]
    require(
        section("## Where bodies start from one extractor"),
        [
            f"There are {kept['rounds'].iloc[0]} rounds, ten seeds",
            f"{significant(asked)} of {len(asked)} contrasts differ significantly from 0, four of them against",
            f"classifies {listed(f'{x:.1f}' for x in recognised(FROZEN))} % of the rows",
            f"On all classes the gain is {told(of(NO_DUAL, STEPS, FROZEN, ALL), '+.1f')} points",
            f"of the accuracy on foreign classes remains: {listed(f'{x:.1f}' for x in recognised(SLOW))} %",
            f"up to {recognised(FROZEN)[-1]:.0f} % with a frozen common body, {recognised(SLOW)[-1]:.0f} % with one",
            f"pseudo-features cost {told(of(GFPL, PLAIN, FROZEN, doses=[1]), '.1f', -1)} points at dose 1",
            f"nowhere above Local ({best:.1f} at best, Local {own[FROZEN]['Local']:.1f})",
            f"at a tenth of the rate they gain {told(of(GFPL, PLAIN, SLOW), '.1f')} points",
            f"(without the dual classifier {told(of(NO_DUAL, STEPS, SLOW), '+.1f')})",
            f"by {span(of(GFPL, 'FedProto', FROZEN)['difference'], '.0f')} points with frozen bodies",
            f"and {span(of(GFPL, 'FedProto', SLOW)['difference'], '.0f')} at a tenth of the rate",
            f"foreign rows correctly ({foreign[SLOW]['FedProto']:.1f} %) than GFPL at any dose",
            f"GFPL at dose 50 ({everywhere[FROZEN][GFPL.format(50)]:.1f}) does not differ significantly from FedAvg",
            f"({last('FedAvg', FROZEN)}, p = {of(GFPL, 'FedAvg', FROZEN, ALL, [50])['p_holm'].item():.2f} corrected)",
            f"from FedPFT ({last('FedPFT', FROZEN)})",
            f"FedAvg is {last('FedAvg', SLOW, sign=-1)} and FedPFT {last('FedPFT', SLOW, sign=-1)} points above GFPL",
            f"On own classes GFPL is {last('FedAvg', SLOW, OWN)} above FedAvg there",
        ],
    )
    assert {*kept["seeds"]} == {10} and len(against) == 4 and {*asked["expected"]} == {"+"}
    assert all(round(foreign[FROZEN][STEPS.format(d)], 1) == 0 for d in DOSES)
    assert all(0.38 < slow / frozen < 0.52 for slow, frozen in zip(recognised(SLOW), recognised(FROZEN), strict=True))
    assert [*of(GFPL, PLAIN, FROZEN)["verdict"]] == [BELOW, UNDECIDED, UNDECIDED]
    assert best < own[FROZEN]["Local"] and max(recognised(SLOW)) < foreign[SLOW]["FedProto"]
    assert own[FROZEN][GFPL.format(1)] == own[FROZEN][NO_DUAL.format(1)]
    assert of(PLAIN, "Local", SLOW, doses=[0])["verdict"].item() == NO_EFFECT
    undecided = [of(GFPL, other, FROZEN, ALL, [50])["verdict"].item() for other in ("FedAvg", "FedPFT")]
    assert undecided == [UNDECIDED] * 2
