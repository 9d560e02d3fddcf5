"""python -m benchmarks.startup: what a command costs before it does anything, against importing PyTorch and Ray.

Each is run in fresh processes, in turns, and measured by the user CPU seconds of the process; medians of all turns.
fedtune 0.1.0 imported torch and ray.tune for every command, so that import is its least possible cost.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "analysis" / "example" / "search"
BEFORE = "import torch, ray.tune"  # as 0.1.0
COMMANDS = {
    "search --help": 0.35,  # share of the import that the command may take
    "jobs --help": 0.35,
    f"status {EXAMPLE}": 0.35,
    "list gfpl": None,  # it loads both: the algorithm's file needs PyTorch, its search spaces Ray
}


def user_seconds(arguments: list[str]) -> float:
    """The user CPU seconds of a fresh Python process with these arguments."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with exit status {process.returncode}")
    return usage.ru_utime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7, help="of each (default 7)")
    turns = parser.parse_args().turns
    runs = {"import torch, ray.tune": ["-c", BEFORE]}
    runs |= {command: ["-m", "fedtune", *command.split()] for command in COMMANDS}
    for arguments in runs.values():  # so that all files are in the system's cache, and compiled
        user_seconds(arguments)
    measured: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(turns):
        for name, arguments in runs.items():
            measured[name].append(user_seconds(arguments))
    whole = statistics.median(measured["import torch, ray.tune"])
    failed = False
    print(f"{'':30} {'user s':>8} {'range':>14} {'share':>7}")
    for name, seconds in measured.items():
        share, most = statistics.median(seconds) / whole, COMMANDS.get(name)
        failed |= most is not None and share > most
        said = "" if most is None else f"  at most {most}"
        shown = name.replace(str(EXAMPLE), "RUN")
        print(f"{shown:30} {share * whole:8.2f} {min(seconds):6.2f} … {max(seconds):5.2f} {share:7.2f}{said}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
