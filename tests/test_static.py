"""Lint, the rule of imports and types, beside the tests rather than before them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("command", ["ruff check", "ruff format --check", "lint-imports", "mypy"])
def test_static_check_finds_nothing(command: str) -> None:
    program, *words = command.split()
    found = subprocess.run([Path(sys.executable).with_name(program), *words], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
