"""Lint, the rule of imports and types, beside the tests rather than before them."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAMS = ("fedtune", "trainables", "search_spaces", "analysis", "benchmarks", "docs", "deploy", "tests/fuzz")


@pytest.mark.parametrize("command", ["ruff check", "ruff format --check", "lint-imports", "mypy"])
def test_static_check_finds_nothing(command: str) -> None:
    program, *words = command.split()
    found = subprocess.run([Path(sys.executable).with_name(program), *words], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


def test_nothing_is_imported_here_that_mypy_does_not_follow() -> None:
    """It would have no types, and no check would say so."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    (*_, skipped) = (o["module"] for o in settings["overrides"] if o["follow_imports"] == "skip")
    packages = {module.removesuffix(".*") for module in skipped}
    found = set()
    for folder in settings["packages"]:
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                elif isinstance(node, ast.Import):
                    found |= {alias.name for alias in node.names}
    assert {"torch", "ray.tune"} <= found
    assert not {name for name in found for package in packages if f"{name}.".startswith(f"{package}.")}


def test_no_parser_takes_abbreviated_options() -> None:
    """`--seed` would be `--seeds-per-trial` without a word, where a command has no --seed."""
    parsers = []
    for file in (f for folder in PROGRAMS for f in (ROOT / folder).rglob("*.py")):
        for call in (n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Call)):
            if ast.unparse(call.func).endswith("ArgumentParser"):
                given = {word.arg: ast.unparse(word.value) for word in call.keywords}
                parsers.append((file.name, given.get("allow_abbrev")))
    assert len(parsers) > 8 and not [name for name, taken in parsers if taken != "False"]
