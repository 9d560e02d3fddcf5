"""Privacy as a scenario has it, and ε as users see it: rows, constraints, targets, the end of a search."""

import json
import math
from types import SimpleNamespace

import pandas as pd
import pytest
from support.commands import refusal
from support.helpers import DIGITS

from fedtune.commands import privacy as command
from fedtune.commands import search
from fedtune.core.errors import UserError
from fedtune.core.objectives import Goal, constraints
from fedtune.engine.simulation import Simulation, train
from fedtune.experiment import partitioning
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.privacy import Privacy, beside_count, notes, spent
from fedtune.runs.files import RunFiles
from fedtune.runs.trial_states import UNTRAINED
from fedtune.studies import ledger
from fedtune.tuning import plan, space_facts
from fedtune.tuning.options.search import SearchOptions

PRIVATE = DIGITS.override(
    privacy="client", clients=100, participation=0.1, rounds=60, privacy_delta=1e-3, update_clip=1.0
)
WITH_NOISE = PRIVATE.override(update_noise=1.0)


def test_what_a_scenario_asks_for() -> None:
    assert Privacy.of(DIGITS) is None
    p = Privacy.of(WITH_NOISE)
    assert (p.sample_rate, p.expected, p.cohort, p.noise, p.update_noise, p.count_noise) == (0.1, 10, 10, 1, 1, 0)
    assert p.epsilon(60) == pytest.approx(3.6404, abs=5e-5) and not p.as_if
    assert Privacy.of(WITH_NOISE.override(privacy_delta=0)).delta == 100**-1.1
    adapting = Privacy.of(WITH_NOISE.override(clip_quantile=0.5, update_clip=0.0))
    assert (adapting.clip, adapting.count_noise) == (0.1, 5.0)
    assert adapting.update_noise == (1 - 1 / 100) ** -0.5 and adapting.epsilon(60) == p.epsilon(60)
    as_if = Privacy.of(WITH_NOISE.override(population=1_000_000, cohort=1000, privacy_delta=0))
    assert (as_if.sample_rate, as_if.cohort, as_if.expected, as_if.delta) == (0.001, 1000, 10, 1e6**-1.1)
    assert as_if.as_if == "as if 1,000 of 1,000,000 clients took part"
    target = Privacy.of(PRIVATE.override(epsilon=8.0))
    assert target.noise == 0.6894 and 7.99 < target.epsilon(60) <= 8


def test_count_and_sum_together_cost_what_the_sum_alone_costs() -> None:
    """Two Gaussian releases of sensitivities 1 and ½ are one with z⁻² = z_Δ⁻² + (2σ_b)⁻²."""
    assert beside_count(2.0, 1.5) ** -2 + 3.0**-2 == pytest.approx(2.0**-2, rel=1e-12)
    with pytest.raises(UserError, match="must be above half of update_noise, 2, but got 1"):
        beside_count(2.0, 1.0)


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"population": 1000}, "population and cohort go together, but got 1000 and 0"),
        ({"cohort": 1000}, "population and cohort go together, but got 0 and 1000"),
        ({"population": 50, "cohort": 10}, "must be at least the 100 clients and the cohort of 10, but got 50"),
        ({"population": 500, "cohort": 501}, "must be at least the 100 clients and the cohort of 501, but got 500"),
        ({"update_clip": 0.0}, "privacy needs a bound on updates, but update_clip is 0; give --set update_clip=1"),
        ({"update_noise": 1.0, "epsilon": 8.0}, "so only one of them can be given, but got 8 and 1; leave one out"),
        ({"clients": 1}, "privacy of clients needs two or more, but got 1"),
    ],
)
def test_what_contradicts_itself_is_refused(fields: dict, rule: str) -> None:
    with pytest.raises(UserError, match=rule):
        Privacy.of(PRIVATE.override(**fields))


def test_epsilon_is_spent_round_by_round_and_what_is_known_before_is_what_rows_end_with(tmp_path) -> None:
    private = DIGITS.override(
        clients=4, rounds=2, privacy="client", update_noise=2.0, privacy_delta=1e-3, update_clip=1.0
    )
    experiment = Experiment(algorithm="fedavg", scenario=private, pinned={"averaging": "clients"})
    rows = [row["epsilon"] for row in train(experiment, {})]
    assert 0 < rows[0] < rows[1] and experiment.known({}) == {"epsilon": rows[1]}
    data = partitioning.make(private, 0)
    begun, resumed = (Simulation(experiment, {}, data) for _ in range(2))
    begun.step()
    begun.save(tmp_path)
    resumed.load(tmp_path)
    assert resumed.step()["epsilon"] == rows[1]
    assert Experiment(algorithm="local", scenario=private).known({}) == {"epsilon": 0.0}
    assert not Experiment(algorithm="fedavg", scenario=DIGITS).known({})
    assert spent("mean", private.override(update_noise=0.0), 1) == {"epsilon": math.inf}
    assert not experiment.traits.depends_on_horizon and "epsilon" in experiment.measures.selectable
    target = Experiment(algorithm="fedavg", scenario=private.override(update_noise=0.0, epsilon=9.0))
    assert target.traits.depends_on_horizon and target.known({})["epsilon"] <= 9


