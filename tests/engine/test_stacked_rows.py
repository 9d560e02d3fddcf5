"""Predictions and features of uploads that are replayed, without padding, are those of all rows at once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.rows import first

from fedtune import tracing
from fedtune.core.trees import named
from fedtune.engine import chunks, uploads
from fedtune.engine.simulation import Simulation
from fedtune.experiment import partitioning, registry, scenarios, user_metrics
from fedtune.experiment.experiment import Experiment
from fedtune.nn import architectures
from fedtune.tracing.purity import identity


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
