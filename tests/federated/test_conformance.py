"""What every algorithm must keep, run on every file in `trainables/`: a new one is covered without editing this file.

Only rare events need a line, in helpers.EARLY, and pairs of values whose effect is subtle one in PAIRS below.
"""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from typing import Any

import pytest
import torch
from support.helpers import (
    CLOCK,
    DIGITS,
    EARLY,
    SKEWED,
    assert_close_numbers,
    assert_close_rows,
    assert_same_numbers,
    copied,
    flat,
    numbers,
    play,
    random_federation,
    simulate,
)  # fmt: skip
from torch import Tensor

from fedtune.core.hyper import Knob, knobs
from fedtune.core.metrics import METRICS
from fedtune.core.trees import Ragged
from fedtune.federated import engine, evaluation
from fedtune.federated.algorithm import Algorithm, Phase, first_round
from fedtune.federated.experiment import fitting
from fedtune.federated.registry import find, names
from fedtune.federated.scenario import Scenario
from fedtune.federated.simulation import Simulation

ALL = names()
BATCHNORM = Scenario(model="fedgen-cnn", features=8)
SCHEDULES: dict[str, tuple[Scenario, dict[str, Any]]] = {
    "ways-shots": (DIGITS, {}),
    "dirichlet": (SKEWED, {"batch": 32}),
    "few take part": (DIGITS.override(participation=0.4), {}),
    "steps instead of epochs": (DIGITS, {"local_steps": 3}),
    "two epochs": (DIGITS, {"local_epochs": 2, "batch": 5}),
    "adam": (DIGITS, {"optimizer": "adam", "lr": 0.003}),
    "weight decay": (DIGITS, {"weight_decay": 0.01, "momentum": 0.9}),
    "convolutions": (DIGITS.override(model="cnn8", shots=4, shots_spread=1), {}),
}


def run(name: str, rounds: int = 3, **options: Any) -> tuple[Simulation, list[dict[str, Any]]]:
    sim = simulate(name, **(EARLY.get(name, {}) | options))
    return sim, play(sim, rounds)


@cache
def reference(
    name: str, scenario: Scenario, config: tuple[tuple[str, Any], ...] = (), rounds: int = 3
) -> tuple[Simulation, list[dict[str, Any]]]:
    """A run on all clients stacked that several tests compare with: nobody trains it further."""
    return run(name, rounds, scenario=scenario, **dict(config))


def assert_stack_equals_loop(name: str, **options: Any) -> None:
    if "data" in options:
        stack, rows = run(name, executor="stack", **options)
    else:
        stack, rows = reference(name, options["scenario"], tuple((n, v) for n, v in options.items() if n != "scenario"))
    loop, wanted = run(name, executor="loop", **options)
    assert stack.state.groups[0].executor != loop.state.groups[0].executor
    assert_close_numbers(numbers(stack.state), numbers(loop.state))
    assert_close_rows(rows, wanted)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ALL)
def test_stack_equals_loop(name: str, schedule: str) -> None:
    scenario, config = SCHEDULES[schedule]
    assert_stack_equals_loop(name, scenario=scenario, **config)


@pytest.mark.parametrize("rule", ["averaged", "personal"])
@pytest.mark.parametrize("name", ALL)
def test_stack_equals_loop_with_batch_norm_and_unequal_sizes(name: str, rule: str) -> None:
    assert_stack_equals_loop(name, scenario=BATCHNORM, data=random_federation([5, 13, 9, 2]), batch_norm=rule)


@pytest.mark.parametrize("name", ALL)
def test_stack_equals_loop_when_a_class_has_one_holder_or_none(name: str) -> None:
    data = random_federation([9, 6, 8], [[0, 1], [1], [0, 1, 3]], total=5)  # 3: one holder; 2 and 4: none
    assert_stack_equals_loop(name, scenario=DIGITS, data=data)


@pytest.mark.parametrize("name", ALL)
def test_stack_equals_loop_with_one_client(name: str) -> None:
    assert_stack_equals_loop(name, scenario=DIGITS, data=random_federation([11]))


@pytest.mark.parametrize("groups", [[[0, 1, 2], [3, 4]], [[1, 4], [0, 3], [2]]], ids=["two", "three, shuffled"])
@pytest.mark.parametrize("scenario", [DIGITS, DIGITS.override(participation=0.4)], ids=["all", "few"])
@pytest.mark.parametrize("name", ALL)
def test_grouping_of_clients_changes_nothing(name: str, scenario: Scenario, groups: list) -> None:
    whole, wanted = reference(name, scenario)
    split, rows = run(name, scenario=scenario, groups=groups)
    assert len(split.state.groups) == len(groups)
    assert_close_numbers(numbers(split.state), numbers(whole.state))
    assert_close_rows(rows, wanted)


