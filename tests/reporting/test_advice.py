"""What to try next: each rule on searches that are made so that the right advice is known."""

from __future__ import annotations

import dataclasses
import itertools
import math
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import special

from fedtune.analysis.plots import RESAMPLES, Importance
from fedtune.commands import resume, search
from fedtune.core.about import FORMAT
from fedtune.core.hyper import Hyperparameter
from fedtune.core.objectives import ACCURACY
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.reporting import advice
from fedtune.reporting.findings import Findings
from fedtune.runs.files import write_json
from fedtune.runs.provenance import of_workload
from fedtune.tuning import ranges, space_types
from fedtune.tuning.checked import FinalCheck

SPACE = {"lam": "0.1..10 log", "lr": "0.001..0.3 log", "momentum": "0..0.95"}
INSIDE = {"lam": 1.0, "lr": 0.02, "momentum": 0.5}
COMMAND = ["python", "-m", "fedtune.search", "--algo", "fedproto", "--trials", "8", "--name", "mine"]


def made(
    values: list[float],
    differences: list[float] | None = None,
    config: dict[str, Any] | None = None,
    state: str = "finished",
    **more: Any,
) -> Findings:
    """A search whose finished trials have these scores, and whose check has these differences of best and default."""
    experiment = Experiment(algorithm="fedproto", scenario=Scenario(clients=5, rounds=6))
    record = of_workload(experiment) | {"command": COMMAND, "space": SPACE, "trials": len(values), "state": state}
    record |= {"searcher": "tpe", "scheduler": "asha"}
    record["declared"] = {name: experiment.hyperparameters()[name].to_record() for name in SPACE}
    config = INSIDE | (config or {})
    trials = pd.DataFrame({"trial": [f"t{i}" for i in range(len(values))], "last_val_acc": values})
    trials = trials.assign(status="finished", rounds=6, **{f"config/{n}": v for n, v in config.items()})
    rows = [
        {"configuration": name, "seed": i, "test_acc": 0.5 + d * (name == "best"), "reason": ""}
        for i, d in enumerate(differences or [])
        for name in ("best", "default")
    ]
    return Findings(
        run=Path("run"),
        record=record | more,
        trials=trials,
        rounds=pd.DataFrame(),
        state=state,
        best=trials.loc[trials["last_val_acc"].idxmax()] if values else None,
        config=config,
        yaml="",
        scenario="digits-w4",
        default={},
        check=FinalCheck(pd.DataFrame(rows), ACCURACY) if rows else None,
    )


def todo(found: list[advice.Advice]) -> list[str]:
    return [a.todo for a in found]


def takes(command: str) -> Any:
    """The arguments of a search's command, as fedtune reads them."""
    words = shlex.split(command)
    assert words[:2] == ["fedtune", "search"] and "--name" not in words, "the old folder is there by now"
    return search.parser().parse_args(words[2:])


# ranges ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "wider"),
    [
        ({"lam": 9.9}, ["lam=0.1..50 log"]),  # FedProto declares up to 50
        ({"lr": 0.0011}, ["lr=0.0001..0.3 log"]),
        ({"lr": 0.29}, ["lr=0.001..1 log"]),
        ({"lam": 0.1, "momentum": 0.94}, ["lam=0.01..10 log", "momentum=0..0.99"]),
    ],
)
def test_a_best_at_the_end_of_a_range_asks_for_a_wider_one(config, wider):
    (found,) = advice.wider_ranges(made([0.5, 0.6], config=config))
    assert found.todo.startswith("Widen ") and "may be better beyond" in found.why
    assert takes(found.command).vary == wider


def test_a_best_inside_its_ranges_asks_for_nothing():
    assert advice.wider_ranges(made([0.5, 0.6])) == []
    assert advice.wider_ranges(made([0.5, 0.6], config={"momentum": 0.0})) == [], "natural limit"


def test_ranges_that_were_given_stay_given():
    given = ["momentum=0..0.95", "lr=0.001..0.3 log"]
    f = made([0.5, 0.6], config={"lr": 0.29}, options={"vary": given})
    f.record["command"] = [*COMMAND, *(word for text in given for word in ("--vary", text))]
    (found,) = advice.wider_ranges(f)
    assert takes(found.command).vary == ["momentum=0..0.95", "lr=0.001..1 log"]


