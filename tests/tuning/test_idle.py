"""What has no effect anywhere in a space leaves it, with a line; what may have one stays."""

import pytest

from fedtune.core.errors import UserError
from fedtune.experiment import scenarios
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.tuning import plan, space, space_facts
from fedtune.tuning.options.search import SearchOptions


def loaded(name="default", algo="gfpl", scenario=None, **pinned):
    e = Experiment(algorithm=algo, scenario=scenario or scenarios.find("digits-w4"), pinned=pinned)
    return space.load(name, e), e


def test_with_few_rows_a_class_the_number_of_components_leaves(capsys):
    whole, e = loaded()
    found = space_facts.without_idle(whole, e)
    assert set(whole.names) - set(found.names) == {"components"}
    assert (
        "note: components has no effect here and is not searched: a class has at most 9 rows" in capsys.readouterr().err
    )
    many, e = loaded(scenario=scenarios.find("gfpl-fmnist-w4"))
    assert space_facts.without_idle(many, e) == many


def test_what_another_hyperparameter_of_the_space_decides_stays():
    """Momentum is idle under Adam, but not where the space has both optimisers."""
    adam = Scenario(optimizer="adam")
    alone, e = loaded("default", "fedavg", adam)
    assert "momentum" not in space_facts.without_idle(alone, e).names and "momentum" in alone.names
    both = space.varied(alone, ["optimizer"], e)
    assert "momentum" in space_facts.without_idle(both, e).names


def test_pinned_ablations_take_what_is_theirs_along():
    whole, e = loaded("wide", scenario=scenarios.find("gfpl-fmnist-w4"), pfg=False)
    left = set(space_facts.without_idle(whole, e).names)
    assert (
        not left & {"components", "threshold", "pseudo", "first", "every", "retrain_epochs", "order"} and "lam" in left
    )
    whole, e = loaded("default", scenario=scenarios.find("gfpl-fmnist-w4"), dcs=False)
    assert "lam" not in space_facts.without_idle(whole, e).names
    whole, e = loaded("default", scenario=scenarios.find("gfpl-fmnist-w4"), order="interleaved")
    assert not {"pseudo", "retrain_epochs"} & set(space_facts.without_idle(whole, e).names)


def test_a_condition_on_what_left_is_settled_by_its_default():
    whole, e = loaded(scenario=scenarios.find("gfpl-fmnist-w4"), dcs=False)
    domains = {"lam": whole.domains["lam"], "lr": whole.domains["lr"], "every": whole.domains["every"]}
    conditions = {"lr": {"lam": (2.0,)}, "every": {"lam": (5.0,)}}
    found = space_facts.without_idle(space.Space(domains, [], conditions), e)
    assert found.names == ["lr"] and found.conditions == {}  # lam is 2 where it is not searched


def test_a_grid_keeps_its_points_with_a_warning_and_a_record_what_was_searched(capsys):
    grid, e = loaded("paper")
    assert (
        space_facts.without_idle(grid, e) == grid
        and "warning: components has no effect here" in capsys.readouterr().err
    )
    whole, e = loaded()
    assert space_facts.without_idle(whole, e, {"components": "1..16"}) == whole
    options = SearchOptions(algo="gfpl", scenario="digits-w4", name="x")
    record = {"options": options.to_record(), "scenario": vars(scenarios.find("digits-w4"))}
    then = plan.make(SearchOptions.from_record(record | {"space": whole.text()}))
    assert "components" in then.space.names and "components" not in plan.make(options).space.names


def test_a_space_in_which_nothing_has_an_effect_is_refused():
    whole, e = loaded()
    with pytest.raises(UserError, match="something to vary, but no searched hyperparameter has an effect: a class has"):
        space_facts.without_idle(space.Space({"components": whole.domains["components"]}, []), e)
