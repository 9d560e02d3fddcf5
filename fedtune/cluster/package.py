"""The files that go to a cluster with a job, as a .zip: fedtune's code, and files that only this machine has."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedtune.cluster import ray_internals
from fedtune.core.about import FOLDER
from fedtune.core.errors import UserError
from fedtune.data import datasets

LIMIT = ray_internals.LARGEST_UPLOAD  # bytes that the cluster's job server takes at once


def data_root(given: Path | None) -> Path:
    """Where this machine has its data: as given, or as a search finds it."""
    return given or Path(os.environ.get("FEDTUNE_DATA_DIR") or "data")


def data_files(names: Iterable[str], root: Path) -> dict[str, Path]:
    """The files of these data sets, unpacked ones only: where they go in the job's folder -> where they are."""
    files: dict[str, Path] = {}
    for name in names:
        source = datasets.SOURCES[name]
        split = dict(source.options).get("split", "")  # all of EMNIST's lie in one folder
        found = [
            f
            for f in sorted((root / source.folder).rglob("*"))
            if f.is_file() and f.suffix not in (".gz", ".zip") and f"{split}-" in f"{f.name}-"
        ]
        if not found:
            raise UserError(
                f"{name} must be sent with the job, but it is not in {root / source.folder}; give --data DIR "
                "that has it, "
                "or after -- the cluster's --data-dir, or --download"
            )
        files |= {f"data/{f.relative_to(root)}": f for f in found}
    return files


def write(package: Path, files: Mapping[str, Path]) -> None:
    """Write fedtune and these files as a .zip, the same bytes for the same files; UserError if it gets too large."""
    with zipfile.ZipFile(package, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in (_code() | dict(files)).items():
            entry = zipfile.ZipInfo(name)  # without a time stamp, so that the cluster recognises it
            mode = 0o755 if os.access(path, os.X_OK) else 0o644
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, mode << 16
            with path.open("rb") as source, archive.open(entry, "w") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            if package.stat().st_size > LIMIT:
                raise UserError(
                    f"a job's files must be at most {LIMIT / 2**20:g} MiB packed, but are more with {path}; "
                    "copy the data to the cluster, and give their folder there with --data-dir after --"
                )


def _code() -> dict[str, Path]:
    """fedtune's files, those behind its links too: file in the job's folder -> file here."""
    code: dict[str, Path] = {}
    for folder, below, files in os.walk(FOLDER, followlinks=True):
        below[:] = sorted(name for name in below if name != "__pycache__" and not name.startswith("."))
        there = Path(folder).relative_to(FOLDER.parent)
        code |= {(there / name).as_posix(): Path(folder, name) for name in sorted(files) if not name.startswith(".")}
    return code
