"""What is said of a cluster's nodes: that one was lost, in a line, and that they see the folder of a run."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray._private import worker

from fedtune.cluster import ray_internals, ray_start
from fedtune.core.errors import UserError

DEAD = (
    "The node with node id: 4f20 and address: 192.0.2.7 and node name: 192.0.2.7 has been marked dead because the "
    "detector has missed too many heartbeats. This can happen when a \t(1) raylet crashes\n\t(2) raylet lags"
)
DUMP = "Raylet is terminated. Last 20 lines of the Raylet logs:\n" + "    [state-dump]\n" * 20


@pytest.mark.parametrize("several", [True, False])
def test_a_lost_node_is_one_line_and_the_rest_lies_in_a_file(
    several: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where there is one node the driver says itself that it ends."""
    source = inspect.getsource(worker.listen_error_messages)
    assert "print_to_stdstream(" in source and '"pid": "raylet"' in source, "see messages_told"
    log = tmp_path / "ray.log"
    with ray_internals.messages_told(ray_start.told(log, several)):
        for message in (DUMP, DEAD, DUMP, DEAD):
            worker.print_to_stdstream({"lines": [message], "pid": "raylet", "is_err": False}, ignore_prefix=False)
    said = f"note: Ray lost the node 192.0.2.7; its trials continue on other nodes (more in {log})\n"
    assert capsys.readouterr() == ("", said * several)
    assert log.read_text().count("[state-dump]") == 40 and DEAD in log.read_text()


def test_whatever_else_ray_says_is_one_line_each_and_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    tell = ray_start.told(None, False)
    for _ in range(2):
        tell("2 Workers (tasks / actors) killed due to memory pressure (OOM)\nRefer to \x1b[1mthe " + "x " * 900)
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1 and "\x1b" not in err and len(err) < 300
    assert err.startswith("note: Ray says: 2 Workers (tasks / actors) killed due to memory pressure (OOM) Refer")


class Two:
    """A cluster of nodes besides the driver's, which answer as they are made to: a stand-in for a remote function."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, sees: dict[str, bool | None]) -> None:
        node = {"Alive": True, "Resources": {"CPU": 4.0}}
        made = [node | {"NodeID": f"n{i}", "NodeManagerAddress": f"192.0.2.{i}"} for i in range(len(sees) + 1)]
        made += [made[0] | {"Alive": False, "NodeID": "x"}, made[0] | {"Resources": {}, "NodeID": "head"}]
        said = lambda asked, **_: [[a for a in asked if (sees[a[0]] is None) is late] for late in (False, True)]  # noqa: E731
        for name, stand_in in {
            "get_runtime_context": lambda: SimpleNamespace(get_node_id=lambda: "n0"),
            "nodes": lambda: made,
            "remote": lambda **_: lambda function: self,
            "wait": said,
            "get": lambda asked: sees[asked[0]] and Path(asked[1]).exists(),
        }.items():
            monkeypatch.setattr(ray, name, stand_in)
        monkeypatch.setattr(ray_start, "NodeAffinitySchedulingStrategy", lambda node, soft: node)

    def options(self, scheduling_strategy: str) -> Any:
        return SimpleNamespace(remote=lambda file: (scheduling_strategy, file))


def test_a_folder_that_another_node_does_not_see_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The default, a folder runs/ where the driver is, on a cluster of several machines."""

    def require(*folder: str, **sees: bool | None) -> None:
        Two(monkeypatch, sees)
        ray_start.require_shared(tmp_path.joinpath(*folder))

    require("not", "yet", n1=True, n2=True)
    require()  # one node, the driver's own
    assert capsys.readouterr() == ("", "")
    require(n1=None, n2=True)
    assert "note: 1 node did not say within 60 s whether" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"a folder that every node of the cluster shares, but 192.0.2.2 does not see"):
        require("not", "yet", n1=True, n2=False)
    with pytest.raises(UserError, match=r"but 192.0.2.1 and 1 more do not see"):
        require(n1=False, n2=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("there", "address", "noted"),
    [("192.0.2.1:6379", None, True), ("ray://head:10001", None, True), ("192.0.2.1:6379", "auto", False)]
    + [("http://head:8265", None, False), ("local", None, False), ("", None, False)],
)
def test_a_cluster_that_the_environment_names_is_not_passed_over_without_a_word(
    there: str,
    address: str | None,
    noted: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", there)
    ray_start._note_other_clusters(address)
    line = f"note: RAY_ADDRESS names {there}, but fedtune starts its own Ray here; --address auto joins the named one\n"
    assert capsys.readouterr().err == line * noted
