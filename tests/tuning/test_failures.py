"""What can break besides processes: disks that fill up or vanish, checkpoints and state that are damaged, memory."""

from __future__ import annotations

import errno
import gc
import json
import os
import pickle
import random
import shutil
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
from support import actors
from support.actors import MIXED_TRIALS, LocalActor, play
from support.rows import first
from support.searches import (
    ROUNDS,
    TRIALS,
    assert_as_undisturbed,
    begin_search,
    copy_to,
    logged_rounds,
    rounds_by_configuration,
)
from support.waiting import wait_for

from fedtune.cluster import ray_internals
from fedtune.commands import resume, status
from fedtune.core.errors import UserError
from fedtune.engine.built_in import ENGINE
from fedtune.engine.simulation import Seeds
from fedtune.experiment import partitioning, scenario
from fedtune.experiment.experiment import Experiment
from fedtune.runs import disk as storage
from fedtune.runs import logs
from fedtune.runs.trial_states import TROUBLE
from fedtune.tuning import saved_state

pytestmark = pytest.mark.usefixtures("one_ray")

# ---- checkpoints


def checkpoint(folder: Path, **config: Any) -> tune.Checkpoint:
    """That of a trial after two rounds."""
    actor = LocalActor(config={"lam": 2.0, **config})
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
    run = torch.load(file)
    for group in run["groups"]:
        group["tensors"] = {n: t[..., :1] for n, t in group["tensors"].items()}
    torch.save(run, file)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "cut off": lambda f: f.write_bytes(f.read_bytes()[: f.stat().st_size // 2]),
    "some bytes changed": lambda f: f.write_bytes(f.read_bytes().replace(f.read_bytes()[20_000:20_040], bytes(40))),
    "other shapes": other_shapes,
    "bare code": lambda f: f.write_bytes(pickle.dumps(Bomb(f.parents[2] / "ran"))),
    "random bytes": lambda f: f.write_bytes(random.Random(0).randbytes(5000)),
    "empty": lambda f: f.write_bytes(b""),
    "gone": lambda f: f.unlink(),
    "folder gone": lambda f: shutil.rmtree(f.parents[1]),
    "something else": lambda f: torch.save({"a": 1}, f),
    "code": lambda f: torch.save(Bomb(f.parents[2] / "ran"), f),
}


@pytest.mark.parametrize("damage", first(DAMAGE, 4))
def test_a_trial_whose_checkpoint_is_damaged_begins_again_to_the_same_numbers(damage: str, tmp_path: Path) -> None:
    saved = checkpoint(tmp_path / "checkpoint")
    undamaged = play(LocalActor(config={"lam": 2.0}))
    whole, hurt = LocalActor(config={"lam": 2.0}), LocalActor(config={"lam": 2.0})
    whole.restore(saved)
    assert play(whole, 3) == undamaged[2:]
    DAMAGE[damage](tmp_path / "checkpoint" / "0" / "state.pt")
    hurt.restore(saved)
    first = hurt.train()
    assert first["training_iteration"] == first["round"] == 1
    assert "its checkpoint cannot be used (" in first[TROUBLE] and "starts again" in first[TROUBLE]
    assert TROUBLE not in hurt.train()  # told once
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
            os.truncate(Path(kept.checkpoint_fs_path) / "0" / "state.pt", 100)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return tune.Checkpoint.from_directory(kept.checkpoint_fs_path)

    kept._update_checkpoint_index, kept.persist_current_checkpoint = update, persist
    kept.persist_artifacts, kept.sync_config = lambda **force: None, SimpleNamespace(sync_artifacts_on_checkpoint=False)
    actor = LocalActor(config={"lam": 2.0})
    actor._storage = kept
    play(actor, 1)
    first = actor.save()
    kept.full = True
    play(actor, 1)
    assert actor.save().checkpoint is None and [p.name for p in tmp_path.iterdir()] == ["0"]
    third = actor.train()
    assert third["round"] == 3 and "could not be written ([Errno 28] No space left" in third[TROUBLE]
    kept.full = False
    last = actor.save()
    other = LocalActor(config={"lam": 2.0})
    for saved, at in ((first, 1), (last, 3)):
        other.restore(saved)
        assert other.train()["round"] == at + 1


# ---- a reused actor


def test_a_reused_actor_gives_the_same_numbers_as_a_fresh_one_bit_for_bit() -> None:
    fresh = [play(LocalActor(config={"algorithm": name, **values}), 3) for name, values in MIXED_TRIALS]
    reused = LocalActor(config={"algorithm": "local"})
    play(reused, 2)
    for (name, values), want in zip(MIXED_TRIALS, fresh, strict=True):
        for seed, pollute in ((random.random(), random.seed), (5, np.random.seed), (6, torch.manual_seed)):
            pollute(seed)
        assert reused.reset({"algorithm": name, **values})
        assert play(reused, 3) == want, name
    assert fresh[0] != fresh[4]


def resident() -> int:
    """Bytes of this process in memory, once what is not needed has been given back."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_memory_returns_to_the_same_level_after_each_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial of this size holds some 15 MB; each that were kept would be added to the level."""
    wide = actors.SETTING.override(clients=20, features=512, batch=64)
    monkeypatch.setattr("support.actors.SETTING", wide)
    monkeypatch.setattr("support.actors.DATA", [partitioning.make(wide, 0)])
    actor, levels = LocalActor(config={"algorithm": "local"}), []
    for i in range(8):
        name, values = MIXED_TRIALS[i % 2]
        actor.reset({"algorithm": name, **values})
        play(actor, 2)
        actor.reset({"algorithm": "local"})
        levels.append(resident() / 1e6)
    assert max(levels[4:]) < levels[3] + 40, levels


# ---- disks


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MB."""
    where = tmp_path / "disk"
    where.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(where)], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"a small disk needs the right to mount one: {made.stderr.strip()}")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


def fill(disk: Path) -> Path:
    """A file that takes all that is left."""
    file = disk / "someone-elses"
    with pytest.raises(OSError, match="No space"), file.open("wb", buffering=0) as f:
        while True:
            f.write(bytes(2**12))
    return file


def ended(process: subprocess.Popen, run: Path, what: str) -> None:
    """The search ends with one line that says why, and its rounds can be read."""
    seen = logs.logged(run)
    out, _ = process.communicate(timeout=300)
    lines = [line for line in out.splitlines() if line.startswith("error: ")]
    assert process.returncode == 2 and len(lines) == 1 and "Traceback" not in out and out.count("\n") < 20, out
    assert f"a search needs its folder, but {run} {what}" in lines[0], out
    kept = logs.logged(run)
    assert all(len(kept[trial]) >= len(rows) for trial, rows in seen.items()), "rounds were lost"
    assert status.main([str(run)]) == 0


@pytest.mark.long
def test_a_full_disk_ends_the_search_which_goes_on_once_there_is_room(
    undisturbed: Path, disk: Path, capsys: pytest.CaptureFixture
) -> None:
    process, run = begin_search(disk), disk / "run"
    wait_for(lambda: logged_rounds(run) >= 8)
    taken = fill(disk)
    ended(process, run, "is on a full disk;")
    first = capsys.readouterr().out.splitlines()[0]
    assert "interrupted; " in first and first.endswith(" (its folder is on a full disk)")
    for file in run.glob("*/checkpoint_*/0/state.pt"):
        assert torch.load(file, weights_only=True)["round"] > 0  # none is half written
    fill(disk)
    assert resume.main([str(run), "--no-dashboard"]) == 2
    assert "a search needs at least 8.4 MB on the disk of its folder, but " in capsys.readouterr().err
    taken.unlink()
    assert resume.main([str(run), "--no-dashboard"]) == 0
    assert_as_undisturbed(run, undisturbed)
    assert not list(run.glob(".reserve")) and not list(run.glob(".probe"))


@pytest.mark.long
def test_a_search_whose_folder_vanished_goes_on_from_what_ray_knew(
    undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    process, run = begin_search(tmp_path), tmp_path / "run"
    wait_for(lambda: logged_rounds(run) >= 8)
    os.rename(run, tmp_path / "elsewhere")  # at once, so that nothing of it is left
    ended(process, run, "is gone")
    assert not (run / "tuner.pkl").exists()  # of checkpoints there may be such as were written after that
    assert resume.main([str(run), "--no-dashboard"]) == 0  # its settings are made again, trials begin again
    assert_as_undisturbed(run, undisturbed)


def test_what_is_wrong_with_a_folder_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert storage.unfit(tmp_path) == "is gone"
    (tmp_path / "run.json").write_text("{}")
    assert storage.unfit(tmp_path) == "" and [p.name for p in tmp_path.iterdir()] == ["run.json"]
    readonly, full = "cannot be written to (Read-only file system)", "is on a full disk"
    for number, said in ((errno.EROFS, readonly), (errno.ENOSPC, full), (errno.EDQUOT, full)):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_bytes", lambda *_, n=number: (_ for _ in ()).throw(OSError(n, os.strerror(n))))
            assert storage.unfit(tmp_path) == said
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1e6))
    assert storage.unfit(tmp_path) == "is on a full disk"


def test_a_search_that_finds_no_room_does_not_begin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    storage.require_room(tmp_path / "not" / "there")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1e6))
    with pytest.raises(UserError, match="needs at least 8.4 MB on the disk of its folder, but .* has 1.0 MB left"):
        storage.require_room(tmp_path / "not" / "there")


# ---- the state of a search that is to be resumed


@pytest.fixture
def killed(interrupted: dict[int, Path]) -> Path:
    """A run whose driver was killed while some trials had ended and others not."""
    return interrupted[20]


def garbage(pattern: str) -> Callable[[Path], Any]:
    return lambda run: [file.write_bytes(random.Random(1).randbytes(300)) for file in run.glob(pattern)]


def cut(pattern: str) -> Callable[[Path], Any]:
    return lambda run: [f.write_bytes(f.read_bytes()[: f.stat().st_size // 2]) for f in run.glob(pattern)]


def record(**changes: Any) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        content = json.loads((run / "run.json").read_text()) | changes
        (run / "run.json").write_text(json.dumps({k: v for k, v in content.items() if v is not None}))

    return damage


def checkpoints(run: Path) -> list[Path]:
    """Those of trials that have not ended."""
    at_work = {f.parent for f in run.glob("*/result.json") if len(f.read_text().splitlines()) < ROUNDS}
    return [file for file in run.glob("*/checkpoint_*/0/state.pt") if file.parents[2] in at_work]


LOST = "cannot resume: Ray's saved state "
STATE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "experiment state of garbage": (garbage("experiment_state-*"), LOST + "experiment_state-"),
    "experiment state gone": (lambda run: [f.unlink() for f in run.glob("experiment*")], "but no experiment_state-"),
    "searcher's state of garbage": (garbage("searcher-state*"), LOST + "searcher-state-"),
    "search generator's state cut off": (cut("search_gen_state*"), LOST + "search_gen_state-"),
    "record of garbage": (garbage("run.json"), "run.json is missing or damaged"),
    "record gone": (lambda run: (run / "run.json").unlink(), "is not a study folder: it has none of run.json, "),
    "record without options": (record(options=None), "does not say how the search was started"),
    "record with other options": (record(options=[1, 2]), "its options: should be a valid dictionary"),
    "record with unknown options": (record(options={"colour": "red"}), "that this fedtune does not know: colour"),
    "record of another format": (record(format=1), "has 1; run it again"),
}


@pytest.mark.parametrize("name", STATE)
def test_damaged_state_is_refused_in_one_line_and_what_was_played_can_be_read(
    name: str, killed: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run = copy_to(tmp_path, killed)
    damage, message = STATE[name]
    damage(run)
    before = sorted(p.name for p in run.iterdir())
    ended = resume.main([str(run), "--no-dashboard"])
    said = capsys.readouterr().err
    assert ended == 2 and said.count("\n") == 1 and message in said, said
    assert sorted(p.name for p in run.iterdir()) == before
    assert logs.logged(run) == logs.logged(killed)
    if "record" not in name:
        assert f"fedtune status {run}" in said and status.main([str(run)]) == 0
        assert "highest last val_acc" in capsys.readouterr().out


@pytest.mark.long
def test_a_search_goes_on_without_rays_settings_from_damaged_checkpoints(
    undisturbed: Path, interrupted: dict[int, Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run = copy_to(tmp_path, [copy for copy in interrupted.values() if checkpoints(copy)][-1])
    (run / "tuner.pkl").unlink()
    for file in checkpoints(run):
        file.write_bytes(file.read_bytes()[:1000])
    for file in run.glob("*/result.json"):
        with file.open("a") as f:
            f.write('{"trial_id": "1", "rou')  # cut off
    assert resume.main([str(run), "--no-dashboard"]) == 0
    said = capsys.readouterr().err
    assert "its checkpoint cannot be used (" in said
    assert_as_undisturbed(run, undisturbed)


@pytest.mark.long
def test_what_ray_was_about_to_do_with_a_trial_is_forgotten(killed: Path, tmp_path: Path) -> None:
    """It may have saved its state while a trial wrote its last checkpoint, to be stopped after it."""
    run = copy_to(tmp_path, killed)
    file = max(run.glob("experiment_state-*.json"))
    state = json.loads(file.read_text())
    ids = [t["trial_id"] for t in (json.loads(trial) for trial, _ in state["trial_data"]) if t["status"] == "RUNNING"]
    assert ids
    state["runner_data"]["_cached_trial_decisions"] = dict.fromkeys(ids, "STOP")
    file.write_text(json.dumps(state))
    assert resume.main([str(run), "--no-dashboard"]) == 0
    assert set(pd.read_parquet(run / "trials.parquet")["status"]) == {"finished"}


@pytest.mark.long  # a search of Ray's
def test_state_that_ray_alone_cannot_read_does_not_begin_the_search_anew(
    killed: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run = copy_to(tmp_path, killed)
    for file in run.glob("experiment_state-*"):
        ray_internals.forget_decisions(file)  # of which there may be some: they would be dropped from the state first
        file.write_text(json.dumps(json.loads(file.read_text()) | {"trial_data": [["{}", "{}"]]}))
    before = {f.name: f.read_bytes() for f in run.glob("*state*")}
    assert resume.main([str(run), "--no-dashboard"]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(said) == 1 and f"{run} holds a state that Ray cannot resume from" in said[0]
    assert {f.name: f.read_bytes() for f in run.glob("*state*")} == before
    assert logs.logged(run) == logs.logged(killed)


@pytest.mark.parametrize("name", ["trials.parquet", "rounds.parquet", "study.journal"])
@pytest.mark.parametrize("damage", [garbage, cut, lambda name: lambda run: (run / name).unlink()])
def test_a_damaged_search_is_not_extended(
    name: str, damage: Callable, undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run = copy_to(tmp_path, undisturbed)
    damage(name)(run)
    assert resume.main([str(run), "--trials", "2"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "a search is extended " in said, said
    assert status.main([str(run)]) == 0 and [p.name for p in tmp_path.iterdir()] == [run.name]


@pytest.mark.parametrize("lacking", "scheduler searcher started trials space scenario state budget".split())
def test_a_record_that_lacks_something_is_refused(
    lacking: str, undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(undisturbed / "run.json", run)
    record(**{lacking: None})(run)
    assert status.main([str(run)]) == 2 and "run.json is missing or damaged" in capsys.readouterr().err
    assert resume.main([str(run), "--trials", "2"]) == 2 and capsys.readouterr().err.count("\n") == 1


def test_a_checkpoint_without_its_rounds_is_not_gone_on_from(tmp_path: Path) -> None:
    """The trial would lack them; it begins again instead."""
    small = scenario.Scenario(clients=4, rounds=3)
    played = Seeds(Experiment(algorithm="local", scenario=small), {}, {0: partitioning.make(small, 0)})
    for _ in range(2):
        played.step()
    for trial in ("a", "b", "c"):
        folder = tmp_path / f"local-{trial}" / "checkpoint_000000"
        folder.mkdir(parents=True)
        played.save(folder)
    whole = [{"training_iteration": t} for t in (1, 2, 3)]
    saved_state.drop_unlogged(tmp_path, {"a": whole, "b": whole[1:]}, ENGINE.saved_round)
    assert [f.parent.name for f in tmp_path.glob("*/checkpoint_*")] == ["local-a"]


@pytest.mark.long  # a search of Ray's
def test_trials_whose_folders_are_gone_are_named(
    undisturbed: Path, interrupted: dict[int, Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """One that had ended is without rounds, one that had not begins again; the folder has another name, too."""
    run = copy_to(tmp_path, interrupted[24])
    *_, snapshot = ray_internals.snapshots(run)
    statuses = ray_internals.trial_statuses(snapshot)
    ended, *_ = (t for t, status in statuses.items() if status == "TERMINATED")
    begun, *_ = (t for t, status in statuses.items() if status == "RUNNING" and (run / f"fedproto-{t}").exists())
    had_one = any((run / f"fedproto-{begun}").glob("checkpoint_*"))  # of which Ray knows: it is written first
    for trial in (ended, begun):
        shutil.rmtree(run / f"fedproto-{trial}")
    assert resume.main([str(run), "--no-dashboard"]) == 0
    err = capsys.readouterr().err
    assert f"note: the folders of ended trials are gone: {ended}; the tables lack their rounds" in err
    assert (f"trial {begun}: its checkpoint cannot be used" in err and "starts again" in err) == had_one
    now, whole = rounds_by_configuration(run), rounds_by_configuration(undisturbed)
    assert len(now) == len(whole) == TRIALS
    for configuration, rows in now.items():
        if len(rows):
            pd.testing.assert_frame_equal(rows, whole[configuration], check_exact=True)
    assert sorted(map(len, now.values())) == [0, *[ROUNDS] * (TRIALS - 1)]
