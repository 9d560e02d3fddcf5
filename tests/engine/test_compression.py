"""Rounds whose uploads are compressed: identities, bytes, and what is left to each client."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.algorithms import every
from support.helpers import BATCHNORM, DIGITS, EARLY, play, record_uploads, simulate
from support.numbers import TIGHT, assert_same_numbers, numbers
from torch import Tensor
from torch.testing import assert_close

from fedtune.core import memory
from fedtune.core.errors import Diverged, UserError
from fedtune.engine import codecs, engine
from fedtune.engine.simulation import Simulation
from fedtune.engine.wire import Codec, Context
from fedtune.experiment import partitioning
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import OF_CODECS, Scenario
from tests.support.seeds import SEEDS, both, require_equal

SOME = DIGITS.override(participation=0.6, rounds=3)  # three of five clients take part
WITHOUT = {"feddistill", "fedgh", "fedkd", "fedktl", "fedpft", "fedproto", "fedsa", "fedtgp", "gfpl"}  # nothing shared


def taken(name: str, codec: str) -> bool:
    return codec in ("none", *codecs.OF_ALL) or name not in {"fedamp", "fedfomo"} | WITHOUT


def compressed(name: str, codec: str, scenario: Scenario = SOME, **values: Any) -> Simulation:
    executor = values.pop("executor", "stack")
    return simulate(name, scenario, executor=executor, compress=codec, **EARLY[name] | values)


def resumed(name: str, codec: str, rounds: int, **values: Any) -> tuple[Simulation, list[dict[str, Any]]]:
    """A run that goes on in another process after its first round."""
    first, second = (compressed(name, codec, **values) for _ in range(2))
    rows = play(first, 1)
    second.load_state_dict(first.state_dict())
    return second, rows + play(second, rounds - 1)


@pytest.mark.parametrize("name", every())
def test_a_sparse_codec_that_sends_all_is_as_none(name: str) -> None:
    if not taken(name, "topk"):
        with pytest.raises(UserError, match=f"but {name}"):
            Experiment(algorithm=name, scenario=SOME, pinned={"compress": "topk"}).check()
        return
    for executor, codec in (("stack", "topk"), ("loop", "randk")):
        plain = compressed(name, "none", executor=executor)
        rows = play(plain, 2)
        same, got = resumed(name, codec, 2, executor=executor, sent_share=1.0)
        assert_same_numbers(numbers(same.state), numbers(plain.state))
        assert not plain.state.groups[0].wire
        assert [{n: v for n, v in row.items() if n != "residual"} for row in got] == rows
        assert all(row["residual"] == 0.0 for row in got if name != "local")  # which sends nothing


@pytest.mark.parametrize("codec", [c for c in OF_CODECS if c != "none"])
@pytest.mark.parametrize("name", ["scaffold", "fedbn"])
def test_executors_and_a_resumed_run_give_the_same_numbers(name: str, codec: str) -> None:
    scenario = SOME.override(dataset="digits", model="fedgen-cnn", features=8) if name == "fedbn" else SOME
    stack, loop = (compressed(name, codec, scenario, executor=e) for e in ("stack", "loop"))
    rows, apart = play(stack, 2), 1e-6 if codec == "topk" else 1e-12  # a last bit may decide which of two is sent
    assert_close(play(loop, 2), rows, rtol=0, atol=apart)
    again, got = resumed(name, codec, 2, scenario=scenario)
    assert got == rows
    assert_same_numbers(numbers(again.state), numbers(stack.state))
    for a, b in zip(again.state.groups, stack.state.groups, strict=True):
        assert_same_numbers(a.wire, b.wire)
    split = simulate(name, scenario, groups=[[0, 3], [1, 2, 4]], compress=codec, **EARLY[name])
    assert_close(play(split, 2), rows, rtol=0, atol=apart)


@pytest.mark.parametrize("codec", ["int8", "randk", "topk"])
def test_seeds_in_one_stack_have_the_numbers_of_single_runs(codec: str) -> None:
    together, alone = both("fedavg", SOME, {"compress": codec})
    require_equal(together, alone)
    left = [run.state.groups[0].wire.get("residual", torch.zeros(1)) for run in (*together.runs, *alone)]
    for ours, theirs in zip(left[: len(SEEDS)], left[len(SEEDS) :], strict=True):
        assert_close(ours, theirs, **TIGHT)


@pytest.mark.parametrize("codec", ["sign", "topk", "randk"])
def test_what_was_sent_differs_from_all_updates_by_what_is_left(codec: str) -> None:
    sim = compressed("fedavg", codec)
    update = {n: torch.randn(3, *t.shape, dtype=torch.float64) for n, t in sorted(sim.state.server["shared"].items())}
    kept: dict[str, Tensor] = {}
    total = {n: torch.zeros_like(t) for n, t in update.items()}
    for t in range(1, 21):
        sent = Codec().apply(update, Context(sim.setup, t, torch.arange(3), {}, kept, {}))
        total = {n: total[n] + v for n, v in sent.update.items()}
    left = dict(zip(update, kept["residual"].split([t[0].numel() for t in update.values()], 1), strict=True))
    for n, v in update.items():
        assert_close(20 * v - total[n], left[n].reshape(v.shape), rtol=0, atol=1e-10)
    assert all(v.abs().max() > 0 for v in left.values())


def test_only_who_takes_part_has_something_left() -> None:
    sim = compressed("fedavg", "topk")
    row, *_ = play(sim, 1)
    left = sim.state.groups[0].wire["residual"]
    chosen = engine.participants(sim.setup, 1).tolist()
    assert [bool(e.any()) for e in left] == [k in chosen for k in range(5)]
    assert row["residual"] == pytest.approx(left.norm(dim=1).mean().item())
    before = left.clone()
    play(sim, 1)
    absent = [k for k in range(5) if k not in engine.participants(sim.setup, 2).tolist()]
    assert torch.equal(sim.state.groups[0].wire["residual"][absent], before[absent])


@pytest.mark.parametrize("codec", OF_CODECS)
def test_bytes_are_those_of_the_codec_and_of_what_it_does_not_take(codec: str) -> None:
    """Of BatchNorm's statistics and counters, and of scaffold's control variates, which fp16 and int8 take too."""
    sim = compressed("scaffold", codec, BATCHNORM.override(clients=5, rounds=3))
    (row,) = play(sim, 1)
    shared, task = sim.state.server["shared"], sim.setup.task
    trained = [shared[n].numel() for n in sorted(shared) if n in task.parameters]
    others = [t.numel() for n, t in shared.items() if n not in task.parameters and t.is_floating_point()]
    others += trained  # the control variates
    counters = [8 * t.numel() for t in shared.values() if not t.is_floating_point()]
    plain = {"none": 8, "fp16": 2, "int8": 1}.get(codec, 8)
    scales = 8 * len(others) if codec == "int8" else 0
    of_update = 8 * sum(trained) if codec == "none" else codecs.length(sim.setup.scenario, trained, 8).bytes
    rows_sent = 8  # n_k
    assert counters
    assert row["up_bytes"] == 5 * (of_update + plain * sum(others) + scales + sum(counters) + rows_sent)


@pytest.mark.parametrize("codec", [c for c in OF_CODECS if c not in ("none", *codecs.OF_ALL)])
def test_running_statistics_are_sent_as_they_are(codec: str) -> None:
    sim = compressed("fedavg", codec, BATCHNORM.override(clients=5))
    seen = record_uploads(sim)
    play(sim, 1)
    untrained = [n for n in seen[0]["shared"] if n not in sim.setup.task.parameters]
    assert untrained
    plain = compressed("fedavg", "none", BATCHNORM.override(clients=5))
    as_sent = record_uploads(plain)
    play(plain, 1)
    for n in untrained:
        assert torch.equal(seen[0]["shared"][n], as_sent[0]["shared"][n])


@pytest.mark.parametrize("name", ["fedamp", "fedfomo", "fedproto", "local", "gfpl", "fedala"])
@pytest.mark.parametrize("codec", codecs.OF_ALL)
def test_what_takes_no_updates_is_sent_shorter_by_the_codecs_of_all(name: str, codec: str) -> None:
    plain, short = (play(compressed(name, c, DIGITS), 2)[-1] for c in ("none", codec))
    assert (short["up_bytes"] < plain["up_bytes"]) == (name != "local")
    assert short["down_bytes"] == plain["down_bytes"] or name in ("fedfomo", "gfpl")


def test_half_precision_ends_a_run_whose_numbers_it_cannot_hold() -> None:
    sim = compressed("fedavg", "fp16", DIGITS.override(lr=1.0, momentum=0.0))
    for n, t in sim.state.server["shared"].items():
        if n == "head.bias":
            t += 1e9  # the softmax is a step, and its gradient does not grow
    update = {"w": torch.full((1, 3), 65_505.0)}
    assert Codec().apply(update, Context(sim.setup, 1, torch.arange(1), {}, {}, {})).update["w"].tolist() == [
        [65_504.0] * 3
    ]
    with pytest.raises(Diverged, match="65,504"):
        Codec().apply({"w": torch.full((1, 3), 66_000.0)}, Context(sim.setup, 1, torch.arange(1), {}, {}, {}))


def test_what_would_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory.free("cpu") > 2**20
    monkeypatch.setattr(memory, "free", lambda device: 1e4)
    with pytest.raises(UserError, match=r"keeps [\d,]+ numbers of each of 5 clients"):
        compressed("fedavg", "topk")
    compressed("fedavg", "qsgd")
    compressed("fedavg", "topk", error_feedback=False)


@pytest.mark.long
def test_a_tenth_of_the_numbers_is_almost_as_good_after_60_rounds() -> None:
    scenario = Scenario(model="mlp", features=32, clients=10, ways=4, lr=0.05, rounds=60, all_classes=0)
    best = {}
    for codec in ("none", "topk"):
        experiment = Experiment(algorithm="fedavg", scenario=scenario)
        sim = Simulation(experiment, {"compress": codec}, partitioning.make(scenario, 0))
        best[codec] = play(sim, 60)[-1]
    assert abs(best["topk"]["test_acc"] - best["none"]["test_acc"]) <= 0.02
    assert best["topk"]["up_bytes"] < 0.15 * best["none"]["up_bytes"]
    assert 0.5 < best["none"]["test_acc"]
