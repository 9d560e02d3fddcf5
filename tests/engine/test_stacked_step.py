"""Steps that are replayed are those that vmap and autograd make; what may depend on more is never replayed."""

from functools import partial
from typing import Any

import pytest
import torch
from support.rows import first

from fedtune import tracing
from fedtune.core.trees import named
from fedtune.engine import stacked_code
from fedtune.engine.simulation import Simulation
from fedtune.experiment import partitioning, registry, scenarios
from fedtune.experiment.algorithm import Algorithm
from fedtune.experiment.experiment import Experiment
from fedtune.tracing import purity


@pytest.fixture(autouse=True)
def nothing_is_known() -> None:
    tracing.forget()


def trained(algorithm: str, values: dict[str, Any] | None = None, **fields: Any) -> Simulation:
    scenario = scenarios.find("digits-w4").override(clients=4, **fields)
    values = dict(registry.find(algorithm).checked_with) | (values or {})
    simulation = Simulation(Experiment(algorithm=algorithm, scenario=scenario), values, partitioning.make(scenario, 0))
    for _ in range(3):
        simulation.step()
    return simulation


def entries(simulation: Simulation) -> list[tracing.CacheEntry]:
    known = [tracing.recordings_of(g.net) for g in simulation.state.groups]
    return [entry for of in known for key, entry in of.items() if key[0] is stacked_code.StackedStep]


@pytest.mark.parametrize(
    ("algorithm", "fields"),
    first(
        [
            ("scaffold", {"weight_decay": 0.01}),
            ("fedpa", {}),  # a loss that knows the round, BatchNorm in what clients received
            ("fedbn", {"model": "fedgen-cnn", "optimizer": "adam"}),  # running statistics
            ("fedfa", {}),  # a second step on every batch
            ("gfpl", {"momentum": 0.9}),  # a phase over drawn rows
        ],
        2,
    ),
)
def test_replayed_steps_change_no_bit(algorithm: str, fields: dict[str, Any]) -> None:
    taped = trained(algorithm, **fields)
    assert any(entry.verified for entry in entries(taped)) and not any(entry.untraceable for entry in entries(taped))
    tracing.forget()
    with tracing.eager():
        plain = trained(algorithm, **fields)
    assert entries(plain) == []
    require_equal(taped, plain)


def require_equal(taped: Simulation, plain: Simulation) -> None:
    for a, b in zip(taped.state.groups, plain.state.groups, strict=True):
        assert all(torch.equal(t, named(b.tensors)[n]) for n, t in named(a.tensors).items())
    for n, t in named(taped.state.server).items():
        assert torch.equal(t, named(plain.state.server)[n])


@pytest.mark.parametrize(
    ("algorithm", "first", "second"),
    first(
        [
            ("fedprox", {"mu": 0.1}, {"mu": 0.7, "lr": 0.03}),
            ("fedpa", {"lr": 0.01}, {"lr": 0.05, "lam_po": 0.3}),  # a loss that knows the round
            ("gfpl", {"lam": 0.5}, {"lam": 2.0, "components": 2}),
            ("fedprox", {"mu": 0.0}, {"mu": 0.7}),  # another loss, if it leaves out what has no weight
            ("fedprox", {"weight_decay": 0.0}, {"weight_decay": 0.1}),
        ],
        2,
    ),
)
def test_a_trial_that_finds_another_ones_tapes_is_the_trial_that_it_was(
    algorithm: str, first: dict[str, Any], second: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run: list[bool] = []
    plain = stacked_code.StackedStep._eager
    monkeypatch.setattr(stacked_code.StackedStep, "_eager", lambda self, step: run.append(True) or plain(self, step))
    trained(algorithm, first)
    alone, run[:] = len(run), []
    after = trained(algorithm, second)
    assert 0 < len(run) < alone
    tracing.forget()
    monkeypatch.setenv("FEDTUNE_EAGER", "1")
    require_equal(after, trained(algorithm, second))


def test_code_of_ours_is_known_by_its_fields_and_arguments() -> None:
    code, ours = purity.identity, registry.find("fedprox")()
    assert code(ours.loss) == code(registry.find("fedprox")().loss)
    assert code(ours.loss) != code(registry.find("fedprox")(mu=0.5).loss)
    at = registry.find("fedgen")().loss_at
    assert code(partial(at, 1)) != code(partial(at, 2))
    assert code(partial(at, 1)) != code(partial(at, 1.0))
    assert code(partial(ours.loss, down={})) is None
    assert code(Algorithm().loss) is None  # which says nothing of itself


def test_a_loss_that_knows_the_round_is_run_by_itself_once_in_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its first step, which is recorded; the others are replayed."""
    monkeypatch.setattr(tracing.calls._CLOCK, "allows", lambda cost: False)
    simulation = trained("fedpa", local_steps=8)
    run: list[int] = []
    plain = stacked_code.StackedStep._eager

    def eager(self: stacked_code.StackedStep, batch: Any) -> stacked_code.Out:
        run.append(len(batch.y))
        return plain(self, batch)

    monkeypatch.setattr(stacked_code.StackedStep, "_eager", eager)
    simulation.step()
    assert run == [4]
