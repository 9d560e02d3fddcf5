"""What the tests share: tiny federations made by hand, runs in float64, and what their clients draw and hold."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedtune.conformance.cases import random_federation as random_federation
from fedtune.conformance.subject import CLOCK as CLOCK
from fedtune.core import randomness
from fedtune.data.federation import Federation
from fedtune.engine.batches import BatchPlan, Pool, plan
from fedtune.engine.simulation import Simulation
from fedtune.engine.state import common_start
from fedtune.experiment import partitioning
from fedtune.experiment.algorithm import Phase, Task
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.registry import find, names
from fedtune.experiment.scenario import Scenario
from fedtune.nn import architectures
from support.numbers import (  # noqa: F401 - for tests of other folders
    TIGHT,
    assert_close_numbers,
    assert_close_rows,
    assert_same_numbers,
    copied,
    flat,
    numbers,
    randn,
)

DIGITS = Scenario(model="mlp", features=12, clients=5, ways=4, ways_spread=2, shots=8, shots_spread=4)
BATCHNORM = Scenario(model="fedgen-cnn", features=8)

# what makes an algorithm's rare events happen within three rounds
EARLY: dict[str, dict[str, Any]] = {name: dict(find(name).checked_with) for name in names()}


@cache
def _dealt(scenario: Scenario, seed: int) -> Federation:
    return partitioning.make(scenario, seed)


def simulate(
    name: str,
    scenario: Scenario = DIGITS,
    data: Federation | None = None,
    seed: int = 0,
    executor: str = "stack",
    groups: Sequence[Sequence[int]] | None = None,
    **config: Any,
) -> Simulation:
    """A run in float64, ready for its first round; groups: the same model given as several groups of clients."""
    if data is None:
        data = _dealt(scenario, seed)
    else:
        scenario = scenario.override(clients=data.clients)
    sim = Simulation(
        Experiment(algorithm=name, scenario=scenario, seed=seed, executor=executor), config, data, torch.float64
    )
    if groups:
        form = architectures.build(
            scenario.model,
            sim.setup.federation.shape,
            data.classes,
            sim.setup.task.features,
            randomness.number(seed, "net"),
        )
        sim.state = common_start(sim.setup, [(form, list(ids), sim.state.groups[0].executor) for ids in groups])
    return sim


def play(sim: Simulation, rounds: int) -> list[dict[str, Any]]:
    """The rows of the next rounds, without the clock."""
    return [{k: v for k, v in sim.step().items() if k not in CLOCK} for _ in range(rounds)]


def resumed(make: Callable[[], Simulation], half: int, folder: Path) -> tuple[list[dict], Simulation, Simulation]:
    """A run's rows and the run, and the same saved half way and gone on with: of the same rows and numbers."""
    whole, first, second = (make() for _ in range(3))
    rows = play(whole, 2 * half)
    play(first, half)
    first.save(folder)
    second.load(folder)
    assert play(second, half) == rows[half:]
    assert_same_numbers(numbers(second.state), numbers(whole.state))
    return rows, whole, second


def client_net(sim: Simulation, k: int) -> architectures.Net:
    """Client k's model as an ordinary float64 module, without what an algorithm added to it."""
    task, values = sim.setup.task, dict(sim.state.server.get("shared", {}))
    net = architectures.build(task.models[k % len(task.models)], task.shape, task.classes, task.features).double()
    for g in sim.state.groups:
        if k in g.ids.tolist():
            values |= {n: t[g.ids.tolist().index(k)] for n, t in g.tensors.items()}
    net.load_state_dict({n: values[n].clone() for n in net.state_dict()})
    return net


def own_rows(sim: Simulation, k: int, split: str = "train") -> tuple[Tensor, Tensor]:
    """Client k's images and labels."""
    f = sim.setup.federation
    table = getattr(f, split)
    rows = table.rows[k, : int(table.counts[k])]
    return f.x[rows], f.y[rows]


def next_task(sim: Any) -> Task:
    """The task as the next round's broadcast is given it, and an evaluation now."""
    return sim.setup.task_in(sim.state.round + 1)


def client_draws(sim: Any, t: int, k: int) -> BatchPlan:
    """The rows and the noise that client k draws in round t = 1, 2, … of a run, for itself alone: [1, S, …]."""
    s, at = sim.setup, torch.tensor([k])
    phase = next(a for a in s.algorithm.round(s.task_in(t)) if isinstance(a, Phase))
    f = s.federation
    pool = Pool(f.x, f.y, f.train.rows[at], f.train.counts[at])
    return plan([pool], phase, s.scenario, s.scenario.local_epochs, [randomness.stream(s.task.seed, "train", t, 0, k)])


def record_uploads(sim: Any) -> list[dict]:
    """The list that every upload of this run will be added to."""
    alg, seen = sim.setup.algorithm, []
    aggregate = alg.aggregate

    def taken(server: dict, up: dict, task: Any) -> dict:
        seen.append(up)
        return aggregate(server, up, task)

    object.__setattr__(alg, "aggregate", taken)
    return seen