def test_a_range_that_is_all_that_is_declared_is_said_and_not_widened():
    high = Experiment(algorithm="fedproto", scenario=Scenario()).hyperparameters()["lam"].high
    f = made([0.5, 0.6], config={"lam": high}, space=SPACE | {"lam": f"1..{high!r} log"})
    (found,) = advice.wider_ranges(f)
    assert found.todo == "Look beyond the declared range" and not found.command
    assert advice.wider_ranges(f, ["lam"]) == [], "it is to be fixed"


@pytest.mark.parametrize("name", ["lr", "batch", "momentum", "local_epochs"])
def test_a_range_in_words_is_read_as_it_was_written(name):
    hp: Hyperparameter = Experiment(algorithm="fedproto", scenario=Scenario()).hyperparameters()[name]
    domain = hp.domain()
    read = ranges.of_text(space_types.domain_text(domain), hp)
    assert read and read.text() == space_types.domain_text(domain)
    assert ranges.of_text("a | b", hp) is None and ranges.of_text("1..9 in steps of 2", hp) is None


# more seeds or more trials --------------------------------------------------------------------------------------------

SPREAD = [0.01, 0.02, 0.03, 0.02, 0.02]  # of best − default: standard deviation 0.01/√2
HALF = special.stdtrit(4, 0.975) * 0.01 / math.sqrt(2)  # 0.0196: what chance can make of two trials on one seed


NEAR = [0.900, 0.890, 0.889, 0.888, 0.887, 0.886]  # 0.010 apart, and nothing to gain by more trials
FAR = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2]


def test_a_runner_up_within_chance_asks_for_seeds():
    (found,) = advice.seeds_or_trials(made(NEAR, SPREAD))
    assert found.todo == f"Judge each trial on {math.ceil((HALF / 0.01) ** 2)} seeds" == "Judge each trial on 4 seeds"
    assert takes(found.command).seeds_per_trial == 4 and takes(found.command).trials == 8
    assert "trial t1" in found.why and "as much as 1.96 points can be chance on 1 seed" in found.why


def test_where_further_seeds_decided_their_means_tell_how_far_the_runner_up_is():
    rows = [("t0", 0.87, ""), ("t1", 0.88, ""), ("t2", math.nan, "it diverged (seed 1)")]
    choice = [{"trial": t, "own": v, "val_acc": m, "reason": r} for v, (t, m, r) in zip(NEAR, rows, strict=False)]
    (found,) = advice.seeds_or_trials(made(NEAR, SPREAD, choice=choice, choose_seeds=2))
    assert "The runner-up (trial t0) is 1.00 points behind" in found.why
    assert f"as much as {100 * HALF / math.sqrt(2):.2f} points can be chance on 2 seeds" in found.why
    assert found.todo == "Choose among the best on 4 seeds" and takes(found.command).choose_seeds == 4
    choice[0] |= {"val_acc": math.nan, "reason": "it diverged (seed 1)"}
    (found,) = advice.seeds_or_trials(made(NEAR, SPREAD, choice=choice, choose_seeds=2))
    assert "The runner-up (trial t3)" in found.why, "one stood: on their own seeds the next is t3"


@pytest.mark.parametrize(
    ("values", "differences", "more", "todo"),
    [
        (NEAR, SPREAD, {"seeds_per_trial": 4}, "Neither more seeds nor"),  # the same gap is more than chance
        (FAR, SPREAD, {"whole": True}, "Neither more seeds nor"),  # a whole grid has no more trials
        ([0.9, 0.8999, 0.89], SPREAD, {}, "Take either of the best two"),  # no number of seeds tells
        ([0.9, 0.8], None, {}, "Check on fresh seeds"),  # chance is unknown
        ([0.9, 0.8], [0.01], {}, "Check on fresh seeds"),  # one seed has no spread
        ([0.9, 0.8], [0.01, 0.01, 0.01], {}, "More seeds or more trials"),
        ([0.9, 0.8], [0.01, math.nan, 0.02], {}, "More seeds or more trials"),
    ],
)
def test_what_more_is_advised(values, differences, more, todo):
    (found,) = advice.seeds_or_trials(made(values, differences, **more))
    assert found.todo.startswith(todo)
    assert bool(found.command) is (todo == "Check on fresh seeds")
    assert ("cannot be told" in found.why) is (differences != SPREAD)


