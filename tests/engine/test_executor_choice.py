"""Which executor a user's own code gets: tried once, timed once, told in a line, and the same from then on."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from support.helpers import DIGITS, assert_same_numbers, numbers, play, random_federation
from support.rows import first
from support.user_algorithms import NETS, own_net

from fedtune import tracing
from fedtune.core.errors import UserError
from fedtune.engine import executor_choice, stacked_code
from fedtune.engine.simulation import Seeds, Simulation, settled
from fedtune.experiment import partitioning, registry
from fedtune.experiment.experiment import Experiment
from fedtune.tuning.options.options import ExperimentOptions
from fedtune.tuning.options.search import SearchOptions
from fedtune.user_code import user_files

DATA = random_federation([5, 9, 2, 7])
SMALL = DIGITS.override(clients=4)
LINES = {
    "item": ("batch.y.float().mean().item() * m['head.bias'].sum()", "calling .item() on a Tensor"),
    "float": ("float(batch.y[0]) * m['head.bias'].sum()", "calling .item() on a Tensor"),
    "if": ("(m['head.bias'].sum() if batch.y[0] > 1 else 0)", "data-dependent control flow"),
    "mask": ("m['head.bias'][m['head.bias'] > 0].sum()", "dynamic shape"),
    "numpy": ("torch.tensor(batch.x.numpy()).mean()", "doesn't have storage"),
    "one_hot": ("torch.nn.functional.one_hot(batch.y).float().mean()", "num_classes"),
    "empty": (
        "torch.zeros(4, dtype=batch.x.dtype).copy_(m['head.bias'][:4]).sum()",
        "is not possible because there exists a Tensor",
    ),
}
CODE = """
import torch
from dataclasses import dataclass
from fedtune.experiment.algorithm import Algorithm

@dataclass(frozen=True)
class Own(Algorithm):
    shared = ("body", "head")

    def loss(self, m, batch, down):
        plain = super().loss(m, batch, down)
        return plain + {line}
"""


def own(tmp_path: Path, line: str = "0") -> str:
    (tmp_path / "own.py").write_text(CODE.format(line=line))
    return user_files.take(str(tmp_path / "own.py"))[0]


@pytest.mark.parametrize("kind", first(LINES, 3))
def test_code_that_vmap_cannot_run_is_told_in_two_lines_or_falls_back_with_one(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line, why = LINES[kind]
    name, place = own(tmp_path, line), f"{tmp_path}/own.py:12"
    for stacked in (
        Simulation(Experiment(algorithm=name, scenario=SMALL, executor="stack"), {}, DATA).step,
        lambda: settled(Experiment(algorithm=name, scenario=SMALL, executor="stack"), {}, DATA),
    ):
        with pytest.raises(UserError) as told:
            stacked()
        first, second = str(told.value).split("\n")
        assert first.startswith(f"client code cannot run stacked: at {place} it ") and why in first
        assert second.startswith("write it with masks (torch.where, one-hot sums), or give --executor loop:")
    capsys.readouterr()
    auto = Simulation(Experiment(algorithm=name, scenario=SMALL), {}, DATA)
    (said,) = capsys.readouterr().err.splitlines()
    assert place in said and why in said and "one after the other (executor loop)" in said
    assert [g.executor for g in auto.state.groups] == ["loop"]
    loop = Simulation(Experiment(algorithm=name, scenario=SMALL, executor="loop"), {}, DATA)
    assert play(auto, 1) == play(loop, 1)
    assert_same_numbers(numbers(auto.state), numbers(loop.state))


def test_a_model_without_a_rule_is_looped_and_named_by_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = next(i for i, text in enumerate(NETS.read_text().splitlines(), 1) if "the line of the LSTM" in text)
    mixed = SMALL.override(model=f"{own_net('heavy')},{own_net('recurrent')}", features=8)
    for scenario in (mixed, mixed.override(model=own_net("recurrent"))):
        found = settled(Experiment(algorithm="local", scenario=scenario), {}, DATA)
        assert found.executor == "loop"
        said = capsys.readouterr().err
        assert f"user_nets.py:{line} it raises RuntimeError: Batching rule not implemented for aten::lstm" in said


def test_code_that_does_not_run_at_all_is_refused_with_its_line_before_any_round(tmp_path: Path) -> None:
    name = own(tmp_path, "m['body.nothing'].sum()")
    with pytest.raises(UserError, match=rf"^{re.escape(str(tmp_path))}/own.py:12: KeyError: 'body.nothing'$"):
        settled(Experiment(algorithm=name, scenario=SMALL), {}, DATA)


def test_code_is_tried_where_a_partition_file_says_how_many_clients_there_are(tmp_path: Path) -> None:
    row = np.arange(24)
    np.savez(tmp_path / "who.npz", row=row, client=row % 4, split=row // 4 % 3)
    own(tmp_path)
    fields = {"partition": str(tmp_path / "who.npz")}
    experiment = ExperimentOptions(algo=str(tmp_path / "own.py"), fields=fields).experiment()
    data = partitioning.make(experiment.scenario, 0)
    assert data.clients == 4 and settled(experiment, {}, data).executor == "rule"


def test_code_that_can_be_stacked_is_run_by_the_rule_and_tried_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = torch.get_rng_state()
    found = settled(Experiment(algorithm=own(tmp_path), scenario=SMALL), {}, DATA)
    assert found.executor == "rule"
    assert capsys.readouterr().err == (
        "note: steps run eagerly, which is slower, because Own does not say pure = True; see docs/reference/hooks.md\n"
    )
    assert torch.equal(chance, torch.get_rng_state())
    monkeypatch.setattr(executor_choice, "_begun", lambda *_: pytest.fail("tried again"))
    assert settled(found, {}, DATA) == found
    assert Seeds(found, {}, {0: DATA, 1: DATA}).runs[1].state.groups[0].executor == "stack"


@pytest.mark.parametrize(("times", "best", "ratio"), [((3.0, 1.5), "loop", "2.0"), ((1.0, 2.5), "stack", "2.5")])
def test_a_model_that_no_rule_knows_is_timed_once_for_all_seeds(
    times: tuple[float, float],
    best: str,
    ratio: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls: list[str] = []
    seconds = dict(zip(("stack", "loop"), times, strict=True))

    rounds = executor_choice._rounds

    def timed(simulation: Simulation) -> list[dict[str, float]]:
        if simulation.setup.federation.train.counts.max() <= executor_choice.ROWS:  # it is tried
            return rounds(simulation)
        calls.append(simulation.state.groups[0].executor)
        return [{"seconds": 9.0}, {"seconds": seconds[calls[-1]]}]

    monkeypatch.setattr(executor_choice, "_rounds", timed)
    runs = Seeds(
        Experiment(algorithm="fedavg", scenario=SMALL.override(model=own_net("heavy"))), {}, {0: DATA, 1: DATA}
    )
    assert calls == ["stack", "loop"]
    assert {g.executor for run in runs.runs for g in run.state.groups} == {best}
    assert f"executor {best} for user_nets.py:heavy: {ratio} times as fast" in capsys.readouterr().err


def test_a_round_that_is_timed_is_replayed_as_those_of_a_run_are() -> None:
    experiment = Experiment(algorithm="fedavg", scenario=DIGITS.override(model=own_net("heavy"), clients=3))
    data = random_federation([20] * 3)
    timed = executor_choice._begun(experiment, {}, data, Simulation, "stack")
    executor_choice._rounds(timed)
    net = timed.state.groups[0].net
    verified = [key[0] for key, entry in tracing.recordings_of(net).items() if entry.verified]
    assert stacked_code.StackedStep in verified, stacked_code.reasons(net)


def test_our_own_are_neither_tried_nor_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_choice, "_begun", lambda *_: pytest.fail("tried"))
    for experiment in (
        Experiment(algorithm="gfpl", scenario=SMALL),
        Experiment(algorithm="local", scenario=SMALL.override(model="htmini3")),
    ):
        assert settled(experiment, {}, DATA) is experiment


def test_on_a_gpu_what_can_be_stacked_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_choice, "_faster", lambda *_: pytest.fail("timed"))
    experiment = Experiment(algorithm="fedavg", scenario=SMALL.override(model=own_net("heavy")), device="cuda")
    assert settled(experiment, {}, DATA).executor == "stack"


def test_a_record_gives_back_what_was_found() -> None:
    """A study that is resumed must not choose anew: by its clock it could choose the other one, with other figures."""
    record = {"options": SearchOptions(algo="fedavg").to_record(), "executor": "loop"}
    assert SearchOptions.from_record(record).executor == "loop"


STATEFUL = """
    def __post_init__(self):
        object.__setattr__(self, "seen", [0])

    def count(self):
        self.seen[0] += 1
        return self.seen[0]