MIXED = Scenario(model="htmini3", features=12, clients=5, participation=0.8)
FITTING = [line.split(" ")[0] for line in fitting(MIXED)]


@pytest.mark.parametrize("name", FITTING)
def test_stack_equals_loop_and_resumes_with_mixed_architectures(
    name: str, tmp_path: Any
) -> None:
    config = dict(find(name).for_mixed_models)
    assert_stack_equals_loop(name, scenario=MIXED, **config)
    whole, rows = reference(name, MIXED, tuple(config.items()))
    cut, _ = run(name, 1, scenario=MIXED, **config)
    cut.save(tmp_path / "state.pt")
    rest, _ = run(name, 0, scenario=MIXED, **config)
    rest.load(tmp_path / "state.pt")
    assert_close_rows(play(rest, 2), rows[1:])
    assert_same_numbers(numbers(rest.state), numbers(whole.state))


def test_which_algorithms_run_on_mixed_architectures() -> None:
    assert set(FITTING) >= {"local", "fedproto", "gfpl", "fedgen"} and not set(FITTING) & {"fedavg", "fedper", "fedpa"}


@pytest.mark.parametrize("cut", [1, 2])
@pytest.mark.parametrize("name", ALL)
def test_a_checkpoint_resumes_bit_for_bit(name: str, cut: int, tmp_path: Any) -> None:
    scenario = DIGITS.override(participation=0.6)
    whole, wanted = reference(name, scenario, rounds=4)
    first, rows = run(name, rounds=cut, scenario=scenario)
    first.save(tmp_path / "state.pt")
    torch.load(tmp_path / "state.pt", weights_only=True)
    second, _ = run(name, rounds=0, scenario=scenario)
    second.load(tmp_path / "state.pt")
    assert_same_numbers(numbers(second.state), numbers(first.state))
    assert rows + play(second, 4 - cut) == wanted
    assert_same_numbers(numbers(second.state), numbers(whole.state))
    assert second.state.round == 4 and second.state.bytes == whole.state.bytes


@pytest.mark.parametrize("executor", ["stack", "loop"])
@pytest.mark.parametrize("name", ALL)
def test_a_seed_determines_the_run(name: str, executor: str) -> None:
    data = random_federation([5, 9, 7])
    (a, rows), (b, again), (c, _) = (run(name, data=data, executor=executor, seed=seed) for seed in (3, 3, 4))
    assert rows == again
    assert_same_numbers(numbers(a.state), numbers(b.state))
    mine, other = numbers(a.state), numbers(c.state)
    moved = [n for n in mine if "head" in n]
    assert moved and all(not torch.equal(mine[n], other[n]) for n in moved)


@pytest.mark.parametrize("name", ALL)
def test_declarations_are_complete_and_defaults_lie_within_them(name: str) -> None:
    cls = find(name)
    declared = knobs(cls)
    assert {f.name for f in dataclasses.fields(cls)} == set(declared), "a field that is no hyperparameter hides state"
    assert cls.__module__ == f"trainables.{name}" and cls.__dataclass_params__.frozen
    for knob in declared.values():
        assert len(knob.help) > 10, f"{knob.name} says nothing of itself"
        assert knob.check(knob.default) == knob.default and type(knob.check(knob.default)) is type(knob.default)
        assert knob.searchable, f"{knob.name} has neither range nor choices"
        if knob.low is not None and knob.default is not None and knob.default not in knob.extra_values:
            assert knob.low <= knob.default <= knob.high
        if knob.log:
            assert knob.low > 0
        assert isinstance(first_round(cls(), knob.name), int) and first_round(cls(), knob.name) >= 1
    assert set(cls.schedule) <= set(declared)
    assert not set(declared) & {f.name for f in dataclasses.fields(Scenario)}, "two meanings of one name"


