"""A model whose author seeds it: the seeds of a study do not change its initial weights, and a note says so."""

from pathlib import Path

import pandas as pd
import pytest
import torch
from support.helpers import CLOCK

import fedtune
from fedtune.nn import architectures
from fedtune.user_code import user_files

SOURCE = """
import random

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 8), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(8, classes)

def drawn(shape, classes):
    return Net(shape, classes)

def seeded(shape, classes):
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    return Net(shape, classes)

def apart(shape, classes):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net(shape, classes)

def filled(shape, classes):
    net = Net(shape, classes)
    for tensor in net.parameters():
        nn.init.normal_(tensor, std=0.1, generator=torch.Generator().manual_seed(7))
    return net

def zeros(shape, classes):
    net = Net(shape, classes)
    for tensor in net.parameters():
        nn.init.zeros_(tensor)
    return net

def zero_head(shape, classes):
    net = Net(shape, classes)
    nn.init.zeros_(net.head.weight)
    return net
"""
SAID = "the same initial weights for every seed"
SMALL = {"rounds": 2, "clients": 4}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(SOURCE)
    return path


def test_a_model_that_starts_alike_on_two_seeds_is_found_and_one_that_draws_is_not(file: Path) -> None:
    name = user_files.take(str(file))[0]
    kinds = ("drawn", "seeded", "apart", "filled", "zeros", "zero_head", "seeded")
    family = ",".join([*(f"{name}:{kind}" for kind in kinds), "mlp"])
    found = architectures.unseeded(family, (1, 8, 8), 10)
    assert found == [f"{name}:{kind}" for kind in ("seeded", "apart", "filled", "zeros")]


def test_a_note_says_it_once_wherever_the_model_is_trained(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, notes in (("seeded", 1), ("drawn", 0)):
        for use in (fedtune.train, fedtune.objective, fedtune.tunable):  # the last as search and compare do
            use("fedavg", "digits-w4", model=f"{file}:{kind}", executor="loop", **SMALL)
            assert capsys.readouterr().err.count(f"note: net.py:{kind} has {SAID}") == notes


def test_the_check_of_a_model_says_it(file: Path) -> None:
    for kind, notes in (("seeded", 1), ("drawn", 0)):
        check = fedtune.Check(f"{file}:{kind}")
        assert check.passed and repr(check).count(SAID) == notes


def rows_of(file: Path, kind: str) -> pd.DataFrame:
    options = SMALL | {"seed": 3, "participation": 0.5, "executor": "stack", "model": f"{file}:{kind}"}
    return fedtune.train("fedavg", "digits-w4", **options).drop(columns=[*CLOCK], errors="ignore")


def test_a_seed_that_a_model_sets_reaches_no_other_draw(file: Path) -> None:
    """`apart` has the same weights and leaves the process's random streams alone."""
    seeded, apart, drawn = (rows_of(file, kind) for kind in ("seeded", "apart", "drawn"))
    assert seeded.equals(apart) and not seeded.equals(drawn)
    before = torch.get_rng_state()
    assert rows_of(file, "seeded").equals(seeded) and torch.equal(torch.get_rng_state(), before)


def test_a_seed_that_a_file_sets_while_it_is_imported_changes_no_number(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(SOURCE.replace("torch.manual_seed(0)\n\n\n", "", 1))
    assert rows_of(file, "drawn").equals(rows_of(other, "drawn"))
