"""Algorithms and models that tests write themselves, found by name as if they were of `trainables/` or a user's."""

from pathlib import Path

import pytest

from fedtune.experiment import registry
from fedtune.experiment.algorithm import Algorithm
from fedtune.user_code import user_files

NETS = Path(__file__).with_name("user_nets.py")


def known_as(monkeypatch: pytest.MonkeyPatch, **classes: type[Algorithm]) -> None:
    """From now on these names are algorithms too, for as long as the test runs."""
    find, names = registry.find, registry.names
    monkeypatch.setattr(registry, "find", lambda name: classes[name] if name in classes else find(name))
    monkeypatch.setattr(registry, "names", lambda: sorted([*names(), *classes]))


def as_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of a user's is known yet, for as long as the test runs."""
    for known in ("_files", "_code"):
        monkeypatch.setattr(user_files, known, {})
    monkeypatch.setattr(user_files, "_named", set())


def own_net(name: str) -> str:
    """The canonical name of a model of `user_nets.py`."""
    return user_files.take(f"{NETS}:{name}")[0]


def fedproto_in(folder: Path, slowed_by: Path | None = None) -> Path:
    """A user's file that is FedProto under another name, with its space, and imports a module of its folder.

    As long as the file `slowed_by` is there, each of its rounds takes a second more.
    """
    (folder / "beside.py").write_text("from fedtune.trainables.fedproto import FedProto\n")
    file = folder / "mine.py"
    file.write_text(
        "import time\n"
        "from dataclasses import dataclass\n"
        "from pathlib import Path\n"
        "from fedtune.search_spaces import fedproto\n"
        "from beside import FedProto\n"
        "@dataclass(frozen=True)\n"
        "class Mine(FedProto):\n"
        '    """FedProto."""\n'
        "    def aggregate(self, server, ups, task):\n"
        f"        time.sleep(float(Path({str(slowed_by)!r}).exists()))\n"
        "        return super().aggregate(server, ups, task)\n"
        "SPACES = {'default': fedproto.default}\n"
    )
    return file


def gone(file: Path) -> None:
    """The user's file and what lies beside it are deleted."""
    for beside in file.parent.glob("*.py"):
        beside.unlink()
