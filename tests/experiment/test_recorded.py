"""A run stays the run that it was: its record says of the setting and of defaults what declarations may say no more."""

from dataclasses import dataclass, replace

import pytest

from fedtune.core.errors import UserError
from fedtune.experiment import registry, scenarios
from fedtune.experiment.algorithm import hyper
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.runs import provenance
from fedtune.studies.options import ComparisonOptions
from fedtune.tuning.options.options import SearchOptions
from trainables.fedproto import FedProto

SMALL = Scenario(clients=4, rounds=2)


@dataclass(frozen=True)
class Changed(FedProto):
    """FedProto with a default that was another before, and presets."""

    lam: float = hyper(7.0, 0.1, 50.0)
    former = {"lam": 1.0}
    presets = {"as_text": {"weighting": "clients"}, "as_published": {"lam": 4.0, "lr": 0.5}}


@pytest.fixture
def changed(monkeypatch):
    found = registry.find
    monkeypatch.setattr(registry, "find", lambda name: Changed if name == "fedproto" else found(name))


def of_record(**content):
    """The experiment of a search's record with these entries; options as fedtune 0.2.0 wrote them."""
    options = {"algo": "fedproto", "preset": content.pop("preset", "")}
    return SearchOptions.from_record({"options": options, "scenario": vars(SMALL), **content}).experiment()


def test_a_record_without_defaults_goes_by_those_of_then(changed):
    assert Experiment("fedproto", SMALL).configuration({})["lam"] == 7.0
    assert of_record().configuration({})["lam"] == 1.0
    text, code = of_record(preset="as_text").configuration({}), of_record(preset="as_published").configuration({})
    assert (text["lam"], text["weighting"]) == (1.0, "rows")  # as_text was another name for the defaults
    assert (code["lam"], code["lr"]) == (4.0, 0.5)
    now = Experiment("fedproto", SMALL, preset="as_text").configuration({})
    assert (now["lam"], now["weighting"]) == (7.0, "clients")


def test_defaults_in_a_record_win_over_declarations_and_presets_and_lose_to_what_is_pinned(changed):
    whole = Experiment("fedproto", SMALL, preset="as_published").configuration({}) | {"lam": 3.0, "weighting": "rows"}
    for preset in ("", "as_text", "as_published"):
        assert of_record(preset=preset, defaults=whole).configuration({}) == whole
    pinned = replace(of_record(defaults=whole), pinned={"lam": 9.0})
    assert pinned.configuration({})["lam"] == 9.0 and pinned.configuration({"lam": 2.0})["lam"] == 2.0


def test_what_a_new_record_says_gives_its_experiment_again(changed):
    for preset in ("", "as_text", "as_published"):
        options = SearchOptions(algo="fedproto", preset=preset, fields={"clients": 5}, set={"momentum": 0.1})
        first = options.experiment()
        record = provenance.of_experiment(first) | {"options": options.with_typed(first).to_record()}
        again = SearchOptions.from_record(record).experiment()
        assert again.resolve({}) == first.resolve({}) and again.to_plain() == first.to_plain()


def test_a_record_s_setting_is_as_it_was_and_what_is_asked_for_now_wins():
    then = scenarios.find("gfpl-fmnist-w4").override(all_classes=100, shots=30)
    content = {"options": {"algo": "fedavg", "scenario": "gfpl-fmnist-w4"}, "scenario": vars(then)}
    options = SearchOptions.from_record(content)
    assert options.experiment().scenario == then
    longer = replace(options, fields={"rounds": 120}).experiment().scenario
    assert longer == then.override(rounds=120)
    with pytest.raises(UserError, match="unknown scenario field 'clientz'"):
        SearchOptions.from_record(content | {"scenario": {"clientz": 3}}).experiment()


def test_a_comparison_s_record_holds_the_defaults_of_each(changed):
    record = {"options": {"algos": "fedproto,local", "seeds": 2}, "algorithms": ["fedproto", "local"]}
    options = ComparisonOptions.from_record(
        record | {"scenario": vars(SMALL), "defaults_of": {"fedproto": {"lam": 3.0}}}
    )
    lam = options.of_search("fedproto", "x").experiment().configuration({})["lam"]
    before = ComparisonOptions.from_record(record | {"scenario": vars(SMALL)})
    assert (lam, before.of_search("fedproto", "x").experiment().configuration({})["lam"]) == (3.0, 1.0)
    assert options.baselines == before.baselines == "none"  # none joined then


def test_a_run_s_file_is_found_again_unless_a_default_has_moved(changed):
    """What decides the name of a file holds defaults only where they are not those of then."""
    now, then = Experiment("fedproto", SMALL).to_plain(), of_record().to_plain()
    assert now["defaults"] == {"lam": 7.0} and "defaults" not in then
    assert "defaults" not in Experiment("local", SMALL).to_plain()
    assert "defaults" not in Experiment("fedproto", SMALL, preset="as_published").to_plain()
    assert Experiment("fedproto", SMALL, preset="as_text").to_plain()["defaults"] == {
        "lam": 7.0,
        "weighting": "clients",
    }
