"""The provenance of a run's numbers: command, versions, commit, scenario, seeds and hardware."""

from __future__ import annotations

import datetime
import platform
import shlex
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from fedtune.core import processors
from fedtune.core.about import VERSION
from fedtune.core.workload import Workload
from fedtune.data import flwr_partitions
from fedtune.programs import fingerprint
from fedtune.runs import reading

PARTITIONERS = "flwr-datasets"
PACKAGES = ("ray", "optuna", "torch", "torchvision", "numpy", "scikit-learn", "pandas")


def of_workload(workload: Workload) -> dict[str, Any]:
    """The provenance entries of a search's record."""
    return of_scenario(workload.to_record())


def of_scenario(record: Mapping[str, Any]) -> dict[str, Any]:
    """The provenance of a record with a scenario: also the version of the library that made the partition."""
    entries, partition = origin() | dict(record), str((record.get("scenario") or {}).get("partition", ""))
    if flwr_partitions.is_named(partition):
        entries["versions"] |= {PARTITIONERS: version(PARTITIONERS)}
    return entries


def origin() -> dict[str, Any]:
    """The command, time, code versions and hardware."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "command": command_line(),
        "started": _now(),
        "versions": {"fedtune": VERSION, "python": platform.python_version()}
        | {package: version(package) for package in PACKAGES},
        "git_commit": commit(),
        "hardware": {
            "machine": platform.machine(),
            "cpus": processors.usable(),
            "gpus": gpus,
            "system": platform.system(),
            "instructions": torch.backends.cpu.get_cpu_capability(),  # AVX2, AVX512, …: kernels depend on it
        },
    }


def trained_by(record: Mapping[str, Any]) -> dict[str, str]:
    """What a run's numbers, or their last bits, depend on besides its options, as far as its record says."""
    versions, hardware = record.get("versions") or {}, record.get("hardware") or {}
    device = str(record.get("device", ""))
    causes = {
        "fedtune": versions.get("fedtune"),
        "commit": (record.get("git_commit") or "")[:8],
        "torch": versions.get("torch"),
        "machine": hardware.get("machine"),
        "instructions": hardware.get("instructions"),
        "device": device,
        "gpus": " and ".join(hardware.get("gpus", [])) if device.startswith("cuda") else "",
    }
    return {name: str(value) for name, value in causes.items() if value}


def record_for_resume(record: Mapping[str, Any], *more: str) -> dict[str, Any]:
    """The entries to keep in the record of a resumed run: its start, its resume times, and the entries `more`."""
    began = {n: record[n] for n in ("options", "command", "started", *more) if n in record}
    return began | {"resumed": [*record.get("resumed", []), _now()], "earlier_commits": reading.commits_of(record)}


def provenance_line(record: Mapping[str, Any], commits: Iterable[str | None]) -> str:
    """Command, version and commits in one line.  commits: of the runs, which may be from different days."""
    names = " and ".join(dict.fromkeys(c or "unknown" for c in commits))
    return f"`{shlex.join(record['command'])}`, fedtune {record['versions']['fedtune']}, commit {names}"


def commit() -> str | None:
    """The commit of the running code if it is a git checkout; "+" marks uncommitted changes."""
    root = Path(__file__).resolve().parents[2]
    return (fingerprint.commit(root, but=()) or None) if (root / ".git").exists() else None


def command_line() -> list[str]:
    """The command as it was typed, without this machine's paths."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return ["fedtune", *sys.argv[1:]]
    module = getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", f"fedtune.{program.stem}")
    start = ["python", "-m", module] if program.suffix == ".py" else [program.name]
    return start + sys.argv[1:]


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
