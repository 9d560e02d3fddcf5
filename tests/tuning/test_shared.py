"""What all algorithms share is searched over one range for all; every exception stands here with its reason."""

from __future__ import annotations

import itertools

import pytest

from fedtune.core.errors import UserError
from fedtune.core.hyper import hyperparameters
from fedtune.experiment import registry
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.trainables.fedprox import FedProx
from fedtune.tuning import shared, space

FILES = [name for name in registry.names() if registry.spaces(name)]
# (algorithm, hyperparameter) -> why its space lacks what all others search
LEFT_OUT = {
    ("fedpft", name): "no client trains" for name in {*shared.DEFAULT, *shared.WIDE} & {*hyperparameters(Scenario)}
}
# algorithms whose `adapt` is no fine-tuning -> what it is
MIXES = {
    "fedala": "it mixes models, by weights with a rate of their own",
    "fedas": "it aligns the received body to the client's features, at a rate of its own",
    "knnper": "it memorises rows, and trains nothing",
}
# names of which several algorithms search other ranges, as they mean something else at each
OWN = {
    "lam": "the weight of each algorithm's own term",
    "mu": "of a square of distances at FedProx and FedKTL, a logarithm at MOON; what a model keeps of itself at FedPHP",
    "temperature": "of logits at FedDistill and FedHKD, of cosines at MOON",
    "pseudo": "fits a whole head from nothing at FedPFT, goes on from the client's own at GFPL",
    "variance_floor": "of a covariance's diagonal at CCVR, of each variance at FedPFT and GFPL",
    "head_lr": "of a server that fits a head at CCVR and FedPFT, of Adam on anchors at FedFA",
    "head_epochs": "on drawn features at CCVR and FedPFT, a client's on its own rows at FedRep",
    "server_lr": "a factor on a mean update, the step of an adaptive rule, the rate of a server's own training",
    "server_epochs": "over class means at FedGH, over prototypes at FedTGP",
    "beta1": "FedAvgM's published grid ends at 0.997",
    "tau": "FedAdam's degree of adaptivity, FedNTD's temperature, FedTGP's bound of a margin",
    "clip": "a bound on gradients at FedKD and FML, a cut of features at GFPL",
    "beta": "the weight of each algorithm's own term",
    "scale": "of angles at FedKTL, which divisor at FedDecorr",
    "mixed": "two models at APFL, a model and the neighbours at kNN-Per",
    "predictor": "each has other prediction heads",
    "weighing": "of each algorithm's own means",
}


def loaded(name: str, which: str, **fields: object) -> space.Space:
    return space.load(which, Experiment(algorithm=name, scenario=Scenario().override(**fields)))


@pytest.mark.parametrize("which", ["default", "wide"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_no_algorithm_has_a_range_of_its_own_for_what_all_share(which: str, optimizer: str) -> None:
    ranges = shared.WIDE if which == "wide" else shared.DEFAULT
    said = {name: loaded(name, which, optimizer=optimizer).text() for name in FILES}
    found, lacking = {}, set()
    for name, texts in said.items():
        has = [n for n in ranges if n in hyperparameters(registry.find(name)) or n in hyperparameters(Scenario)]
        lacking |= {(name, n) for n in has if n not in texts}
        for n in has:
            found.setdefault(n, set()).add(texts.get(n, ""))
    assert lacking == {pair for pair in LEFT_OUT if pair[1] in ranges}
    assert all(len(texts - {""}) == 1 for texts in found.values()), found
    assert {"lr", "momentum", "local_epochs", "tune_lr", "tune_epochs"} <= found.keys()


def test_adams_rates_are_smaller_by_rule() -> None:
    for name in set(FILES) - {"fedpft"}:
        assert loaded(name, "default").text()["lr"] == "0.001..0.3 log"
        assert loaded(name, "default", optimizer="adam").text()["lr"] == "1e-05..0.01 log"
    fixed = Experiment(algorithm="fedavg", scenario=Scenario(), pinned={"optimizer": "adam"})
    assert space.load("default", fixed).text()["lr"] == "1e-05..0.01 log"


@pytest.mark.parametrize(("rounds", "most"), [(1, 20), (30, 20), (60, 10), (100, 6), (200, 5)])
def test_a_trial_of_many_rounds_has_fewer_epochs_in_each(rounds: int, most: int) -> None:
    assert loaded("fedprox", "default", rounds=rounds).text()["local_epochs"] == f"1..{most} log"
    assert loaded("fedprox", "wide", rounds=rounds).text()["local_epochs"] == "1..20 log"


def test_whoever_adapts_before_scoring_tunes_its_rate_and_its_epochs() -> None:
    for name in FILES:
        cls = registry.find(name)
        adapts = any("adapt" in vars(c) for c in cls.__mro__[:-2]) and name not in MIXES
        assert adapts == ({"tune_lr", "tune_epochs"} <= hyperparameters(cls).keys()), name
        if adapts:
            assert {"tune_lr", "tune_epochs"} <= {*loaded(name, "default").names}, name


def test_a_name_that_several_algorithms_search_has_one_range_or_a_reason() -> None:
    found: dict[tuple[str, str], set[frozenset[str]]] = {}
    for which, name in itertools.product(("default", "wide"), FILES):
        for n, text in loaded(name, which).text().items():
            found.setdefault((which, n), set()).add(frozenset(text.partition(" where ")[0].split(" | ")))
    several = {n for (_, n), ranges in found.items() if len(ranges) > 1}
    assert not several - OWN.keys(), "give them one range (search_spaces/_families.py), or say in OWN why they differ"
    assert not OWN.keys() - several, "these have one range by now"


def test_a_space_that_gives_shared_names_a_range_of_its_own_is_an_error() -> None:
    for make in (lambda: space.with_shared(FedProx, "lr"), lambda: space.with_shared(FedProx, batch=(4, 8))):
        with pytest.raises(ValueError, match="what all share has one range for all, but FedProx's space names"):
            make()


def test_a_range_by_optimiser_needs_one_optimiser() -> None:
    fedprox = Experiment(algorithm="fedprox", scenario=Scenario())
    with pytest.raises(UserError, match="the range of lr in space 'default' depends on optimizer, which is searched"):
        space.checked("default", space.with_shared(FedProx, "mu", "optimizer"), fedprox)
