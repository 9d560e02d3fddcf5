"""The nodes of a cluster: Ray's messages about them in one line, and whether all of them see a folder."""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedtune.core.errors import UserError
from fedtune.core.terminal import near, one_line, say, several

SECONDS = 60.0  # for nodes to say whether they see a folder


class Told:
    """Prints one line for each of Ray's long messages about nodes, and writes the message to a file."""

    def __init__(self, log: Path | None, several: bool) -> None:
        """log: the file, whose folder may be made later.  several: whether there may be more nodes than this one."""
        self._log, self._several = log, several
        self._said: set[str] = set()

    def __call__(self, message: str) -> None:
        """A message of Ray's."""
        where = ""
        if self._log and self._log.parent.is_dir():
            with suppress(OSError), self._log.open("a", encoding="utf-8") as file:
                file.write(f"{datetime.now().isoformat(' ', 'seconds')} {message.rstrip()}\n\n")
                where = f" (more in {near(self._log)})"
        line = f"note: Ray says: {one_line(message)[:200]}"
        if lost := re.search(r"address: (\S+) .*has been marked dead", message):
            line = f"note: Ray lost the node {lost[1]}; its trials continue on other nodes" if self._several else ""
        elif "Raylet is terminated" in message:  # what follows, or came before, says which node
            line = ""
        if line and line not in self._said:
            self._said.add(line)
            say(line + where)


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
        at = partial(NodeAffinitySchedulingStrategy, soft=False)
        asked = {ask.options(scheduling_strategy=at(n["NodeID"])).remote(file.name): n for n in others}
        answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=SECONDS)
        without = []
        for answer in answered:
            with suppress(ray.exceptions.RayError):  # a node that cannot answer: the search will find out
                if not ray.get(answer):
                    without.append(asked[answer]["NodeManagerAddress"])
    if without:
        raise UserError(
            f"--storage-path must be a folder that every node of the cluster shares, but {without[0]} "
            f"{f'and {len(without) - 1} more do' if without[1:] else 'does'} not see {there}, or cannot write to it; "
            "checkpoints of trials would be lost there; give another"
        )
    if silent:
        say(f"note: {several(len(silent), 'node')} did not say within {SECONDS:g} s whether it sees {there}")


def _sees(file: str) -> bool:
    """Whether this node has the file, in a folder that it may write to."""
    return os.path.exists(file) and os.access(os.path.dirname(file), os.W_OK)
