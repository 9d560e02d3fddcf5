"""The processors that a process may use: what its affinity, its control groups and Slurm leave of the machine's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedtune.core import processors


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 128 processors, where nothing limits a process."""
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(128)), raising=False)


@pytest.mark.parametrize(
    ("groups", "files", "usable"),
    [
        ("0::/", {}, 128),
        ("0::/", {"cpu.max": "max 100000"}, 128),
        ("0::/", {"cpu.max": "400000 100000"}, 4),  # as a container sees its own
        ("0::/a/b", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 3),  # of a group above
        ("0::/a/b", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "250000 100000"}, 2),
        ("0::/outside", {"cpu.max": "50000 100000"}, 1),  # the half of one
        ("4:cpu,cpuacct:/job", {"cpu,cpuacct/job/cpu.cfs_quota_us": "600000"}, 6),
        ("4:cpu:/docker/x", {"cpu/cpu.cfs_quota_us": "200000"}, 2),  # a container that sees the machine's path
        ("4:cpu:/", {"cpu/cpu.cfs_quota_us": "-1"}, 128),
        ("2:cpuset:/\n3:memory:/", {"cpuset/cpu.cfs_quota_us": "100000"}, 128),
        ("", {}, 128),
    ],
)
def test_a_quota_of_control_groups_counts(groups: str, files: dict[str, str], usable: int, tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
        file.with_name("cpu.cfs_period_us").write_text("100000\n")
    assert processors.usable(tmp_path) == usable


@pytest.mark.parametrize(
    ("slurm", "usable"),
    [
        ({"SLURM_CPUS_ON_NODE": "8"}, 8),
        ({"SLURM_CPUS_ON_NODE": "8", "SLURM_CPUS_PER_TASK": "1"}, 8),  # a batch script, which may use all of its job's
        ({"SLURM_CPUS_ON_NODE": "8", "SLURM_CPUS_PER_TASK": "2", "SLURM_STEP_ID": "0"}, 2),  # one task of four
        ({"SLURM_CPUS_ON_NODE": "8", "SLURM_STEP_ID": "0"}, 8),
        ({"SLURM_CPUS_ON_NODE": "256"}, 128),
        ({"SLURM_CPUS_ON_NODE": "8(x2)"}, 128),
        ({"SLURM_CPUS_PER_TASK": "2"}, 128),  # of a job that this process is not in
    ],
)
def test_what_slurm_gave_counts(
    slurm: dict[str, str], usable: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in slurm.items():
        monkeypatch.setenv(name, value)
    assert processors.usable(tmp_path) == usable


def test_the_affinity_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 7, 11})
    assert processors.usable(tmp_path) == 3
    monkeypatch.delattr(os, "sched_getaffinity")  # macOS
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert processors.usable(tmp_path) == 1
