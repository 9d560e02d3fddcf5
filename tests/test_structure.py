"""How the code and its tests are laid out."""

import ast
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def imported(file: Path) -> set[str]:
    """The modules that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module or ''}.{alias.name}" for alias in node.names}
    return found


def test_no_test_is_imported() -> None:
    """What tests share lies in tests/support, and fixtures in conftest.py."""
    files = [*HERE.rglob("*.py")]
    assert len(files) > 60
    wrong = {
        str(file.relative_to(HERE)): name
        for file in files
        for name in imported(file)
        if any(part == "conftest" or part.startswith("test_") for part in name.split("."))
    }
    assert wrong == {}


def test_every_test_lies_in_the_folder_of_what_it_tests() -> None:
    """tests/ has fedtune's folders, besides those of the packages and of the pages beside it."""
    source = HERE.parent / "fedtune"
    packages = {file.parent.name for file in source.glob("*/__init__.py")}
    folders = {file.parent.name for file in HERE.glob("*/test_*.py")}
    assert folders <= packages | {"trainables", "analysis", "commands", "docs"}


def test_what_is_imported_by_name_is_imported_in_the_seams_and_by_dispatch() -> None:
    """import-linter does not see them: algorithms, spaces, public names, commands, users' files."""
    source = HERE.parent / "fedtune"
    files = {str(f.relative_to(source)) for f in source.rglob("*.py") if "import_module(" in f.read_text()}
    dispatch = {"__init__.py", "__main__.py", "commands/completion.py"}
    assert files == dispatch | {"experiment/registry.py", "programs/flower_child.py", "user_code/user_imports.py"}


def test_what_shows_runs_imports_nothing_that_trains() -> None:
    """Reports and the live page read files: an import of PyTorch or Ray would cost each of them 300 MB."""
    script = """
import sys
from fedtune.reporting import page
from fedtune.reporting.watch import drawing, server
heavy = {"torch", "ray", "optuna", "sklearn", "matplotlib", "fedtune.trainables"}
assert not (found := heavy & set(sys.modules)), found
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def test_a_round_of_a_built_in_algorithm_imports_little() -> None:
    """Nothing that only users' files, programs or searches need: whoever follows a round reads a third of the code."""
    script = """
import sys, fedtune
fedtune.train("fedavg", "digits-w4", rounds=1)
own = [name for name in sys.modules if name.split(".")[0] == "fedtune"]
others = ("fedtune.runs", "fedtune.studies", "fedtune.data.user_data", "fedtune.nn.user_models", "fedtune.programs.run")
assert not (found := [name for name in own if name.startswith(others)]), found
assert len(own) <= 100, len(own)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def test_texts_for_the_terminal_go_through_one_console() -> None:
    """Which shows them as they are written: rich's own would take a class named [bold] for mark-up."""
    files = [f for top in ("fedtune", "analysis") for f in (HERE.parent / top).rglob("*.py")]
    own = {f.name for f in files for call in CONSOLES if call in f.read_text()}
    assert own == {"terminal.py"}


CONSOLES = ("Console(", "rich.progress", "from rich import print", "from_markup(")
