"""On a GPU every tensor would lie where it should, and the same figures come out: tried without one, by marks.

What only a GPU can show is in test_cuda.py.
"""

from functools import cache

import pytest
import torch
from support import placement
from support.algorithms import every
from support.helpers import CLOCK, EARLY
from support.rows import first
from support.user_algorithms import known_as, own_net
from torch import nn

from fedtune.core.errors import UserError
from fedtune.core.trees import named
from fedtune.engine import chunks, model_file
from fedtune.engine.simulation import Seeds, Simulation
from fedtune.experiment import initial_weights, partitioning, registry, user_metrics
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.trainables.fedavg import FedAvg
from fedtune.user_code import user_files

FEW = {"clients": 3, "ways": 3, "ways_spread": 1, "shots": 4, "shots_spread": 2, "val_shots": 2, "test_shots": 2}
DIGITS = Scenario(model="mlp", features=12, batch=4, all_classes=20, rounds=3, **FEW)
EXECUTORS = ["stack", "loop"]
dealt = cache(partitioning.make)


def on(device, name, scenario=DIGITS, executor="stack", config=None, **fields):
    """A run in float64, ready for its first round."""
    experiment = Experiment(algorithm=name, scenario=scenario, executor=executor, device=device, **fields)
    return Simulation(experiment, EARLY.get(name, {}) if config is None else config, dealt(scenario, 0), torch.float64)


def rows_of(sim, rounds):
    return [{n: v for n, v in sim.step().items() if n not in CLOCK} for _ in range(rounds)]


def assert_on_gpu(sim):
    """All that a run holds lies there."""
    data, groups = sim.setup.federation, tuple((g.ids, g.tensors, g.kept, g.wire) for g in sim.state.groups)
    held = named((sim.state.server, groups, data.x, data.y, data.train, data.val, data.test))
    assert {n for n, t in held.items() if placement.where(t) == placement.CPU} == set()


def assert_alike(got, want):
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a == {n: v if v is None else pytest.approx(v, rel=1e-9, abs=1e-12, nan_ok=True) for n, v in b.items()}


def check(name, scenario=DIGITS, executor="stack", config=None, **fields):
    """Train on both devices: what is asked of a run on the GPU."""
    with placement.watched() as faults:
        sim = on("cuda", name, scenario, executor, config, **fields)
        found = rows_of(sim, scenario.rounds)
        assert_on_gpu(sim)
    assert not faults
    assert_alike(found, rows_of(on("cpu", name, scenario, executor, config, **fields), scenario.rounds))


@pytest.mark.parametrize("name", every(turn=0))  # what is wrong in an algorithm's methods either executor shows
def test_an_algorithm_trains_its_clients_one_by_one_on_the_gpu(name):
    check(name, DIGITS.override(clients=2, rounds=3 if EARLY[name] else 2), "loop")


@pytest.mark.parametrize("name", every(turn=1))
def test_an_algorithm_trains_stacks_of_clients_there_in_several_chunks(name, monkeypatch):
    for limit, value in {"ROWS_AT_ONCE": 32, "BAND": 1, "STEP": 1, "BLOCK": 8}.items():
        monkeypatch.setattr(chunks, limit, value)
    unlike = DIGITS.override(clients=4, shots=6, shots_spread=5, batch=8, rounds=3 if EARLY[name] else 2)
    check(name, unlike)


HALF = {"clients": 4, "participation": 0.5}
SETTINGS = [  # algorithm, what is other than in DIGITS
    *((name, {"model": "fedgen-cnn", "features": 10, "shots": 3, "rounds": 2, "batch_norm": "personal"})
      for name in ("fedbn", "fedgen", "gfpl")),
    *((name, {"model": "htmini3", "clients": 4, "rounds": 2}) for name in ("fedproto", "fml", "lgfedavg")),
    *((name, {"clients": 4, "participation": 0.5, "eval_clients": 3}) for name in ("scaffold", "gfpl")),
    *((name, {"eval_clients": 2, "rounds": 2}) for name in ("ccvr", "fedavgft")),  # trained before they are scored
    *(("fedprox", {"rounds": 1, "optimizer": kind, "lr_decay": 0.9, "weight_decay": 0.1}) for kind in ("adam", "sgd")),
    *(("fedavg", {"evaluation": rule, "partition": "dirichlet", "floor": 12, "rounds": 1})
      for rule in ("pooled", "personal")),
    *((name, {"model": own_net(net), "features": 0, "rounds": 2}) for name, net in (
        ("fedavg", "dropout"), ("fedavg", "attention"), ("fedavg", "noisy"))),
    *(("fedavg", HALF | {"privacy": "client", "update_noise": 1.0, "clip_quantile": q, "update_clip": 0.5})
      for q in (0.0, 0.5)),
    *(("fedavg", HALF | {"compress": codec}) for codec in ("fp16", "int8", "qsgd", "sign", "topk", "randk")),
    ("fedproto", {"compress": "int8", "rounds": 2}),  # a table with absent entries
    ("fedper", HALF | {"privacy": "client", "update_noise": 1.0, "update_clip": 0.5, "compress": "topk"}),
    *((name, HALF | {"devices": kind, "lost_share": 0.3, "deadline": 9.0, "over_ask": 1.5})
      for name in ("scaffold", "fedproto") for kind in ("lognormal", "exponential")),
    *(("fedprox", HALF | {"devices": "lognormal", "selection": how}) for how in ("power-of-choice", "oort")),
]  # fmt: skip


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("name", "fields"), SETTINGS, ids=str)
def test_every_setting_is_trained_there(name, fields, executor, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1e9, 1e9))  # asked before a codec keeps residuals
    mixed = fields.get("model") == "htmini3"
    config = EARLY[name] | dict(registry.find(name).for_mixed_models) if mixed else None
    check(name, DIGITS.override(**fields), executor, config)