def test_a_known_value_is_not_projected() -> None:
    goal = Goal(constraints=constraints("epsilon<=8,comm_mb<=1"))
    assert goal.unkept({"epsilon": 12.0}) == [0.5, 0.0] and goal.unkept({"epsilon": 8.0}) == goal.unkept({}) == []


def test_few_clients_are_told_in_a_line() -> None:
    (line,) = notes("mean", WITH_NOISE)
    assert line.startswith("100 clients are few for privacy: ") and "(0.1 of the bound at update_noise 1)" in line
    assert not notes("nothing", WITH_NOISE) and not notes("mean", DIGITS)
    assert not notes("mean", WITH_NOISE.override(population=10**6, cohort=1000, privacy_delta=1e-7))
    adapting = WITH_NOISE.override(clip_quantile=0.5)
    large, _ = notes("mean", WITH_NOISE.override(privacy_delta=0.011))
    assert large.startswith("δ = 0.011 is large") and large.endswith("below 0.01: --set privacy_delta=1e-03")
    wanders, _ = notes("mean", adapting)
    assert "will wander: with 10 clients a round the share of updates within it is known to ± 0.5; a fixed" in wanders
    by_rate = [Experiment(algorithm="fedavg", scenario=s).idle({}).get("clip_rate") for s in (WITH_NOISE, adapting)]
    assert by_rate == ["clip_quantile is 0, so the bound is fixed", None]
    assert not notes("mean", adapting.override(population=10**6, cohort=1000, privacy_delta=1e-7))


OF_SEARCH = "--algo fedavg --scenario digits-w4 --clients 10 --participation 0.1 --rounds 60 "
CLIENT = OF_SEARCH + "--set privacy_delta=0.001 --privacy client "
DRAWN = CLIENT + "--trials-drawn geometric --choose-seeds 3 --vary update_noise "
WHOLE = "--trials-drawn poisson --searcher random --scheduler none "
REFUSED = {  # arguments of a search -> what its one line says
    OF_SEARCH + "--objective epsilon": "epsilon needs privacy, but got it as objective without; give --privacy client",
    OF_SEARCH + "--subject-to epsilon<=8": "epsilon needs privacy, but got it as metric of a constraint without; give",
    CLIENT + "--epsilon 8 --set update_noise=1": "so only one of them can be given, but got 8 and 1",
    CLIENT + "--epsilon 8 --vary update_noise": "--epsilon sets update_noise, so it cannot be searched",
    CLIENT + "--set update_noise=1 --subject-to epsilon<=1": "within reach, but epsilon is 3.64038 or more",
    CLIENT + "--vary update_noise=0.5..1 --subject-to epsilon<=2": "within reach, but epsilon is 3.64038 or more",
    CLIENT
    + "--epsilon 8 --vary update_noise --subject-to epsilon<=1": "so it cannot be searched, but the space has it",
    DRAWN: "one ε; it also needs --searcher random, --scheduler none, --choose-seeds 1, update_noise and participation",
    CLIENT
    + "--epsilon 8 --budget-unit mb --budget 9": "trials must have as many, but got --budget-unit mb; give --set",
    OF_SEARCH + WHOLE: "for independent, whole trials of one ε; it also needs --privacy client",
    CLIENT + WHOLE + "--time-budget 9": "it also needs no --time-budget",
    CLIENT + WHOLE + "--trials 1 --seed 2": "drew no trial, as it may; give another --seed, or more --trials",
    CLIENT + "--vary update_noise=0.5..1 --scheduler pbt": "but update_noise changes their shape, or their ε; fix it",
}


@pytest.mark.parametrize(("arguments", "rule"), REFUSED.items(), ids=range(len(REFUSED)))
def test_a_search_refuses_what_epsilon_cannot_be(arguments: str, rule: str, capsys, tmp_path) -> None:
    assert rule in refusal(search.main, f"{arguments} --storage-path {tmp_path}", capsys)


def planned(tmp_path, **more) -> plan.SearchPlan:
    fields = {"clients": 100, "participation": 0.1, "rounds": 60, "privacy": "client", "privacy_delta": 1e-3}
    set_fields = {"fields": fields, "set": {"update_noise": 2.0}} | more
    return plan.make(SearchOptions(algo="fedavg", scenario="digits-w4", storage_path=str(tmp_path), **set_fields))