def test_a_best_far_above_the_others_asks_for_trials():
    (found,) = advice.seeds_or_trials(made(FAR, SPREAD))
    assert found.todo == "Give more trials" and found.command == "fedtune resume run --trials +24"
    assert resume.parser().parse_args(shlex.split(found.command)[2:]).trials == 24
    for lacks, trials in (({"searcher": "grid"}, 2 * len(FAR)), ({"scheduler": "pbt"}, 32)):  # resume would refuse
        (found,) = advice.seeds_or_trials(made(FAR, SPREAD, **lacks))
        assert found.todo == "Give more trials" and takes(found.command).trials == trials


def test_where_all_is_at_chance_or_the_best_diverges_a_smaller_learning_rate_is_advised():
    bad, fixed = [0.12, 0.1, math.nan], {"lam": "0.1..10 log"}
    f = made(bad, [0.01, math.nan, 0.02])
    f.trials["status"] = ["finished", "finished", "diverged"]
    (found,) = advice.of_search(f, None)
    assert found.todo == "Lower the learning rate, or its range" and not found.command
    said = "1 of 3 trials diverged; on fresh seeds the best diverged in 1 of 3 runs."
    assert f"No trial is clearly better than chance, 10 %; {said}" in found.why
    typed = {"space": fixed, "declared": {}, "command": [*COMMAND, "--set", "lr=1", "--set", "momentum=0.9"]}
    (found,) = advice.of_search(dataclasses.replace(f, record=f.record | typed, default={"lr": 1.0}), None)
    assert takes(found.command).set == ["momentum=0.9", "lr=0.1"] and found.todo == "Lower the learning rate"
    (found,) = advice.of_search(dataclasses.replace(f, best=None, check=None), None)
    assert "on fresh seeds" not in found.why and found.todo.startswith("Lower the learning rate")
    (found,) = advice.of_search(made(bad, SPREAD[:2]), None)  # nothing diverged: it may as well be too small
    assert found.todo == "Try other learning rates, or more rounds" and not found.command
    (found,) = advice.smaller_steps(made([0.9], [math.nan]))
    assert "chance" not in found.why and advice.smaller_steps(made([0.9, 0.1], SPREAD)) == []


@pytest.mark.parametrize("state", ["interrupted", "abandoned", "failed"])
def test_a_search_that_broke_off_goes_on_first(state, tmp_path):
    for best in ([0.9, 0.8], []):
        (found,) = advice.of_search(made(best, state=state), None)
        assert found.command == "fedtune resume run" and not found.why.count("trials")
    assert advice.of_search(made([0.9, 0.8], state=state, extends="x"), None) == [], "resume refuses it"
    (tmp_path / "compare.json").write_text("{}")
    inside = dataclasses.replace(made([0.9, 0.8], state=state, extends="x"), run=tmp_path / "fedproto+widened")
    (found,) = advice.of_search(inside, None)
    assert found.command == f"fedtune resume {tmp_path}", "the comparison goes on with its searches"
    assert advice.seeds_or_trials(dataclasses.replace(inside, state="finished")) == [], "it checks them, too"


def test_an_extension_is_searched_again_by_the_first_searchs_command(tmp_path):
    for name, record in (
        ("first", {"command": COMMAND}),
        ("second", {"command": ["fedtune", "resume", "first", "--trials", "+8"], "extends": "first"}),
    ):
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "run.json", {"format": FORMAT} | record)
    longer = dataclasses.replace(made([0.5, 0.6], config={"lam": 9.9}, extends="second"), run=tmp_path / "second")
    assert takes(advice.wider_ranges(longer)[0].command).vary == ["lam=0.1..50 log"]
    (tmp_path / "first" / "run.json").unlink()
    assert advice.wider_ranges(longer)[0].command == ""
    (tmp_path / "first").rmdir()
    assert advice.wider_ranges(longer)[0].command == "" and advice.wider_ranges(longer)[0].todo.startswith("Widen lam")


def test_the_last_doubling_is_what_drawing_halves_would_give():
    values = [0.3, 0.9, 0.1, 0.7, 0.55, 0.2]
    halves = [max(some) for some in itertools.combinations(values, 3)]
    assert advice.last_doubling(values) == pytest.approx(0.9 - np.mean(halves), abs=1e-15)
    assert advice.last_doubling([0.5] * 7) == pytest.approx(0, abs=1e-15)
    n, top = 40, np.arange(40) / 40  # the best of m of n evenly spaced values is m (n + 1) / (m + 1) of n steps up
    assert advice.last_doubling(top) == pytest.approx((n - 20 * (n + 1) / 21) / n, abs=1e-12)


