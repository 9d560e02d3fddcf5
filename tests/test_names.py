"""One name, one class; and no call that nobody can review."""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("fedtune", "trainables", "search_spaces", "analysis")
MOST = 6  # values by position


@cache
def trees(package: str) -> dict[str, ast.Module]:
    """Every file with its syntax; what is reached by a symbolic link once, under its own folder."""
    files = [file for file in sorted((ROOT / package).rglob("*.py")) if file.resolve() == file]
    return {str(file.relative_to(ROOT)): ast.parse(file.read_text()) for file in files}


def test_no_public_class_name_stands_twice() -> None:
    where = defaultdict(set)
    for file, tree in ((file, tree) for package in PACKAGES for file, tree in trees(package).items()):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].add(file)
    assert len(where) > 300
    assert {name: files for name, files in where.items() if len(files) > 1} == {}


def test_no_call_passes_more_than_six_values_by_position() -> None:
    """But for layers of a net in their order."""
    wrong = [
        f"{file}:{node.lineno}: {ast.unparse(node.func)}, {len(node.args)}"
        for file, tree in trees("fedtune").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and len(node.args) > MOST and not ast.unparse(node.func).endswith("Sequential")
    ]
    assert wrong == []


def test_constructors_of_more_than_four_values_take_them_by_name() -> None:
    """But for `DatasetSource`, whose table of data sets is read by columns."""
    wrong = [
        f"{file}:{node.lineno}: {node.name}"
        for file, tree in trees("fedtune").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name != "DatasetSource" and _by_position(node) > 4
    ]
    assert wrong == []


def _by_position(node: ast.ClassDef) -> int:
    """How many values the class's own constructor takes by position."""
    declared = [d for d in map(ast.unparse, node.decorator_list) if "dataclass" in d]
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            return len(method.args.args) - 1
    if not declared or "kw_only" in declared[0]:
        return 0
    return sum(isinstance(line, ast.AnnAssign) and "ClassVar" not in ast.unparse(line.annotation) for line in node.body)
