"""The nodes of a cluster: Ray's messages about them in one line, and whether all of them see a folder."""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedtune.core.errors import UserError
from fedtune.core.terminal import near, one_line, say, several

SECONDS = 60.0  # for nodes to say whether they see a folder


class Told:
    """Writes Ray's long messages about nodes to a file, and prints one line instead."""

    def __init__(self, log: Path | None, several: bool) -> None:
        """log: the file, whose folder may be made later.  several: whether there may be more nodes than this one."""
        self._log, self._several = log, several
        self._said: set[str] = set()

    def __call__(self, message: str) -> None:
        """A message of Ray's."""
        where = self._keep(message)
        if "Raylet is terminated" in message:  # what follows, or came before, says which node
            return
        if lost := re.search(r"address: (\S+) .*has been marked dead", message):
            line = f"note: Ray lost the node {lost[1]}; its trials continue on other nodes" if self._several else ""
        else:
            line = f"note: Ray says: {one_line(message)[:200]}"
        if line and line not in self._said:
            self._said.add(line)
            say(line + where)

    def _keep(self, message: str) -> str:
        """Write it to the file if possible; the place, in words."""
        with suppress(OSError):
            if self._log and self._log.parent.is_dir():
                with self._log.open("a", encoding="utf-8") as file:
                    file.write(f"{datetime.now().isoformat(' ', 'seconds')} {message.rstrip()}\n\n")
                return f" (more in {near(self._log)})"
        return ""


def require_shared(storage: Path) -> None:
    """UserError unless every node of the cluster that trials may run on sees this folder and may write to it.

    The folder need not exist: its nearest existing parent is checked.
    """
    mine = ray.get_runtime_context().get_node_id()
    others = [n for n in ray.nodes() if n["Alive"] and n["Resources"].get("CPU") and n["NodeID"] != mine]
    if not others:
        return
    there = storage.absolute()
    while not there.exists():
        there = there.parent
    with tempfile.NamedTemporaryFile(dir=there, prefix=".fedtune-") as file:
        ask = ray.remote(num_cpus=0, max_retries=0)(_sees)
        at = {n["NodeID"]: NodeAffinitySchedulingStrategy(n["NodeID"], soft=False) for n in others}
        asked = {ask.options(scheduling_strategy=at[n["NodeID"]]).remote(file.name): n for n in others}
        answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=SECONDS)
        without = [asked[a]["NodeManagerAddress"] for a in answered if not _answer(a)]
    if without:
        raise UserError(
            f"--storage-path must be a folder that every node of the cluster shares, but {without[0]} "
            f"{f'and {len(without) - 1} more do' if without[1:] else 'does'} not see {there}, or cannot write to it; "
            "checkpoints of trials would be lost there; give another"
        )
    if silent:
        say(f"note: {several(len(silent), 'node')} did not say within {SECONDS:g} s whether it sees {there}")


def _answer(asked: ray.ObjectRef) -> bool:
    """A node's answer; a node that cannot answer counts as one that sees the folder, as the search will find out."""
    try:
        return bool(ray.get(asked))
    except ray.exceptions.RayError:
        return True


def _sees(file: str) -> bool:
    """Whether this node has the file, in a folder that it may write to."""
    return os.path.exists(file) and os.access(os.path.dirname(file), os.W_OK)