# importance -----------------------------------------------------------------------------------------------------------


def found_importance(first: int) -> Importance:
    ranges = {"lr": (0.5, 0.7), "lam": (0.2, 0.4), "momentum": (0.0, 0.03)}
    return Importance({"lr": 0.6, "lam": 0.3, "momentum": 0.01}, first, 30, ranges)


def test_what_surely_mattered_and_what_surely_did_not():
    most, fix = advice.what_mattered(made([0.9, 0.8]), found_importance(RESAMPLES))
    assert most.todo == "Search lr most closely" and "lr 60 % (50 to 70 %); lam 30 % (20 to 40 %)" in most.why
    assert fix.todo.startswith("Fix momentum:") and takes(fix.command).set == ["momentum=0.5"]


def test_each_hyperparameter_gets_one_decision():
    """What surely matters little is fixed, wherever in its range the best lies; it is not widened, too."""
    at_ends = {"lam": 9.9, "lr": 0.29, "momentum": 0.94}
    found = advice.of_search(made([0.9, 0.8, 0.7], SPREAD, config=at_ends), found_importance(RESAMPLES))
    widen, *_, most, fix = todo(found)
    assert widen.startswith("Widen lam to ") and " and lr to " in widen
    assert (most, fix.partition(":")[0]) == ("Search lr most closely", "Fix momentum")
    assert takes(found[-1].command).set == ["momentum=0.94"] and "momentum" not in found[0].command


@pytest.mark.parametrize(("first", "sure"), [(RESAMPLES, True), (19, True), (18, False)])
def test_what_mattered_most_is_told_where_19_of_20_resamples_agree(first: int, sure: bool):
    most = advice.what_mattered(made([0.9, 0.8]), found_importance(first))[0].todo
    assert most == ("Search lr most closely" if sure else "Which hyperparameter matters most cannot be told")


def test_what_cannot_be_told_is_said():
    assert todo(advice.what_mattered(made([0.9, 0.8]), None)) == ["Importance cannot be told"]
    assert advice.of_search(made([0.9, 0.8], SPREAD, state="running"), None) == []
    assert advice.of_search(made([], state="nothing found"), None) == []


# comparisons ----------------------------------------------------------------------------------------------------------


def pairs(*rows: tuple[str, str, float, float, str]) -> pd.DataFrame:
    """Pairs: their difference, the half-width of its interval and the verdict."""
    return pd.DataFrame(rows, columns=["algorithm", "other", "difference", "half", "verdict"])


COMPARED = {
    "command": ["python", "-m", "fedtune", "compare", "--algos", "a,b,c", "--searches", "3", "--seed=7"],
    "searches": 3,
    "seed": 7,
}


def test_a_comparison_of_one_search_each_asks_for_three():
    (found,) = advice.more_searches(
        {"command": ["fedtune", "compare", "--algos", "a,b"]}, pairs(("a", "b", 0.1, 0.2, ""))
    )
    assert found.todo == "Search each algorithm three times"
    assert found.command == "fedtune compare --algos a,b --searches 3"


def test_a_comparison_that_cannot_tell_asks_for_twice_the_searches_from_other_seeds():
    untold = pairs(("a", "b", 0.025, 0.03, "cannot be told"), ("a", "c", 0.09, 0.1, "cannot be told"))
    (found,) = advice.more_searches(COMPARED | {"margin": 0.005}, untold)
    assert found.todo == "Search each algorithm 6 times, from other seeds: that may tell a and b apart"
    assert found.command == "fedtune compare --algos a,b,c --searches 6 --seed 100007"
    (found,) = advice.more_searches(COMPARED | {"searches": 12}, untold)
    assert found.todo == "Leave a and b undecided" and not found.command
    clear = pairs(("a", "b", 0.05, 0.01, "larger"), ("b", "c", 0.001, 0.2, "cannot be told"))
    assert advice.more_searches(COMPARED, clear) == []


def test_a_comparison_widens_for_all_alike():
    record = {"command": ["python", "-m", "fedtune", "compare", "--algos", "fedproto"]}
    at_end = made([0.5, 0.6], config={"lr": 0.29})
    (found,) = advice.wider_for_all(record, [at_end, made([0.5])])
    assert found.command.endswith("compare --algos fedproto --widen") and "has lr = 0.29 at the upper" in found.why
    assert advice.wider_for_all(record | {"widened": []}, [at_end]) == []
