"""On a GPU the same numbers come out as on the CPU; skipped where there is none."""

import dataclasses

import pytest
import torch

from fedtune import algorithm, federation, scenario, simulation

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

EARLY = {"gfpl": {"start": 2, "every": 2}}


@pytest.mark.parametrize("name", algorithm.names())
@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_gpu_equals_cpu(name, executor):
    setting = scenario.find("digits-w4").override(clients=5, rounds=3)
    data = federation.make(setting, 0)
    here = simulation.Experiment(name, setting, executor=executor)
    there = dataclasses.replace(here, device="cuda")
    rows = [list(simulation.play(e, EARLY.get(name, {}), data, torch.float64)) for e in (here, there)]
    for cpu, gpu in zip(*rows, strict=True):
        for key in ("train_loss", "val_loss", "val_acc", "test_acc", "up_floats", "down_bytes"):
            assert cpu[key] == pytest.approx(gpu[key], rel=1e-9), key
