"""Steps, predictions and features that are replayed are those that vmap and autograd make, to the last bit."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.rows import first

from fedtune import tracing
from fedtune.core.trees import named
from fedtune.engine import chunks, stacked_code, uploads
from fedtune.engine.simulation import Simulation
from fedtune.experiment import partitioning, registry, scenarios, user_metrics
from fedtune.experiment.algorithm import Algorithm
from fedtune.experiment.experiment import Experiment
from fedtune.nn import architectures
from fedtune.tracing import purity
from fedtune.tracing.purity import identity


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


def played(algorithm: str, participation: float = 1.0, **fields: Any) -> tuple[Simulation, list[dict[str, Any]]]:
    scenario = scenarios.find("digits-dir0.1").override(clients=5, participation=participation, local_steps=2, **fields)
    values = dict(registry.find(algorithm).checked_with)
    simulation = Simulation(Experiment(algorithm=algorithm, scenario=scenario), values, partitioning.make(scenario, 0))
    rows = [simulation.step() for _ in range(4)]
    return simulation, [{n: v for n, v in row.items() if "seconds" not in n} for row in rows]


@pytest.mark.parametrize(
    ("algorithm", "fields"),
    first(
        [
            ("fedproto", {}),  # predictions that look at what was received; features of all rows
            ("fedbn", {"model": "fedgen-cnn"}),  # running statistics; all rows are predicted alone
            ("gfpl", {"participation": 0.6}),  # three heads; other clients in every round
        ],
        1,
    ),
)
def test_replayed_rows_change_no_bit(algorithm: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    plain, rows = played(algorithm, **fields)
    tracing.forget()
    monkeypatch.setenv("FEDTUNE_EAGER", "1")
    monkeypatch.setattr(uploads, "is_known", lambda module: False)
    simple, simple_rows = played(algorithm, **fields)
    monkeypatch.undo()
    tracing.forget()
    monkeypatch.setattr(chunks, "BAND", 1)  # so that even small clients are cut to their own rows
    monkeypatch.setattr(chunks, "BLOCK", 64)  # and go through them in several blocks
    blocks: list[int] = []
    monkeypatch.setattr(uploads, "blocks_of", lambda *a: blocks.append(len(found := chunks.blocks_of(*a))) or found)
    banded, banded_rows = played(algorithm, **fields)
    assert algorithm == "fedbn" or max(blocks) > 1  # which uploads no features
    assert rows == simple_rows == banded_rows
    for other in (plain, banded):
        for n, t in named(other.state_dict()["server"]).items():
            assert torch.equal(t, named(simple.state_dict()["server"])[n])
        net = other.state.groups[0].net
        code = identity(other.setup.algorithm.predict)
        assert any(entry.verified for key, entry in tracing.recordings_of(net).items() if key[1] == code)
    assert tracing.recordings_of(simple.state.groups[0].net) == {}


def test_features_are_computed_once_they_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(uploads, "_features", lambda *a, plain=uploads._features: asked.append(len(a)) or plain(*a))
    played("fedproto")
    assert len(asked) == 3  # in every round but the first
    played("fedavg")
    assert len(asked) == 3


def test_a_run_with_a_metric_of_ones_own_finds_its_scores_after_one_without(tmp_path: Path) -> None:
    tracing.forget()
    file = tmp_path / "mine.py"
    file.write_text("def recall(scores, y):\n    return (scores.argmax(1) == y).double().mean()\n")
    names, own = user_metrics.take([f"{file}:recall"])
    scenario = scenarios.find("digits-w4").override(clients=4, local_steps=3)
    rows = []
    for given in ({}, {"metrics": names, "own": own}, {}):
        simulation = Simulation(
            Experiment(algorithm="fedprox", scenario=scenario, **given), {}, partitioning.make(scenario, 0)
        )
        rows.append([simulation.step() for _ in range(6)][-1])
    assert rows[1]["val_recall"] == pytest.approx(rows[1]["val_acc"])
    assert len({row["val_acc"] for row in rows}) == 1 and "val_recall" not in rows[2]


@pytest.mark.parametrize("width", [4, 10, 0])
@pytest.mark.parametrize(("model", "rows"), [("mlp", 2100), ("fedproto-cnn", 700)])
def test_features_of_many_rows_have_the_same_bits_in_blocks(model: str, rows: int, width: int) -> None:
    """Also narrow ones, whose product may go by another kernel; bits are promised where fedtune was measured."""
    body = architectures.build(model, (1, 28, 28), 10, width).body
    tensors = {n: torch.stack([t.detach(), 1.1 * t.detach()]) for n, t in body.named_parameters()}
    x = torch.rand(2, rows, 1, 28, 28, generator=torch.Generator().manual_seed(0))

    def features(some: slice) -> torch.Tensor:
        with torch.no_grad():
            return torch.func.vmap(lambda t, z: torch.func.functional_call(body, t, z))(tensors, x[:, some])

    blocks = chunks.blocks_of(rows, 2)
    whole, parts = features(slice(None)), torch.cat([features(block) for block in blocks], 1)
    assert len(blocks) > 1 and torch.allclose(parts, whole, rtol=0, atol=1e-6)
    assert torch.equal(parts, whole) or torch.backends.cpu.get_cpu_capability() != "AVX512"
