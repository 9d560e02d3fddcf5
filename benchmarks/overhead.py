"""What a search costs around its rounds: until its first result, from its last one to its end, and in CPU seconds.

    python -m benchmarks.overhead [COMMIT] [--turns 3] [--trials 4] [--rounds 3] [more options of a search]

A small search of the digits runs with its final check, as a user would run it.  Reported are the seconds from the
command to the first round of a trial, the seconds from the last round of a trial to the end of the command (the final
check trains as few rounds), and the CPU seconds of every process that the search started, by kind: the command itself,
Ray's services, and the workers in which trials and checks train.  With a commit, its files take turns with this tree's,
and ratios are reported; on a shared machine the CPU seconds say more than the others.  Linux only, as it reads /proc.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.against import ROOT, worktree

TICKS = os.sysconf("SC_CLK_TCK")
ADOPT = 36  # prctl: processes whose parent died become ours, so none is overlooked
PERIOD = 0.2  # seconds between two looks at the processes
WORKERS = ("default_worker.py", "setup_worker.py")  # what a worker runs until it calls itself ray::
AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")  # services that do
KINDS = ("command", "services", "workers")
Key = tuple[int, int]  # a process: its number, and when it began


class Process(NamedTuple):
    """A line of /proc."""

    parent: int
    began: int
    cpu: float  # seconds until now


def look() -> dict[int, Process]:
    """Every process of the machine that can be seen."""
    processes = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(") ")[2].split()
            except OSError:  # it has ended
                continue
            processes[int(folder.name)] = Process(int(fields[1]), int(fields[19]), sum(map(int, fields[11:13])) / TICKS)
    return processes


def descendants(of: int, processes: dict[int, Process]) -> list[int]:
    """The numbers of a process's children, and theirs."""
    children = [pid for pid, p in processes.items() if p.parent == of]
    return children + [pid for child in children for pid in descendants(child, processes)]


def command_line(pid: int) -> list[str]:
    """The words that a process was started by, or what it calls itself since; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0 ").split("\0")
    except OSError:
        return [""]


def kind(words: list[str]) -> str:
    """What a process that Ray started is for, by its command line; empty if there is none."""
    if not words[0]:
        return ""
    named = words[0].startswith("ray::") and not words[0].startswith(AGENTS)
    return "workers" if named or any(word.endswith(WORKERS) for word in words) else "services"


def search(tree: Path, trials: int, rounds: int, more: list[str]) -> dict[str, float]:
    """One search by the code of a tree: its figures."""
    cpu: dict[Key, float] = {}
    kinds: dict[Key, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-P",
            "-m",
            "fedtune.search",
            "--algo",
            "gfpl",
            "--scenario",
            "digits-w4",  # a default once
            "--set",
            "local_epochs=1",  # its range was another
            "--trials",
            str(trials),
            "--rounds",
            str(rounds),
            "--final-seeds",
            "2",
            "--scheduler",
            "none",
            "--storage-path",
            folder,
            "--name",
            "search",
            *more,
        ]
        env = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        before = {(pid, p.began) for pid, p in look().items()}  # also what an earlier search left, which is ours now
        began = time.time()
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while process.poll() is None:
            processes = look()
            for pid in descendants(os.getpid(), processes):
                key = (pid, processes[pid].began)
                if key in before:
                    continue
                cpu[key] = processes[pid].cpu
                kinds[key] = "command" if pid == process.pid else kind(command_line(pid)) or kinds.get(key, "services")
            time.sleep(PERIOD)
        ended = time.time()
        if process.returncode:
            assert process.stderr
            raise SystemExit(f"the search ended with status {process.returncode}: {process.stderr.read().decode()}")
        files = Path(folder, "search").glob("*/result.json")
        times = [json.loads(line)["timestamp"] for file in files for line in file.read_text().splitlines()]
    spent = {name: sum(cpu[key] for key, k in kinds.items() if k == name) for name in KINDS}
    began_workers = sum(k == "workers" for k in kinds.values())
    return {
        "to first round": min(times) - began,
        "from last round": ended - max(times),
        "whole": ended - began,
        **{f"CPU of {name}": seconds for name, seconds in spent.items()},
        "CPU of all": sum(spent.values()),
        "worker processes": began_workers,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", nargs="?", help="what this working tree is compared with")
    parser.add_argument("--turns", type=int, default=3, help="of each side (default 3)")
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    args, more = parser.parse_known_args()
    ctypes.CDLL(None).prctl(ADOPT, 1, 0, 0, 0)

    def measured(*trees: Path) -> list[dict[str, float]]:
        turns = [[search(tree, args.trials, args.rounds, more) for tree in trees] for _ in range(args.turns)]
        return [{n: statistics.median(turn[i][n] for turn in turns) for n in turns[0][0]} for i in range(len(trees))]

    if not args.commit:
        (here,) = measured(ROOT)
        for name, value in here.items():
            print(f"{name:18} {value:7.1f}")
        return 0
    with worktree(args.commit) as tree:
        here, there = measured(ROOT, tree)
    print(f"{'':18} {'now':>7} {args.commit[:7]:>7} {'ratio':>6}")
    for name, value in here.items():
        print(f"{name:18} {value:7.1f} {there[name]:7.1f} {there[name] / value:6.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
