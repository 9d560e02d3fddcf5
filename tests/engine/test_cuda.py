"""On a GPU the same numbers come out as on the CPU; skipped where there is none."""

import dataclasses

import pytest
import torch
from support.nets import NETS, setting

from fedtune.cluster import gpu_share
from fedtune.engine import simulation
from fedtune.engine.built_in import ENGINE
from fedtune.experiment import partitioning, registry, scenarios
from fedtune.experiment.experiment import Experiment

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

EARLY = {"gfpl": {"start": 2, "every": 2}}


def assert_gpu_equals(here, data):
    there, config = dataclasses.replace(here, device="cuda"), EARLY.get(here.algorithm, {})
    rows = [list(simulation.train(e, config, data, torch.float64)) for e in (here, there)]
    for cpu, gpu in zip(*rows, strict=True):
        for key in ("train_loss", "val_loss", "val_acc", "test_acc", "up_floats", "down_bytes"):
            assert cpu[key] == pytest.approx(gpu[key], rel=1e-9), key


@pytest.mark.parametrize("name", registry.names())
@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_gpu_equals_cpu(name, executor):
    setting = scenarios.find("digits-w4").override(clients=5, rounds=3)
    data = partitioning.make(setting, 0)
    here = Experiment(algorithm=name, scenario=setting, executor=executor)
    assert_gpu_equals(here, data)


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("name", ["fedavg", "fedbn", "fedproto", "gfpl"])
@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_gpu_equals_cpu_with_the_nets_that_people_use(net, name, executor, tmp_path):
    scenario = setting(net, tmp_path).override(rounds=3)
    data = partitioning.make(scenario, 0)
    here = Experiment(algorithm=name, scenario=scenario, executor=executor)
    assert_gpu_equals(here, data)


@pytest.mark.parametrize("name", ["fedproto", "gfpl", "fedkd", "lgfedavg", "local"])
def test_gpu_equals_cpu_with_clients_of_several_nets(name):
    scenario = scenarios.find("digits-w4").override(clients=5, rounds=3, model="htmini3")
    data = partitioning.make(scenario, 0)
    here = Experiment(algorithm=name, scenario=scenario)
    assert_gpu_equals(here, data)


def test_memory_returns_to_the_same_level_after_each_run():
    setting, held = scenarios.find("digits-w4").override(clients=4, rounds=3), []
    data = partitioning.make(setting, 0)
    for name in ["fedproto", "gfpl", "fedavg", "fedgen", "fml"] * 2:
        for _ in simulation.train(
            Experiment(algorithm=name, scenario=setting, device="cuda"), EARLY.get(name, {}), data
        ):
            pass
        held.append(torch.cuda.memory_allocated())
    assert len(set(held[5:])) == 1, held  # once a process has what it makes once


def test_memory_returns_to_the_same_level_after_each_trial():
    pytest.importorskip("ray")
    from support.actors import MIXED_TRIALS, LocalActor, play

    class OnGpu(LocalActor):
        device = "cuda"

    actor, held = OnGpu(config={"algorithm": "fedavg"}), []
    for name, values in [*MIXED_TRIALS, *MIXED_TRIALS]:
        actor.reset({"algorithm": name, **values})
        play(actor, 3)
        actor.reset({"algorithm": "fedavg"})
        held.append(torch.cuda.memory_allocated())
    assert len(set(held[len(MIXED_TRIALS) :])) == 1, held  # once a process has what it makes once


def test_a_round_on_a_gpu_is_measured():
    setting = scenarios.find("digits-w4").override(clients=5, rounds=3)
    experiment = Experiment(algorithm="fedavg", scenario=setting, device="cuda", trainer=ENGINE)
    found = gpu_share.measure(experiment, [partitioning.make(setting, 0)])
    _, total = torch.cuda.mem_get_info()
    assert found.seconds > 0 and found.total == total
    assert torch.cuda.max_memory_reserved() < found.peak < total
    assert 0 < gpu_share.share(found.peak, found.total, 64) < 0.5
