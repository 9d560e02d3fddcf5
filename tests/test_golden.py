"""What training gave once, it gives today: benchmarks/golden.py, and the rows in tests/golden."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import golden
from fedtune.experiment import registry

GOLDEN = Path(__file__).parent / "golden"
SAMPLE = (
    *("algorithms/fedavg, stack", "algorithms/scaffold, loop", "algorithms/gfpl, stack"),
    *("models/batch norm, stack", "data/parquet, missing"),
)


def verified(*cases: str) -> str:
    """What the tool prints, in a process of its own: PyTorch chooses its instructions when it is loaded."""
    words = [sys.executable, "-m", "benchmarks.golden", "verify", "--only", *cases]
    env = {name: value for name, value in os.environ.items() if name != "FEDTUNE_FORKS"}  # forks have loaded it
    done = subprocess.run(words, cwd=golden.ROOT, env=env, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_sample_gives_its_golden_rows() -> None:
    assert verified(*SAMPLE).endswith(f"{len(SAMPLE)} cases, 0 differ\n")


@pytest.mark.long
def test_everything_gives_its_golden_rows() -> None:
    cases = [case for file in GOLDEN.glob("*.json") for case in json.loads(file.read_text())["cases"]]
    assert verified("*").endswith(f"{len(cases)} cases, 0 differ\n")


def test_every_algorithm_has_golden_rows_stacked_and_one_by_one() -> None:
    """How to add those of a new algorithm is in docs/how-to/contributing.md."""
    cases = json.loads((GOLDEN / "algorithms.json").read_text())["cases"]
    have = {(case["algorithm"], case["options"]["executor"]) for case in cases if case["tables"]}
    assert have == {(name, executor) for name in registry.names() for executor in ("stack", "loop")}


def test_one_bit_is_a_difference_and_a_millionth_is_close() -> None:
    was, now = {"rows": {"val_loss": [1.0, None]}}, {"rows": {"val_loss": [1.0 + 2**-52, None]}}
    assert list(golden.differences(was, now, golden.equal)) == [
        "rows, val_loss: was 1.0, is 1.0000000000000002 (1 of 2)"
    ]
    assert list(golden.differences(was, now, golden.close)) == []
    assert list(golden.differences(was, {"rows": {"val_loss": [1.00001, None]}}, golden.close)) != []
    assert list(golden.differences(was, {"rows": {"val_loss": [1.0, 1.0]}}, golden.close)) != []
    assert list(golden.differences(was, {"rows": {}}, golden.close)) == ["rows, val_loss: was [1.0, None], is None"]
