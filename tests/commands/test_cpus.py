"""More CPUs than there are: said before anything that takes seconds to load, by every command that takes the option."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest
from support.rows import first

LINES = (
    "fedtune search --algo gfpl",
    "fedtune compare --algos local,fedavg",
    "fedtune.analysis.reproduce gfpl-fig6 --dataset digits",
    "fedtune.analysis.tabulate --algo gfpl",
)


@pytest.mark.parametrize("line", first(LINES, 1))
def test_more_cpus_than_there_are_are_refused_within_three_seconds_of_work(line: str) -> None:
    """Of processor time, which other work on the machine does not lengthen; it was four, and fifteen on the clock."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [sys.executable, "-m", *line.split(), "--cpus-per-trial", "9999"]
    answer = subprocess.run(words, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert answer.returncode == 2 and answer.stderr.startswith("error: a trial needs 9999 CPU, but the cluster has ")
    assert answer.stderr.count("\n") == 1
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime <= 3.0


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
@pytest.mark.parametrize("line", first(LINES, 1))
def test_a_job_with_one_core_of_a_machine_has_one(line: str) -> None:
    """As batch systems give it: what the machine has more is others'."""
    words = [sys.executable, "-m", *line.split(), "--cpus-per-trial", "2"]
    one = min(os.sched_getaffinity(0))
    alone = os.environ | {"FEDTUNE_FORK": "no"}  # a fork may use what its server may
    few = lambda: os.sched_setaffinity(0, {one})  # noqa: E731
    answer = subprocess.run(words, capture_output=True, text=True, preexec_fn=few, env=alone, timeout=300)
    assert answer.returncode == 2 and "a trial needs 2 CPU, but the cluster has 1;" in answer.stderr