"""
CACHED = "KEPT = {}\nfrom functools import lru_cache\n@lru_cache\ndef cached(x):\n    return 0 * x\n"


@pytest.mark.parametrize(
    ("line", "more", "executor"),
    [
        ("(KEPT.append(1) or len(KEPT)) * m['head.bias'].sum()", "KEPT = []\n", "loop"),
        ("self.count() * m['head.bias'].sum()", STATEFUL, "loop"),
        ("KEPT.setdefault('shift', 0) + cached(1)", CACHED, "rule"),  # computed once, and never changes: no memory
    ],
)
def test_an_algorithm_that_remembers_is_looped_and_refused_as_pure(
    line: str, more: str, executor: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own(tmp_path, line)
    code = (tmp_path / "own.py").read_text() + more
    (tmp_path / "own.py").write_text(code)
    name = user_files.take(str(tmp_path / "own.py"))[0]
    assert settled(Experiment(algorithm=name, scenario=SMALL), {}, DATA).executor == executor
    said = "because client code cannot run stacked: the algorithm gives"
    assert (said in (err := capsys.readouterr().err) and "it remembers something" in err) == (executor == "loop")
    (tmp_path / "own.py").write_text(code.replace("    shared =", "    pure = True\n    shared ="))
    pure = Experiment(algorithm=user_files.take(str(tmp_path / "own.py"))[0], scenario=SMALL)
    if executor == "loop":
        with pytest.raises(UserError, match="algorithm Own says pure = True, but gives .* when a round runs again"):
            settled(pure, {}, DATA)
    else:
        assert settled(pure, {}, DATA).executor == "rule"


@pytest.mark.parametrize("algorithm", first(["fesem", "fedproto", "gfpl", "scaffold"], 1))
def test_built_in_code_in_a_users_file_stays_stacked(
    algorithm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever their servers and clients hold: numbers, counts, what is true or false."""
    source = Path(__file__).parents[2] / "trainables" / f"{algorithm}.py"
    (tmp_path / "own.py").write_text(source.read_text())
    name = user_files.take(f"{tmp_path}/own.py:{registry.find(algorithm).__name__}")[0]
    assert (
        settled(Experiment(algorithm=name, scenario=SMALL), {}, DATA).executor == "rule"
        and capsys.readouterr().err == ""
    )
