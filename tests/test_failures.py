"""What can break besides processes: disks that fill up or vanish, checkpoints and state that are damaged, memory."""

from __future__ import annotations

import errno
import gc
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from ray import tune
from test_survival import assert_as_undisturbed, begin, undisturbed, wait_for  # noqa: F401

from fedtune import extend, federation, results, resume, scenario, status, storage
from fedtune.budget import Budget
from fedtune.errors import UserError
from fedtune.simulation import Experiment
from fedtune.trainable import FederatedTrainable

SETTING = scenario.find("digits-w4").override(clients=4, rounds=5)
DATA = [federation.make(SETTING, 0)]


class Actor(FederatedTrainable):
    """A trial's actor without Ray around it."""

    trial_resources = None

    def setup(self, config: dict[str, Any]) -> None:  # type: ignore[override]
        algorithm = config.pop("algorithm", "fedproto")
        super().setup(config, experiment=Experiment(algorithm, SETTING), data=DATA, budget=Budget())

    def _setup_logdir(self) -> None:
        pass


def play(actor: FederatedTrainable, rounds: int = 5) -> list[dict[str, Any]]:
    """So many rounds of a trial, without times."""
    rows = [actor.train() for _ in range(rounds)]
    plain = [{k: v for k, v in row.items() if k in DETERMINISTIC or k.startswith("val_acc")} for row in rows]
    return plain


DETERMINISTIC = {"round", "training_iteration", "val_loss", "test_acc", "train_loss", "comm_mb", "done"}


# ---- checkpoints


def checkpoint(folder: Path, **config: Any) -> tune.Checkpoint:
    """That of a trial after two rounds."""
    actor = Actor(config={"lam": 2.0, **config})
    play(actor, 2)
    saved = actor.save(str(folder))
    assert saved.metrics["training_iteration"] == 2
    return saved


class Bomb:
    """Runs code where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def other_shapes(file: Path) -> None:
    runs = torch.load(file)
    for group in runs[0]["groups"]:
        group["tensors"] = {n: t[..., :1] for n, t in group["tensors"].items()}
    torch.save(runs, file)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "cut off": lambda f: f.write_bytes(f.read_bytes()[: f.stat().st_size // 2]),
    "random bytes": lambda f: f.write_bytes(random.Random(0).randbytes(5000)),
    "some bytes changed": lambda f: f.write_bytes(f.read_bytes().replace(f.read_bytes()[20_000:20_040], bytes(40))),
    "empty": lambda f: f.write_bytes(b""),
    "gone": lambda f: f.unlink(),
    "folder gone": lambda f: shutil.rmtree(f.parent),
    "other shapes": other_shapes,
    "something else": lambda f: torch.save({"a": 1}, f),
    "code": lambda f: torch.save(Bomb(f.parent.parent / "ran"), f),
    "bare code": lambda f: f.write_bytes(pickle.dumps(Bomb(f.parent.parent / "ran"))),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_trial_whose_checkpoint_is_damaged_begins_again_to_the_same_numbers(damage: str, tmp_path: Path) -> None:
    saved = checkpoint(tmp_path / "checkpoint")
    undamaged = play(Actor(config={"lam": 2.0}))
    whole, hurt = Actor(config={"lam": 2.0}), Actor(config={"lam": 2.0})
    whole.restore(saved)
    assert play(whole, 3) == undamaged[2:]
    DAMAGE[damage](tmp_path / "checkpoint" / "state.pt")
    hurt.restore(saved)
    first = hurt.train()
    assert first["training_iteration"] == first["round"] == 1
    assert "its checkpoint cannot be used (" in first[storage.TROUBLE] and "begins again" in first[storage.TROUBLE]
    assert storage.TROUBLE not in hurt.train()  # told once
    assert play(hurt, 3) == undamaged[2:]
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_that_cannot_be_written_leaves_the_trial_and_the_one_before(tmp_path: Path) -> None:
    """The storage takes one checkpoint and half of another, then a whole one again."""
    kept = SimpleNamespace(index=-1, checkpoint_fs_path="", full=False)

    def update(metrics: dict) -> None:
        kept.index += 1
        kept.checkpoint_fs_path = str(tmp_path / str(kept.index))

    def persist(made: tune.Checkpoint) -> tune.Checkpoint:
        shutil.copytree(made.path, kept.checkpoint_fs_path)
        if kept.full:
            os.truncate(Path(kept.checkpoint_fs_path) / "state.pt", 100)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return tune.Checkpoint.from_directory(kept.checkpoint_fs_path)

    kept._update_checkpoint_index, kept.persist_current_checkpoint = update, persist
    kept.persist_artifacts, kept.sync_config = lambda force: None, SimpleNamespace(sync_artifacts_on_checkpoint=False)
    actor = Actor(config={"lam": 2.0})
    actor._storage = kept
    play(actor, 1)
    first = actor.save()
    kept.full = True
    play(actor, 1)
    assert actor.save().checkpoint is None and [p.name for p in tmp_path.iterdir()] == ["0"]
    third = actor.train()
    assert third["round"] == 3 and "could not be written ([Errno 28] No space left" in third[storage.TROUBLE]
    kept.full = False
    last = actor.save()
    other = Actor(config={"lam": 2.0})
    for saved, at in ((first, 1), (last, 3)):
        other.restore(saved)
        assert other.train()["round"] == at + 1


# ---- a reused actor

CONFIGS = [
    ("fedproto", {"lam": 2.0}), ("gfpl", {"start": 2, "every": 2, "components": 3}), ("fedavg", {"lr": 0.02}),
    ("fedgen", {}), ("fedproto", {"lam": 0.5, "optimizer": "adam", "lr": 0.003}), ("fml", {}),
]  # fmt: skip


class Changing(Actor):
    """The same, whose trials may be of unlike algorithms."""

    def _begin(self, config: dict[str, Any]) -> None:
        config = dict(config)
        self.experiment = Experiment(config.pop("algorithm", "fedproto"), SETTING)
        super()._begin(config)


def test_a_reused_actor_gives_the_same_numbers_as_a_fresh_one_bit_for_bit() -> None:
    fresh = [play(Changing(config={"algorithm": name, **values})) for name, values in CONFIGS]
    reused = Changing(config={"algorithm": "local"})
    play(reused, 2)
    for (name, values), want in zip(CONFIGS, fresh, strict=True):
        for seed, pollute in ((random.random(), random.seed), (5, np.random.seed), (6, torch.manual_seed)):
            pollute(seed)
        assert reused.reset({"algorithm": name, **values})
        assert play(reused) == want, name
    assert fresh[0] != fresh[4]


def resident() -> int:
    """Bytes of this process in memory, once what is not needed has been given back."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_memory_returns_to_the_same_level_after_each_trial() -> None:
    """A trial of GFPL on this setting leaves some 3 MB of state; twelve kept ones would be seen."""
    actor, levels = Changing(config={"algorithm": "fedavg"}), []
    for i in range(14):
        name, values = CONFIGS[i % 2]
        actor.reset({"algorithm": name, **values})
        play(actor, 3)
        levels.append(resident())
    assert max(levels[4:]) - levels[3] < 12e6, [round(level / 1e6, 1) for level in levels]
