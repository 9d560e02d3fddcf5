"""What needs neither PyTorch nor Ray does not load them: help, how a search stands, refusals."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.rows import first

from fedtune.__main__ import COMMANDS

EXAMPLE = Path(__file__).parents[2] / "analysis" / "example" / "search"
SCRIPT = """
import sys
from fedtune.__main__ import main
try:
    status = main(sys.argv[1:])
except SystemExit as end:
    status = end.code
print("loaded:", *sorted({"torch", "ray", "optuna", "plotly"} & set(sys.modules)), "status:", status)
"""


def ended(*arguments: str) -> str:
    """What heavy libraries a command loaded, and its exit status."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, timeout=300)
    return (done.stdout.splitlines() or [done.stderr])[-1]


@pytest.mark.parametrize("command", first(COMMANDS, 3))
def test_help_loads_neither_torch_nor_ray(command):
    assert ended(command, "--help") == "loaded: status: 0"


@pytest.mark.parametrize("words", first(["", "scenarios", "models", "data", "metrics"], 2))
def test_what_there_is_is_listed_without_them(words):
    assert ended("list", *words.split()) == "loaded: status: 0"


def test_how_a_search_stands_is_read_without_them():
    assert ended("status", str(EXAMPLE)) == "loaded: status: 0"


@pytest.mark.parametrize(
    "line",
    [
        "report {tmp}",
        "report {tmp} {tmp}",
        f"report {EXAMPLE} -o {EXAMPLE}/run.json",
        "status {tmp}",
        "list gfpll",
        "search --trials 0",
    ],
)
def test_what_is_refused_at_once_is_refused_without_them(line, tmp_path):
    assert ended(*line.replace("{tmp}", str(tmp_path)).split()) == "loaded: status: 2"