class Wire:
    """Every message of a run, taken where it leaves `broadcast` and where it enters `aggregate`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cls: type[Algorithm]) -> None:
        self.down: list[tuple[Tensor, dict]] = []
        self.up: list[dict] = []
        broadcast, aggregate = cls.broadcast, cls.aggregate

        def sent(alg: Algorithm, server: dict, ids: Tensor, task: Any) -> dict:
            self.down.append((ids, broadcast(alg, server, ids, task)))
            return self.down[-1][1]

        def taken(alg: Algorithm, server: dict, up: dict, task: Any) -> dict:
            assert up["ids"].tolist() == self.down[-1][0].tolist() if self.down else True
            self.up.append({n: tree for n, tree in up.items() if n != "ids"})  # the server knows whom it hears
            return aggregate(alg, server, up, task)

        monkeypatch.setattr(cls, "broadcast", sent)
        monkeypatch.setattr(cls, "aggregate", taken)


def counted(message: Any) -> tuple[int, int, int]:
    """Real numbers, whole numbers and bytes of a message, entry by entry and client by client."""
    if isinstance(message, dict):
        parts = [counted(m) for m in message.values()]
        return tuple(map(sum, zip(*parts, strict=True))) if parts else (0, 0, 0)  # type: ignore[return-value]
    if isinstance(message, Ragged):
        numbers_, bitmaps = 0, 0
        for values, present in zip(message.values, message.present, strict=True):
            numbers_ += values[present].numel()
            bitmaps += math.ceil(present.numel() / 8)
        real, width = message.values.is_floating_point(), message.values.element_size()
    else:
        numbers_, bitmaps, real, width = sum(t.numel() for t in message), 0, message.is_floating_point(), 0
        width = message.element_size()
    return (numbers_, 0, numbers_ * width + bitmaps) if real else (0, numbers_, numbers_ * width + bitmaps)


@pytest.mark.parametrize("name", ALL)
def test_messages_hold_what_is_declared_and_are_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = random_federation([9, 6, 8, 5], [[0, 1], [1], [0, 1, 3], [3, 4, 0]], total=6)
    sim = simulate(name, DIGITS.override(participation=0.75), data, **EARLY.get(name, {}))
    cls, total = type(sim.setting.algorithm), 0
    wire = Wire(monkeypatch, cls)
    shared = sim.setting.algorithm.shared
    named, sent = set(cls.sends) | ({"shared"} if shared else set()), set()
    for t in range(1, 5):
        wire.down.clear(), wire.up.clear()
        sim.state, row = engine.run_round(sim.setting, sim.state)
        actions = [a for a in sim.setting.algorithm.round(sim.setting.task_in(t)) if not isinstance(a, Phase)]
        assert len(wire.up) == actions.count("up") and len(wire.down) == actions.count("down")
        chosen = engine.participants(sim.setting, t).tolist()
        for ids, message in wire.down:
            assert ids.tolist() == chosen and set(message) <= named
            sent |= set(message)
            assert all(len(leaf) == len(ids) for leaf in flat(message).values())
        for message in wire.up:
            assert all(len(leaf) == len(chosen) for leaf in flat(message).values())
            if shared:
                assert {n.split(".")[0] for n in message["shared"]} == set(shared)
                assert message["rows"].tolist() == [int(data.train.counts[k]) for k in chosen]
        for way, messages in (("down", [m for _, m in wire.down]), ("up", wire.up)):
            floats, ints, size = map(sum, zip((0, 0, 0), *(counted(m) for m in messages), strict=True))
            assert (row[f"{way}_floats"], row[f"{way}_ints"], row[f"{way}_bytes"]) == (floats, ints, size)
            total += size
        assert row["comm_mb"] == total / 1e6 and sim.state.bytes == total
    assert sent == named


@pytest.mark.parametrize("name", ALL)
def test_clients_that_do_not_participate_stay_unchanged(name: str) -> None:
    sim = simulate(name, DIGITS.override(participation=0.4), **EARLY.get(name, {}))
    for t in range(1, 4):
        before = copied(numbers(sim.state))
        sim.state, _ = engine.run_round(sim.setting, sim.state)
        chosen = set(engine.participants(sim.setting, t).tolist())
        after = numbers(sim.state)
        own = [n for n in before if n.startswith("client ")]
        outside = {n for n in own if int(n.split("/")[0].split()[1]) not in chosen}
        assert not own or outside
        assert_same_numbers({n: after[n] for n in outside}, {n: before[n] for n in outside})
        assert any(not torch.equal(after[n], before[n]) for n in before if n not in outside)


@pytest.mark.parametrize("executor", ["stack", "loop"])
@pytest.mark.parametrize("name", ALL)
def test_a_round_changes_none_of_its_inputs(name: str, executor: str) -> None:
    sim = simulate(name, BATCHNORM, random_federation([5, 7, 3]), executor=executor, **EARLY.get(name, {}))
    f = sim.setting.federation
    for _ in range(3):
        state, kept = sim.state, copied(numbers(sim.state))
        rows, chance = copied({"x": f.x, "y": f.y, "rows": f.train.rows}), torch.get_rng_state()
        sim.state, _ = engine.run_round(sim.setting, state)
        evaluation.evaluate(sim.setting, sim.state)
        assert_same_numbers(numbers(state), kept)
        assert_same_numbers({"x": f.x, "y": f.y, "rows": f.train.rows}, rows)
        assert torch.equal(torch.get_rng_state(), chance), "drawn from the global stream"
        assert sim.state.round == state.round + 1


# hyperparameters whose effect needs a chosen pair: (algorithm, name) -> (one value, the other, what else must hold)
PAIRS: dict[tuple[str, str], tuple[Any, Any, dict[str, Any]]] = {
    ("gfpl", "linkage"): ("complete", "single", {"threshold": 40.0}),
    ("gfpl", "threshold"): (0.1, 300.0, {}),
    ("gfpl", "variance_floor"): (1e-6, 0.1, {}),
    ("gfpl", "start"): (2, 3, {}),
    ("gfpl", "every"): (2, 3, {}),
    ("gfpl", "weighing"): ("rows", "pi", {"threshold": 300.0}),
    ("gfpl", "components"): (1, 3, {}),
    ("fedpa", "po_floor"): (0.1, 0.5, {"lam_po": 1.0, "po_decay": 0.9}),
    ("fedgenp", "patience"): (5, 0, {"lr": 1e-5, "momentum": 0.0, "a": 0.1}),
    ("fedgenp", "b_decay"): (0.9, 1.0, {"b": 1.0}),
    ("fedpa", "gamma_ad"): (0.0, 2.0, {"bounded": False}),
    ("fedpa", "ad_decay"): (0.9, 1.0, {"bounded": False}),
    ("fedpa", "targets"): ("new", "last", {"bounded": False}),
    ("fedhkd", "least_share"): (0.0, 0.5, {}),
}


def another(knob: Knob, value: Any) -> Any:
    if knob.choices:
        return next(c for c in knob.choices if c != value)
    assert knob.low is not None and knob.high is not None
    far = knob.high if value is None or value < (knob.low * knob.high) ** 0.5 else knob.low
    return knob.check(far)


def later_knobs() -> list[tuple[str, str]]:
    return [
        (name, knob)
        for name in ALL
        for knob in knobs(find(name))
        if first_round(find(name)(**EARLY.get(name, {})), knob) > 1
    ]


@pytest.mark.parametrize(("name", "knob"), later_knobs())
def test_a_hyperparameter_takes_effect_in_its_first_round_and_not_before(name: str, knob: str) -> None:
    early = EARLY.get(name, {})
    value = getattr(find(name)(**early), knob)
    one, other, more = PAIRS.get((name, knob), (value, another(knobs(find(name))[knob], value), {}))
    configs = [early | more | {knob: v} for v in (one, other)]
    own = knobs(find(name))
    first = min(first_round(find(name)(**{n: v for n, v in c.items() if n in own}), knob) for c in configs)
    scenario = DIGITS.override(shots=12, ways=3, ways_spread=1, clients=4)
    sims = [simulate(name, scenario, **c) for c in configs]
    rows = [[], []]
    for _ in range(first - 1):
        for sim, seen in zip(sims, rows, strict=True):
            seen += play(sim, 1)
    quality = [[{k: v for k, v in row.items() if "val" in k or "test" in k} for row in seen] for seen in rows]
    assert quality[0] == quality[1] and quality[0][0]
    for _ in range(3):
        for sim in sims:
            play(sim, 1)
    a, b = (numbers(sim.state) for sim in sims)
    models = [n for n in a if n.startswith(("client ", "server/shared"))]
    assert any(a[n].shape != b[n].shape or not torch.equal(a[n], b[n]) for n in models)


@pytest.mark.parametrize("name", ALL)
def test_every_row_holds_the_promised_metrics(name: str) -> None:
    sim, rows = run(name, rounds=2)
    again = sim.step()
    always = {metric for metric, declared in METRICS.items() if not declared.search_only}
    assert always <= set(again) and set(CLOCK) <= set(again)
    for row in rows:
        assert row["round"] >= 1 and 0 <= row["val_acc"] <= 1 and 0 <= row["test_acc_worst10"] <= row["test_acc"] <= 1
