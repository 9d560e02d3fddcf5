"""Each tutorial runs from top to bottom, with fewer trials than a reader has, and gives what it says."""

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
from support.ports import free_port

from fedtune.commands import compare, search
from fedtune.runs.folder import StudyFolder
from fedtune.studies.options import ComparisonOptions
from fedtune.tuning.options import arguments
from fedtune.tuning.options.search import SearchOptions

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
RUN = {  # words of a page -> what the tests run instead: for time, and so that nobody else is in the way
    "first-search": {"--rounds 15 --trials 16": "--clients 4 --rounds 4 --trials 2 --final-seeds 2"},
    "your-data": {"--trials 12": "--trials 4 --max-concurrent 2 --final-seeds 2"},
    "your-algorithm": {
        "--rounds 10 --trials 8 --name fair": "--rounds 3 --trials 2 --final-seeds 0 --name fair",
        "--rounds 10 --trials 8 --name against": "--rounds 3 --trials 2 --seeds 2 --name against",
    },
    "program": {"--trials 12": "--trials 4 --final-seeds 2"},
    "comparison": {"--rounds 20 --trials 16": "--clients 4 --rounds 2 --trials 1 --searches 2 --seeds 2 --no-control"},
    "cluster": {
        "6399": str(free_port()),
        "--head": "--head --dashboard-agent-listen-port=0",
        "start --address": "start --dashboard-agent-listen-port=0 --address",
        "--rounds 10 --trials 8": "--clients 4 --rounds 2 --trials 2 --final-seeds 1",
    },
}


def script(name: str, folder: Path) -> str:
    """A page as a shell's script, after its files were written: those of blocks that begin with a name."""
    text = (TUTORIALS / f"{name}.md").read_text()
    lines = []
    for language, block in re.findall(r"^```(python|toml|bash)\n(.*?)^```$", text, re.M | re.S):
        if language == "bash":
            lines.append(block)
        else:
            (file,) = re.findall(r"\A# ([\w.]+)\n", block)
            (folder / file).write_text(block)
    said = "\n".join(lines)
    for words, instead in RUN[name].items():
        assert words in said, words
        said = said.replace(words, instead)
    return said


def follow(name: str, folder: Path, **environment: str) -> str:
    """What the page's commands print, in an empty folder."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    given = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", "FEDTUNE_FORK": "yes"} | environment
    command = ["bash", "-euo", "pipefail", "-c", script(name, folder)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, cwd=folder, env=given, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    try:
        out, error = process.communicate(timeout=900)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, out + error
    return out


@pytest.fixture
def alone() -> Mapping[str, str]:
    return {"RAY_ADDRESS": "local"}  # else they would join whatever Ray this machine has


def test_every_tutorial_is_run_and_says_what_it_gives() -> None:
    pages = {page.stem: page.read_text() for page in TUTORIALS.glob("*.md")}
    assert pages.keys() == RUN.keys()
    for name, text in pages.items():
        opening = text.split("\n## ")[0]
        assert "At the end you " in opening and "\nYou need " in opening and "minutes" in opening, name


def test_a_slow_machines_options_go_with_the_commands_that_they_are_for() -> None:
    """Those of the first search with every tutorial's, since its page says so."""
    quick = {page: re.findall(r"slow machine, add `(.*?)`", (TUTORIALS / f"{page}.md").read_text()) for page in RUN}
    assert all(map(len, (quick["first-search"], quick["comparison"])))
    for page in RUN:
        text = (TUTORIALS / f"{page}.md").read_text().replace("\\\n", " ")
        for line in re.findall(r"^fedtune search (.*)$", text, re.M):
            words = search.parser().parse_args(shlex.split(f"{line} {quick['first-search'][0]}"))
            fields = {"trials": 3, "final_seeds": 2, "dashboard": False}
            given = arguments.given(words, SearchOptions)
            assert given["fields"]["rounds"] == "8" and fields.items() <= given.items()
        for line in re.findall(r"^fedtune compare (.*)$", text, re.M) if quick[page] else ():
            words = compare.parser().parse_args(shlex.split(f"{line} {quick[page][0]}"))
            fields = {"trials": 3, "searches": 2, "seeds": 3, "dashboard": False}
            given = arguments.given(words, ComparisonOptions)
            assert given["fields"]["rounds"] == "4" and fields.items() <= given.items()


@pytest.mark.long
def test_first_search(tmp_path: Path, alone: Mapping[str, str]) -> None:
    out = follow("first-search", tmp_path, **alone)
    assert "fresh seeds" in out and "Best configuration: " in out and "config/lr" in out
    assert (tmp_path / "runs/first/report.html").is_file() and (tmp_path / "best.pt").is_file()


@pytest.mark.long
def test_your_own_data_and_model(tmp_path: Path, alone: Mapping[str, str]) -> None:
    out = follow("your-data", tmp_path, **alone)
    assert "40 clients" in out and "3 classes" in out and "critical" in out and "FAILED" not in out
    assert (tmp_path / "who.html").stat().st_size > 10_000
    run = StudyFolder(tmp_path / "runs/worst")
    trials = run.trials
    assert run.state == "finished" and len(trials) == 4 and (run.rounds["comm_mb"] <= 20).all()
    assert run.rounds["val_recall"].between(0, 1).all()
    worst = trials[trials["status"] == "finished"].set_index("trial")["last_val_acc_worst10"]
    assert worst[run.best["found"]["trial"]] == worst.max()
    assert {file.name for file in (run.path / "own").rglob("*.py")} >= {"net.py", "alarm.py"}
    assert "are the same bit for bit" in out.replace("\n", " ")


@pytest.mark.long
def test_your_own_algorithm(tmp_path: Path, alone: Mapping[str, str]) -> None:
    out = follow("your-algorithm", tmp_path, **alone)
    assert "exponent of the loss in a client's weight" in out and "0.1..5 log, or 0.0" in out
    assert "FAILED" not in out and {"config/q", "config/lr"} <= set(StudyFolder(tmp_path / "runs/fair").trials)
    table = next((tmp_path / "runs/against").rglob("table.csv"))
    assert set(pd.read_csv(table)["algorithm"]) == {"fair.py", "fedavg"}


@pytest.mark.long
def test_a_program(tmp_path: Path, alone: Mapping[str, str]) -> None:
    out = follow("program", tmp_path, **alone)
    assert "FAILED" not in out and len(StudyFolder(tmp_path / "runs/own").trials) == 4


@pytest.mark.long
def test_a_fair_comparison(tmp_path: Path, alone: Mapping[str, str]) -> None:
    follow("comparison", tmp_path, **alone)
    table = pd.read_csv(tmp_path / "runs/fair/table.csv")
    assert {"fedprox", "fedrep", "fedavg", "local", "fedavgft"} <= set(table["algorithm"])


@pytest.mark.long
def test_on_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="tutorial-", dir="/tmp") as short:  # sockets' names must be short
        own, ports = RUN["cluster"], f"--dashboard-port={free_port()} --ray-client-server-port={free_port()}"
        monkeypatch.setitem(own, "--head", f"{own['--head']} {ports} --temp-dir={short}")
        clean = [name for name in os.environ if name.startswith("RAY_")]
        for name in clean:
            monkeypatch.delenv(name)
        out = follow("cluster", tmp_path, HOME=str(tmp_path), RAY_USAGE_STATS_ENABLED="0")
    assert "2.0 CPU" in out and "2 at once" in out and "0 failed" not in out
    assert StudyFolder(tmp_path / "shared/two-nodes").state == "finished"
