"""Every file in `trainables/` passes the checks of fedtune/conformance: a new one is covered without editing this.

An algorithm whose events are rare, or that takes long, says in `checked_with` what makes it quick, and for a
hyperparameter whose effect is subtle in `contrasts` which two values show it.
"""

from __future__ import annotations

from functools import lru_cache

import pytest
from support.algorithms import FEW
from support.helpers import CLOCK

from fedtune.conformance import exactness, messages, running
from fedtune.conformance.algorithms import CHECKS
from fedtune.conformance.cases import cases
from fedtune.conformance.check import ConformanceCheck, Violation
from fedtune.conformance.subject import Subject
from fedtune.core.hyper import hyperparameters
from fedtune.experiment.experiment import fitting
from fedtune.experiment.registry import find, names
from fedtune.studies.checking import spaces

ALL = names()
# optimisers, schedules, epochs, Dropout and whose BatchNorm is whose: what the engine does for all algorithms alike
OF_THE_ENGINE = ("adam", "skewed", "steps", "everyone", "personal", "chance")


# what the engine does with an algorithm's methods
LAWS = (
    *(running.runs, running.types, running.inputs, running.own_state, running.seed),
    *(messages.messages, messages.rows_stay_home, exactness.one_program, exactness.recorded_steps),
    *(exactness.stack_equals_loop, exactness.grouping, exactness.checkpoint),
)


@lru_cache(maxsize=1)
def subject(name: str) -> Subject:
    """One algorithm, with the runs that its checks share; tests come algorithm by algorithm.

    Of the settings that vary what the engine does it has one, in turn, so that nine algorithms have each: the engine's
    own tests hold it to them, test_checks_pass_in_every_setting and `fedtune check` each algorithm to all.  And clients
    have half as many rows: a round is two or three steps.
    """
    s, mine = Subject(cls=find(name), name=name, rtol=0.0), OF_THE_ENGINE[ALL.index(name) % len(OF_THE_ENGINE)]
    few = s.cases.few._replace(scenario=s.cases.few.scenario.override(shots=4, shots_spread=2))
    s.cases = s.cases._replace(few=few, **dict.fromkeys({*OF_THE_ENGINE} - {mine}, few))
    return s


@pytest.mark.parametrize(
    ("name", "check"),
    [
        pytest.param(name, check, marks=[pytest.mark.long] * (check in LAWS and name not in FEW))
        for name in ALL
        for check in (*CHECKS, spaces)
    ],
    ids=lambda v: getattr(v, "name", v),
)
def test_check_passes(name: str, check: ConformanceCheck[Subject]) -> None:
    found = check(subject(name))
    assert not isinstance(found, Violation), str(found)


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_checks_pass_in_every_setting(name: str) -> None:
    """Those of numbers, as `fedtune check` has them."""
    s = Subject(cls=find(name), name=name, rtol=0.0)
    for check in (exactness.recorded_steps, exactness.stack_equals_loop, exactness.grouping, exactness.checkpoint):
        found = check(s)
        assert not isinstance(found, Violation), str(found)


@pytest.mark.parametrize("name", ALL)
def test_declarations_of_ours_are_complete(name: str) -> None:
    cls = find(name)
    assert cls.__module__ == f"fedtune.trainables.{name}" and cls.__dataclass_params__.frozen
    for hp in hyperparameters(cls).values():
        assert len(hp.help) > 10, f"{hp.name} says nothing of itself"
        assert hp.searchable, f"{hp.name} has neither range nor choices"


def test_which_algorithms_run_on_mixed_architectures() -> None:
    mixed = cases().mixed
    assert mixed
    fit = {line.split(" ")[0] for line in fitting(mixed.scenario)}
    assert fit >= {"local", "fedproto", "gfpl", "fedgen"} and not fit & {"fedavg", "fedper", "fedpa"}
    assert fit == {name for name in ALL if Subject(cls=find(name), name=name).fits_mixed()}


def test_the_checks_run_what_they_say() -> None:
    """Each setting is what its words say, and an executor or a grouping is no other by accident."""
    s = Subject(cls=find("fedavg"), name="fedavg")
    assert all(setting.rounds >= 2 and setting.atol <= 1e-12 for setting in s.cases if setting)
    for name in ("few", "adam", "skewed", "averaged", "holders"):  # clients that sit out, optimisers, BatchNorm
        assert getattr(s.cases, name).rounds >= 3, "what the server has averaged twice is trained on"
    few = s.run(s.cases.few, executor="stack")
    assert [g.executor for g in few.sim.state.groups] == ["stack"]
    assert [g.executor for g in s.run(s.cases.few, executor="loop").sim.state.groups] == ["loop"]
    assert [g.ids.tolist() for g in s.run(s.cases.few, groups=[[1, 4], [0, 3], [2]]).sim.state.groups] == [
        [1, 4],
        [0, 3],
        [2],
    ]
    assert few.sim.setup.scenario.participants == 3 and few.sim.setup.task.clients == 5
    assert set(CLOCK) <= set(s.begin(s.cases.few).step())
    sizes = s.run(s.cases.averaged).sim.setup.federation.train.counts.tolist()
    assert len(set(sizes)) == len(sizes)
    assert any("running_mean" in n for n in s.run(s.cases.averaged).states[0])
    assert s.run(s.cases.alone).sim.setup.task.clients == 1
    values = {n: s.run(getattr(s.cases, n)).sim.setup.scenario for n in ("everyone", "adam", "skewed", "steps")}
    assert values["everyone"].local_epochs == 2 and values["adam"].optimizer == "adam"
    assert values["skewed"].partition == "dirichlet" and values["skewed"].weight_decay and values["skewed"].momentum
    assert values["steps"].local_steps == 3 and values["steps"].model == "cnn8"