@pytest.mark.parametrize("name", first(["fedproto", "fedavg", "gfpl"], 1))
def test_seeds_that_train_as_one_stack_do(name):
    data = {seed: dealt(DIGITS, seed) for seed in range(2)}
    found = {}
    for device in ("cpu", "cuda"):
        with placement.watched() as faults:
            seeds = Seeds(
                Experiment(algorithm=name, scenario=DIGITS, executor="rule", device=device),
                EARLY[name],
                data,
                torch.float64,
            )
            found[device] = [rows for _ in range(3) for rows in seeds.steps().values()]
            if device == "cuda":
                for run in seeds.runs:
                    assert_on_gpu(run)
        assert not faults
    kept = {d: [{n: v for n, v in row.items() if n not in CLOCK} for row in rows] for d, rows in found.items()}
    assert_alike(kept["cuda"], kept["cpu"])


# files ---------------------------------------------------------------------------------------------------------------

FIRST_THEN = [("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda")]


@pytest.mark.parametrize(("first", "then"), FIRST_THEN)
@pytest.mark.parametrize("name", ["gfpl", "scaffold"])
def test_a_checkpoint_goes_on_on_either_device(name, first, then, tmp_path):
    scenario = DIGITS.override(clients=4, participation=0.5)
    with placement.watched() as faults:
        before = on(first, name, scenario)
        before.step()
        before.save(tmp_path / "state")
        if then == "cuda":
            after = on(then, name, scenario)
            after.load(tmp_path / "state")
            assert_on_gpu(after)
            found = rows_of(after, 2)
            assert_on_gpu(after)
    assert not faults
    if then == "cpu":  # where there is no GPU
        after = on(then, name, scenario)
        after.load(tmp_path / "state")
        found = rows_of(after, 2)
    assert_alike(found, rows_of(on("cpu", name, scenario), 3)[1:])


def test_a_saved_model_is_read_where_there_is_no_gpu_and_starts_others_there(tmp_path):
    file = tmp_path / "model.pt"
    with placement.watched() as faults:
        sim = on("cuda", "fedper")
        sim.step()
        model_file.write(file, Experiment(algorithm="fedper", scenario=DIGITS, device="cuda"), {}, sim)
    experiment, config, state = model_file.read(file)
    here = on("cpu", "fedper")
    here.load_state_dict(state)
    assert experiment.device == "cpu" and here.state.round == 1
    assert_alike(rows_of(here, 1), rows_of(on("cpu", "fedper"), 2)[1:])
    name, own = initial_weights.take(str(file))
    with placement.watched() as more:
        began = on("cuda", "fedper", start_from=name, own=(own,))
        began.step()
        assert_on_gpu(began)
    assert not faults + more


def test_a_file_says_where_its_tensors_lay(tmp_path):
    with placement.watched():
        there = torch.arange(3, device="cuda")
        torch.save({"there": there, "part": there[1:], "here": torch.ones(2)}, tmp_path / "file")
        kept = torch.load(tmp_path / "file")
        assert [str(t.device) for t in kept.values()] == ["cuda", "cuda", "cpu"]
    with pytest.raises(RuntimeError, match="CUDA"):
        torch.load(tmp_path / "file")


# users' code ---------------------------------------------------------------------------------------------------------

