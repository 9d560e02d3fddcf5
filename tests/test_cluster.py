"""Searches on simulated clusters: a node dies in the middle; three nodes of four GPUs each are filled, never overfilled."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray._private.authentication import authentication_token_setup as tokens
from ray.cluster_utils import Cluster
from test_survival import ARGUMENTS, assert_as_undisturbed, undisturbed, wait_for  # noqa: F401

from fedtune import results


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """One node of one CPU on loopback, to which a test adds others; gone afterwards, with all of its processes.

    It asks for the user's token, as what `ray start` starts does where there is one.
    """
    tokens.enable_token_auth_by_default()
    tokens.ensure_token_if_auth_enabled()
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield made
    made.shutdown()


def begin(cluster: Cluster, folder: Path) -> subprocess.Popen:
    """The search of test_survival in a process of its own, on the cluster."""
    command = [sys.executable, "-m", "fedtune.search", *ARGUMENTS.split(), "--address", cluster.address]
    command += ["--storage-path", str(folder), "--name", "run"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, **pipes)


def test_a_dead_nodes_trials_go_on_elsewhere_bit_for_bit(
    cluster: Cluster, undisturbed: Path, tmp_path: Path  # noqa: F811
) -> None:
    """Two nodes of one CPU, a trial on each; one dies after eight rounds, and all goes on on the other."""
    second = cluster.add_node(num_cpus=1)
    process = begin(cluster, tmp_path)
    run = tmp_path / "run"
    try:
        wait_for(lambda: [len(rows) >= 4 for rows in results.logged(run).values()][:2] == [True, True])
        cluster.remove_node(second, allow_graceful=False)
        out, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, out
    assert "2 at once" in out
    assert_as_undisturbed(run, undisturbed)
