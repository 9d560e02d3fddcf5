"""More CPUs than there are: said before anything that takes seconds to load, by every command that takes the option."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

LINES = (
    "search --algo gfpl",
    "compare --algos local,fedavg",
    "reproduce gfpl-fig6 --dataset digits",
    "tabulate --algo gfpl",
)


@pytest.mark.parametrize("line", LINES)
def test_more_cpus_than_there_are_are_refused_within_three_seconds_of_work(line: str) -> None:
    """Of processor time, which other work on the machine does not lengthen; it was four, and fifteen on the clock."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [sys.executable, "-m", "fedtune", *line.split(), "--cpus-per-trial", "9999"]
    answer = subprocess.run(words, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert answer.returncode == 2 and answer.stderr.startswith("error: a trial needs 9999 CPU, but the cluster has ")
    assert answer.stderr.count("\n") == 1
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime <= 3.0
