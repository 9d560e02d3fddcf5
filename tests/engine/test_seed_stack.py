"""Seeds whose clients train as one stack: each has the numbers of a run of its own, whatever becomes of the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.outcomes import outcome_of
from torch.testing import assert_close

from fedtune.core.errors import Diverged
from fedtune.core.workload import HERE
from fedtune.engine import executors, seed_stack
from fedtune.engine.built_in import ENGINE
from fedtune.engine.seed_stack import SeedStack, by_plan, seeds_at_once
from fedtune.engine.simulation import Seeds
from fedtune.experiment import partitioning
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.studies import ray_tasks
from fedtune.studies.ray_tasks import RunTask
from fedtune.user_code import user_files
from tests.support.algorithms import every
from tests.support.helpers import DIGITS, EARLY, TIGHT
from tests.support.rows import first
from tests.support.seeds import SEEDS, both, figures, require_equal

SOME = DIGITS.override(participation=0.6, eval_clients=4, all_classes=40, rounds=3)  # three of five take part


class Calls:
    """What was run stacked: clients of each call, and whether any failed there."""

    def __init__(self) -> None:
        self.clients: list[int] = []
        self.failed = 0


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """Watches what is run stacked."""
    found, run = Calls(), SeedStack._run_together

    def watched(self: SeedStack, works: Any, code: Any) -> Any:
        found.failed += 1
        done = run(self, works, code)
        found.failed -= 1
        found.clients.append(sum(len(w.g.ids) for w in works))
        return done

    monkeypatch.setattr(SeedStack, "_run_together", watched)
    yield found


# to an algorithm another seed's clients are more clients: whether it can be stacked the conformance checks ask
@pytest.mark.parametrize("name", every())
def test_stacked_seeds_have_the_numbers_of_runs_alone(name: str, calls: Calls) -> None:
    data = {seed: partitioning.make(SOME, seed) for seed in SEEDS[:2]}
    require_equal(*both(name, SOME, EARLY[name], data), rounds=3 if EARLY[name] else 2)
    assert calls.failed == 0
    assert max(calls.clients) >= 6  # three clients of each of two seeds; below there are three


@pytest.mark.parametrize("name", first(["fedproto", "fml", "gfpl"], 1))
def test_stacked_seeds_of_mixed_models_have_the_numbers_of_runs_alone(name: str, calls: Calls) -> None:
    # of five clients with three architectures two take part: of some runs nobody has the first one
    scenario = DIGITS.override(model="htmini3", participation=0.4, rounds=3)
    require_equal(*both(name, scenario, EARLY[name]))
    assert calls.failed == 0
    assert calls.clients


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluation": "pooled"},
        {"optimizer": "adam", "lr": 0.002, "local_epochs": 2},
        {"local_steps": 3, "lr_decay": 0.9, "weight_decay": 0.01, "body_lr_scale": 0.1},
        {"body_lr_scale": 0.0},
        {"model": "cnn8", "batch_norm": "personal"},
    ],
    ids=str,
)
def test_stacked_seeds_have_the_numbers_of_runs_alone_in_every_setting(changes: dict[str, Any], calls: Calls) -> None:
    require_equal(*both("fedavg", SOME.override(**changes), {}), rounds=2)
    assert calls.failed == 0
    assert calls.clients


def test_a_seed_that_diverges_takes_no_other_with_it(calls: Calls) -> None:
    data = {seed: partitioning.make(DIGITS, seed) for seed in SEEDS}
    data[4] = data[4]._replace(x=data[4].x * 1e30)
    together, alone = both("fedprox", DIGITS, {"lr": 0.5}, data)
    first = together.steps()
    with pytest.raises(Diverged) as error:
        alone[1].step()
    assert isinstance(first[1], Diverged)
    assert str(first[1]) == str(error.value)
    for i in (0, 2):
        assert_close(figures(first[i]), figures(alone[i].step()), **TIGHT)
        second = together.steps([i])  # and they go on by themselves
        assert_close(figures(second[i]), figures(alone[i].step()), **TIGHT)
    assert together.steps([0, 2]).keys() == {0, 2}


def test_a_trial_diverges_with_the_reason_of_its_first_seed_that_does() -> None:
    data = [partitioning.make(DIGITS, seed) for seed in SEEDS]
    data[1] = data[1]._replace(x=data[1].x * 1e30)
    made = Experiment(algorithm="fedavg", scenario=DIGITS, seed=3, executor="rule")
    with pytest.raises(Diverged, match="diverged in round 1: the loss of"):
        Seeds(made, {"lr": 0.5}, dict(enumerate(data, 3))).step()


@pytest.mark.parametrize("name", first(["scaffold", "gfpl"], 1))
def test_a_trial_of_several_seeds_resumes_bit_for_bit(name: str, tmp_path: Path, calls: Calls) -> None:
    data = {seed: partitioning.make(SOME, seed) for seed in SEEDS}

    def trial() -> Seeds:
        return Seeds(Experiment(algorithm=name, scenario=SOME, seed=3, executor="rule"), EARLY[name], data)

    whole, cut = trial(), trial()
    rows = [figures(whole.step()) for _ in range(4)]
    assert [figures(cut.step()) for _ in range(2)] == rows[:2]
    cut.save(tmp_path)
    resumed = trial()
    resumed.load(tmp_path)
    assert [figures(resumed.step()) for _ in range(2)] == rows[2:]
    assert calls.failed == 0
    assert calls.clients


@pytest.mark.parametrize("bound", ["clients", "numbers"])
def test_a_stack_holds_no_more_than_it_should(bound: str, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    if bound == "clients":
        monkeypatch.setattr(seed_stack, "clients_at_once", lambda *_: 14)  # of three seeds with five each
    together, alone = both("local", DIGITS, {})
    if bound == "numbers":
        each = sum(t[0].numel() for t in alone[0].state.groups[0].tensors.values())
        monkeypatch.setattr(executors, "NUMBERS_AT_ONCE", 14 * (each + 1))  # 1: in an evaluation, its run's number
    require_equal(together, alone, rounds=1)
    assert calls.failed == 0
    assert set(calls.clients) == {10}  # two seeds together, and one by itself


def test_code_that_fails_stacked_runs_for_one_seed_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    together, alone = both("fedavg", DIGITS, {})

    def fails(*args: Any) -> None:
        raise RuntimeError("of one run's numbers")

    monkeypatch.setattr(SeedStack, "_run_together", fails)
    require_equal(together, alone, rounds=1)


def test_a_stack_is_formed_only_where_it_pays() -> None:
    large = {"dataset": "fashion-mnist", "model": "mcmahan-cnn"}
    # on a GPU it is memory alone that bounds it: 20 clients of 13,706 numbers
    for fields, executor, device, most in (
        ({}, "rule", "cpu", 5),
        ({"batch": 32}, "rule", "cpu", 1),
        ({"participation": 0.5}, "rule", "cpu", 11),
        ({}, "loop", "cpu", 1),
        (large, "rule", "cpu", 1),
        ({"batch": 128}, "rule", "cuda", 72),
    ):
        made = Experiment(algorithm="fedavg", scenario=Scenario(**fields), executor=executor, device=device)
        assert seeds_at_once(made, {}) == most, fields
    data = {seed: partitioning.make(DIGITS, seed) for seed in SEEDS}
    for executor, of_seeds in (("loop", data), ("rule", {3: data[3]}), ("rule", data)):
        seeds = Seeds(Experiment(algorithm="fedavg", scenario=DIGITS, seed=3, executor=executor), {}, of_seeds)
        assert (seeds._stack.joint is not None) == (executor == "rule" and of_seeds is data)


def test_nets_whose_constants_depend_on_the_seed_run_by_themselves() -> None:
    runs = both("fedavg", DIGITS, {})[1]
    settings, states = [r.setup for r in runs], [r.state for r in runs]
    for i, run in enumerate(runs):
        run.state.groups[0].net.register_buffer("constant", torch.full((2,), float(i)), persistent=False)
    assert seed_stack.stacked(settings, states).joint is None
    for run in runs:
        run.state.groups[0].net.constant.fill_(1.0)
    assert seed_stack.stacked(settings, states).joint is not None


def test_plans_that_depend_on_the_seed_run_by_themselves() -> None:
    from functools import partial

    def loss(t: int) -> int:
        return t

    plans = {0: (partial(loss, 1), "up"), 1: (partial(loss, 2), "up"), 2: (partial(loss, 1), "up")}
    assert [runs for _, runs in by_plan(plans)] == [[0, 2], [1]]


def test_packs_hold_the_seeds_of_one_configuration_and_leave_no_slot_idle() -> None:
    scenario = Scenario(rounds=2)
    runs = [
        RunTask(
            f"{lr} {seed}",
            Experiment(algorithm="fedavg", scenario=scenario, seed=seed, executor="rule", trainer=ENGINE),
            {"lr": lr},
        )
        for seed in range(5)
        for lr in (0.1, 0.2)
    ]

    def shapes(slots: int, one_by_one: bool = False) -> list[list[tuple[float, int]]]:
        return [[(r.config["lr"], r.workload.seed) for r in p] for p in ray_tasks.packs(runs, slots, one_by_one)]

    assert shapes(2) == [[(lr, seed) for seed in range(5)] for lr in (0.1, 0.2)]
    assert [len(p) for p in shapes(4)] == [2, 2, 3, 3]
    assert shapes(4)[0][0][1] == shapes(4)[1][0][1] == 0  # on the same federations, one after the other
    assert all(len(p) == 1 for p in shapes(2, one_by_one=True))
    assert all(len(p) == 1 for p in shapes(99))
    assert sorted(x for p in shapes(3) for x in p) == sorted((r.config["lr"], r.workload.seed) for r in runs)


def test_seeds_of_a_task_end_by_themselves_and_have_rows_of_their_own() -> None:
    from fedtune.core.budget import Budget
    from fedtune.core.objectives import ACCURACY

    scenario = DIGITS.override(rounds=4)
    data = [partitioning.make(scenario, seed) for seed in SEEDS]
    data[2] = data[2]._replace(x=data[2].x * 1e30)  # diverges
    e = Experiment(algorithm="fedavg", scenario=scenario, seed=3, executor="rule", trainer=ENGINE)
    budget = Budget("rounds", 3)
    outcomes = ray_tasks.train_seeds(e, {"lr": 0.5}, SEEDS, HERE, *data, budget=budget, objective=ACCURACY)
    for seed, d, found in zip(SEEDS, data, outcomes, strict=True):
        alone = outcome_of(e.with_seed(seed), {"lr": 0.5}, d, budget, ACCURACY)
        assert len(found.rounds) == len(alone.rounds)
        assert found.reason == alone.reason
        for ours, theirs in zip(found.rounds, alone.rounds, strict=True):
            assert_close(figures(ours), figures(theirs), rtol=1e-5, atol=1e-5)  # in float32
        assert [c["scored"] for c in found.clients] == [c["scored"] for c in alone.clients]
    assert [len(o.rounds) for o in outcomes] == [3, 3, 0]


OWN = """
from dataclasses import dataclass
import torch
from torch import nn
from fedtune import Algorithm