ALGORITHM = """
from dataclasses import dataclass
import torch
from fedtune import Algorithm, Noise, Phase

@dataclass(frozen=True)
class Mine(Algorithm):
    shared = ("body",)
    def init(self, task):
        return {"center": torch.zeros(task.features), "seen": torch.zeros(task.clients, dtype=torch.int64)}
    def keep(self, task):
        return {"rounds": torch.zeros(1)}
    def phases(self, task):
        return (Phase(self.loss, noise={"eps": Noise((task.features,))}),)
    def broadcast(self, server, ids, task):
        return super().broadcast(server, ids, task) | {"center": server["center"].expand(len(ids), -1)}
    def loss(self, m, batch, down):
        z = m.body(batch.x) + 0.1 * batch.eps["eps"] * torch.rand_like(batch.eps["eps"])
        return super().loss(m, batch, down) + (z.mean(0) - down["center"]).square().mean()
    def upload(self, m, data, down):
        z = m.body(data.x) * data.mask[:, None]
        return {"mean": z.sum(0) / data.mask.sum()}
    def remember(self, m, data, down):
        return {"rounds": data.client.kept["rounds"] + 1}
    def aggregate(self, server, up, task):
        seen = server["seen"].index_add(0, up["ids"], torch.ones_like(up["ids"]))
        return super().aggregate(server, up, task) | {"center": up["mean"].mean(0), "seen": seen}
    def report(self, server):
        return {"center_norm": server["center"].norm().item()}
"""
METRIC = """
def margin(scores, labels):
    two = scores.topk(2, dim=1).values
    return (two[:, 0] - two[:, 1]).mean()
"""


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_algorithm_a_metric_and_weights_of_files_do(executor, tmp_path):
    (tmp_path / "mine.py").write_text(ALGORITHM)
    (tmp_path / "margin.py").write_text(METRIC)
    torch.save(nn.Linear(12, 10).state_dict(prefix="head."), tmp_path / "head.pt")
    name, own = user_files.take_each(f"{tmp_path}/mine.py:Mine", registry.names())
    metrics, files = user_metrics.take((f"{tmp_path}/margin.py:margin",))
    start, file = initial_weights.take(f"{tmp_path}/head.pt:head")
    user_files.register(every := user_files.merged(own, files, [file]))
    scenario = DIGITS.override(participation=0.7)
    check(name, scenario, executor, {}, own=tuple(every), metrics=metrics, start_from=start, start="own")


@pytest.mark.parametrize("executor", EXECUTORS)
def test_numbers_that_client_code_draws_do(executor, monkeypatch):
    class Draws(FedAvg):
        def loss(self, m, batch, down):
            z = m.body(batch.x)
            return super().loss(m, batch, down) + (z * torch.rand(len(z), 1, device=z.device)).mean()

        def upload(self, m, data, down):
            z = m.body(data.x)
            return {"noisy": (z * torch.rand(len(z), 1, device=z.device)).mean(0)}

    known_as(monkeypatch, draws=Draws)
    monkeypatch.setattr(chunks, "ROWS_AT_ONCE", 20)
    check("draws", DIGITS.override(clients=5, rounds=2), executor)


# planted faults ------------------------------------------------------------------------------------------------------


class InLoss(FedAvg):
    def loss(self, m, batch, down):
        return super().loss(m, batch, down) + torch.zeros(10, dtype=torch.float64).dot(m["head.bias"])


class InAggregateByGenerator(FedAvg):
    def aggregate(self, server, up, task):
        up["rows"].double().normal_(generator=torch.Generator().manual_seed(0))
        return super().aggregate(server, up, task)


class InAggregateUnseen(FedAvg):
    """What it gives lies on the CPU, and nothing computes with it."""

    def init(self, task):
        return {"seen": torch.zeros(task.clients)}

    def aggregate(self, server, up, task):
        return super().aggregate(server, up, task) | {"seen": torch.zeros(task.clients)}


class InReport(FedAvg):
    def report(self, server):
        return {"bias_mean": float(server["shared"]["head.bias"].numpy().mean())}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("fault", [InLoss, InAggregateByGenerator, InAggregateUnseen, InReport])
def test_a_fault_in_an_algorithm_is_found_and_only_on_the_gpu(fault, executor, monkeypatch):
    known_as(monkeypatch, planted=fault)
    scenario = DIGITS.override(rounds=1, all_classes=0)
    rows_of(on("cpu", "planted", scenario, executor, {}), 1)
    with placement.watched() as faults:
        try:
            sim = on("cuda", "planted", scenario, executor, {})
            rows_of(sim, 1)
        except (RuntimeError, UserError):
            assert faults
    if not faults:
        with pytest.raises(AssertionError):
            assert_on_gpu(sim)