def test_a_drawn_number_of_trials_gives_the_choice_an_epsilon(tmp_path, capsys) -> None:
    """The default configuration is not tried first: trials must be alike."""
    whole = {"searcher": "random", "scheduler": "none", "trials": 16, "trials_drawn": "geometric"}
    p, again = planned(tmp_path, **whole), planned(tmp_path, **whole)
    assert p.trials == again.trials and not p.points and f"note: {p.trials} trial" in capsys.readouterr().err
    p.files.make()
    p.files.write("running")
    row = {"trial": "a", "status": "finished", "rounds": 60, "reason": "", "config/lr": 0.1}
    trials = pd.DataFrame([row])
    lines = ledger.write(p, {}, trials.iloc[0], trials, checked=0)
    assert json.loads(p.files.privacy_file.read_text())["selected"] == pytest.approx(3.6229, abs=6e-4)
    assert "the choice cost ε = 3.623, by RDP: the number of trials was drawn (geometric, with mean 16)" in lines[2]


def test_what_some_configuration_keeps_is_searched(tmp_path) -> None:
    p = planned(tmp_path, set={}, vary=("update_noise=0.5..4",), subject_to="epsilon<=1")
    space_facts.require_keepable(p.space, p.workload, p.goal)  # 4 keeps it, and the default does not
    assert p.goal.unkept(p.workload.known({"update_noise": 0.5}))


def test_the_end_of_a_search_says_what_it_cost(tmp_path) -> None:
    """32 trials of 60 rounds compose to the reference; what was not trained costs nothing, what diverged one more."""
    p = planned(tmp_path)
    p.files.make()
    config = {"config/lr": 0.1, "config/momentum": 0.5, "config/local_epochs": 1}
    full = {"status": "finished", "rounds": 60, "reason": "", **config}
    others = [
        full | {"trial": "x", "status": "diverged", "rounds": 0, "reason": f"{UNTRAINED}: epsilon would be 9"},
        full | {"trial": "y", "status": "diverged", "rounds": 59, "reason": "diverged in round 60"},
    ]
    trials = pd.DataFrame([*(full | {"trial": f"t{i}"} for i in range(31)), *others])
    p.files.write("running")
    lines = ledger.write(p, {}, trials.iloc[0], trials, checked=10)
    content = json.loads(p.files.privacy_file.read_text())
    assert content["rounds"] == 1920 and content["composed"] == pytest.approx(10.4255, abs=5e-5)
    assert content["model"] == pytest.approx(1.1578, abs=5e-5) and content["accountant"] == "PLD"
    assert lines == p.files.of_privacy and "ε = 1.158 at δ = 0.001, by PLD" in lines[0]
    assert all(line.startswith("without the validation scores, which were not private: ") for line in lines[1:])
    assert "ε = 10.43, composed by RDP over 1920 rounds" in lines[1] and "10 runs on fresh seeds" in lines[1]
    assert lines[2].endswith("the choice has no ε of its own, which takes --trials-drawn")
    copied = [{"round": 1}, {"round": 2}, {"round": 2}, {"diverged": True}]  # PBT: trained again after a copy
    pbt = trials[:1].assign(**{ledger.TRAINED: ledger.rounds_in(copied)})
    assert ledger.trained(p, p.workload, pbt)[1] == 3
    p.files.write("running", choose_seeds=3, choice=[{"trial": t, "own": 0.5, "reason": ""} for t in ("t0", "t1")])
    assert ledger.trained(p, p.workload, trials)[1] == 1920 + 2 * 2 * 60
    # a search that extends one that extends it, where t1 goes on under another name and nobody chose anew
    trials.loc[1, ["trial", "continues"]] = "t1+", "t1"
    files = p.files
    for name in ("second", "third"):
        before, files = files.name, RunFiles(p.folder.with_name(name))
        files.make()
        files.write("running", extends=before, choose_seeds=1)
    later = SimpleNamespace(**{n: getattr(p, n) for n in ("seeds", "workload", "space")}, files=files)
    assert ledger.trained(later, p.workload, trials)[1] == 1920 + 2 * 2 * 60


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--clients 100 --participation 0.1 --rounds 60 --delta 0.001 --noise 1", ("0.6499", "1.572", "3.640")),
        ("--clients 100 --participation 0.1 --delta 0.001 --epsilon 8", ("update_noise 0.6894 keeps ε at 8",)),
        ("--population 1000000 --cohort 1000 --rounds 5 --noise 1", ("as if 1,000 of 1,000,000", "probability 0.001")),
    ],
)
def test_the_command_prints_what_rounds_cost(arguments: str, said: tuple[str, ...], capsys) -> None:
    assert command.main(arguments.split()) == 0
    out = capsys.readouterr().out.replace("\n", " ")
    assert all(part in out for part in said)
