"""A run stays the run that it was: its record says of the setting and of defaults what declarations may say no more."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fedtune.core.errors import UserError
from fedtune.experiment import registry, scenarios
from fedtune.experiment.algorithm import hyper
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.runs import provenance
from fedtune.studies import ray_tasks
from fedtune.studies.options import ComparisonOptions
from fedtune.trainables.fedproto import FedProto
from fedtune.tuning.options.search import SearchOptions

SMALL = Scenario(clients=4, rounds=2)


@dataclass(frozen=True)
class Changed(FedProto):
    """FedProto with a default that was another before, and presets."""

    lam: float = hyper(7.0, 0.1, 50.0)
    presets = {"as_text": {"weighting": "clients"}, "as_published": {"lam": 4.0, "lr": 0.5}}


@pytest.fixture
def changed(monkeypatch):
    found = registry.find
    monkeypatch.setattr(registry, "find", lambda name: Changed if name == "fedproto" else found(name))


def of_record(**content):
    """The experiment of a search's record with these entries."""
    options = {"algo": "fedproto", "preset": content.pop("preset", "")}
    return SearchOptions.from_record({"options": options, "scenario": vars(SMALL), **content}).experiment()


def test_recorded_defaults_win_over_presets_and_lose_to_pinned_values(changed):
    published = Experiment(algorithm="fedproto", scenario=SMALL, preset="as_published").configuration({})
    whole = published | {"lam": 3.0, "weighting": "rows"}
    for preset in ("", "as_text", "as_published"):
        assert of_record(preset=preset, defaults=whole).configuration({}) == whole
    pinned = replace(of_record(defaults=whole), pinned={"lam": 9.0})
    assert pinned.configuration({})["lam"] == 9.0 and pinned.configuration({"lam": 2.0})["lam"] == 2.0


def test_what_a_new_record_says_gives_its_experiment_again(changed):
    for preset in ("", "as_text", "as_published"):
        options = SearchOptions(algo="fedproto", preset=preset, fields={"clients": 5}, set={"momentum": 0.1})
        first = options.experiment()
        record = provenance.of_workload(first) | {"options": options.with_typed(first).to_record()}
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
    assert options.of_search("fedproto", "x").experiment().configuration({})["lam"] == 3.0


def test_a_run_s_file_is_named_by_every_value_that_it_was_trained_with(changed):
    """So what a declaration said before is not taken for what it says now."""

    def name(experiment, **config):
        return ray_tasks.outcome_file(Path(), ray_tasks.RunTask("run", experiment, config))

    now = Experiment(algorithm="fedproto", scenario=SMALL)
    changes = [{"defaults": {"lam": 1.0}}, {"preset": "as_text"}, {"seed": 1}, {"test_every": 2}, {"start": "own"}]
    changes += [{"scenario": replace(SMALL, swaps=1)}, {"pinned": {"lr": 0.5}}]
    others = [replace(now, **change) for change in changes]
    assert len({name(e) for e in [now, *others]} | {name(now, lam=1.0)}) == len(others) + 2