rounds = 0

class Net(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Flatten(), nn.Linear(width, 6)), nn.Linear(6, classes)

def net(shape, classes):
    return Net(torch.Size(shape).numel(), classes)

@dataclass(frozen=True)
class Plain(Algorithm):
    pure = True
    shared = ("body", "head")

@dataclass(frozen=True)
class Counts(Algorithm):
    shared = ("body", "head")

    def init(self, task):
        return {"rounds": torch.zeros(())}

    def aggregate(self, server, up, task):
        global rounds
        rounds += 1
        return {**super().aggregate(server, up, task), "rounds": torch.tensor(float(rounds))}
"""


@pytest.mark.parametrize(
    ("name", "model", "stacked"),
    [("fedavg", "own.py:net", True), ("own.py:Plain", "mlp", True), ("own.py:Counts", "mlp", False)],
)
def test_seeds_of_users_code_have_modules_of_their_own_and_are_stacked_where_none_is_asked(
    name: str, model: str, stacked: bool, tmp_path: Path, calls: Calls
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    user_files.take(str(tmp_path / "own.py"))
    scenario = SOME.override(model=model, features=0)
    together, alone = both(name, scenario, {})
    require_equal(together, alone)
    assert bool(calls.clients) == stacked and calls.failed == 0
    if not stacked:
        assert [float(run.state.server["rounds"]) for run in together.runs] == [3, 3, 3]
