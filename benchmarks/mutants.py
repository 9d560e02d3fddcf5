"""How many seeded mutants the tests find, of what computes, reads or tabulates numbers.

Needs `pip install cosmic-ray`; CI does not run it.

    python -m benchmarks.mutants sample mutants.jsonl   # draw them from this tree, and run each with the tests
    python -m benchmarks.mutants again mutants.jsonl    # run the same mutants in this tree, wherever the code has gone

A mutant is a line and what an operator of cosmic-ray makes of it, so that it can be found again after code has moved or
names have changed.  Each runs in a process forked from one that has imported PyTorch and Ray, with the tests that cover
its module, but those that start Ray; it is found if any of them fails or none ends.  Mutants that change only
annotations are not drawn.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import importlib.util
import json
import os
import random
import resource
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NamedTuple

from cosmic_ray import plugins
from cosmic_ray.ast import Visitor, get_ast
from cosmic_ray.mutating import mutate_code

SKIPPED = ("NoOp", "RemoveDecorator", "ExceptionReplacer", "VariableReplacer", "VariableInserter")
LEAST_LIKENESS = 0.72  # of two lines, at which one is taken for the other
SECONDS = 150  # of processor time, of one mutant's tests


class Target(NamedTuple):
    """A module under mutation: the names its files have or had, and its tests; where need be with their folders."""

    files: tuple[str, ...]
    tests: tuple[str, ...]


TARGETS = {
    "mixtures": Target(("mixtures",), ("mixtures", "gfpl")),
    "fusion": Target(("fusion",), ("mixtures", "gfpl")),
    "partitions": Target(("partitions", "allocation", "assignment"), ("partitions", "federation")),
    "hyper": Target(("hyper",), ("hyper", "space", "commands")),
    "statistics": Target(("statistics",), ("statistics", "claims")),
    "promotion": Target(("promotion",), ("promotion",)),
    "metrics": Target(("metrics",), ("metrics", "engine", "federation", "pages", "budget")),
    "trees": Target(("trees",), ("trees", "engine")),
    "local_training": Target(
        ("local_training", "optimizers", "batches", "between_steps", "stacked_code"),
        ("engine", "phases", "stacked_code", "generators", "fedrep", "fedprox", "limits"),
    ),
    "engine": Target(
        ("engine", "evaluation", "chunks", "state", "uploads", "stacked_code"),
        (
            "engine",
            "evaluation",
            "client_memory",
            "stacked_code",
            "fedavg",
            "fedavgft",
            "fedproto",
            "fedensemble",
            "fesem",
            "limits",
        ),
    ),
    "program_rows": Target(
        ("programs/rows", "programs/metric", "programs/output", "written_files"),
        ("programs/test_rows", "programs/test_run", "programs/test_report", "programs/test_written_files"),
    ),
    "user_data": Target(
        (
            "user_arrays",
            "user_columns",
            "user_data",
            "user_formats",
            "user_leaf",
            "user_metadata",
            "user_options",
            "user_partition",
        )
        + ("user_pfllib", "user_pictures", "user_rows", "user_tables", "user_text"),
        (
            "data/test_user_data",
            "user_leaf",
            "matched_names",
            "owners",
            "normalising",
            "user_partition",
            "user_pfllib",
            "user_tables",
            "data/test_pictures",
        ),
    ),
    "optuna_searcher": Target(("optuna_searcher",), ("optuna_searcher", "simulated_search")),
    "widening": Target(("ranges",), ("ranges",)),
    "run_tables": Target(
        ("runs/tables", "runs/frames"), ("runs/test_tables", "runs/test_frames", "overview", "goals", "choosing")
    ),
    "comparison_tables": Target(
        ("comparison/tables", "comparison/budgets"),
        ("compare", "compare_by_objective", "several_searches", "baselines", "budgets", "against_itself"),
    ),
}
RAYS = ("ray", "undisturbed", "interrupted")  # parts of the names of fixtures that start Ray: such tests are left out


class Mutant(NamedTuple):
    """What was drawn.  before, after: the line, or lines."""

    target: str
    file: str
    operator: str
    occurrence: int
    before: str
    after: str
    outcome: str = ""


class _Positions(Visitor):
    def __init__(self, operator: Any) -> None:
        self.operator, self.lines = operator, []

    def visit(self, node: Any) -> Any:
        self.lines += [start for start, _ in self.operator.mutation_positions(node)]
        return node


def operators() -> dict[str, Any]:
    """cosmic-ray's operators by name."""
    names = [n for n in plugins.operator_names() if not n.split("/")[1].startswith(SKIPPED)]
    return {n: plugins.get_operator(n)() for n in names}


def positions(code: str, operator: Any) -> list[tuple[int, int]]:
    seen = _Positions(operator)
    seen.walk(get_ast(code))
    return seen.lines


def changed(code: str, mutated: str) -> tuple[str, str]:
    before, after = code.splitlines(), mutated.splitlines()
    for tag, i, j, k, m in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            return "\n".join(before[i:j]).strip(), "\n".join(after[k:m]).strip()
    return "", ""


def _bare(code: str) -> str:
    """The program without annotations and docstrings; empty if it is none."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(0)
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
    return ast.unparse(tree)


def files(root: Path, target: Target) -> list[Path]:
    return _named(root / "fedtune", target.files)


def tests(root: Path, target: Target) -> list[str]:
    names = [t if "/" in t else f"test_{t}" for t in target.tests]
    return [str(f.relative_to(root)) for f in _named(root / "tests", names)]


def _named(folder: Path, names: Sequence[str]) -> list[Path]:
    """The Python files below a folder that have one of these names, or of these folders and names."""
    ends = tuple(f"/{name}.py" for name in names)
    return [f for f in sorted(folder.rglob("*.py")) if f.as_posix().endswith(ends)]


def draw(root: Path, name: str, count: int, seed: int) -> Iterator[Mutant]:
    """Mutants of a target: places at random, and at each an operator at random."""
    rng = random.Random(f"{seed} {name}")
    by_place: dict[tuple[str, int, int], list[tuple[str, int]]] = {}
    codes = {str(f.relative_to(root)): f.read_text() for f in files(root, TARGETS[name])}
    by_name = operators()
    for file, code in codes.items():
        for label, operator in by_name.items():
            for i, (line, column) in enumerate(positions(code, operator)):
                by_place.setdefault((file, line, column), []).append((label, i))
    places = sorted(by_place)
    rng.shuffle(places)
    drawn = 0
    for place in places:
        label, i = rng.choice(by_place[place])
        code = codes[place[0]]
        mutated = mutate_code(code, by_name[label], i)
        if mutated is None or _bare(mutated) in ("", _bare(code)):
            continue
        before, after = changed(code, mutated)
        yield Mutant(name, place[0], label, i, before, after)
        drawn += 1
        if drawn == count:
            return


def find(root: Path, mutant: Mutant, by_name: dict[str, Any]) -> Mutant | None:
    """The same mutant in a tree where its line may have moved or been renamed; None if no line is like it."""
    best, score = None, 2 * LEAST_LIKENESS
    for path in files(root, TARGETS[mutant.target]):
        file, code = str(path.relative_to(root)), path.read_text()
        lines = code.splitlines()
        for i, (line, _) in enumerate(positions(code, by_name[mutant.operator])):
            if _ratio(mutant.before.split("\n")[0], lines[line - 1].strip()) + 1 < score:
                continue
            before, after = changed(code, mutate_code(code, by_name[mutant.operator], i) or code)
            likeness = _ratio(mutant.before, before) + _ratio(mutant.after, after) + (i == mutant.occurrence) * 1e-6
            if likeness >= score:
                best, score = mutant._replace(file=file, occurrence=i, before=before, after=after), likeness
    return best


def _ratio(a: str, b: str) -> float:
    return 1.0 if a == b else difflib.SequenceMatcher(None, a, b, autojunk=False).ratio()


class _WithoutRay:
    """Leaves out tests that start Ray: a mutant's process must not, and they would take minutes."""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [i for i in items if not any(r in f for f in i.fixturenames for r in RAYS)]

    def pytest_configure(self) -> None:
        import pytest
        import ray

        ray.init = lambda *_, **__: pytest.skip("no Ray here")


class _Mutated(SourceFileLoader):
    code = ""

    def get_code(self, fullname: str) -> Any:
        return compile(self.code, self.path, "exec", dont_inherit=True)


class _Finder:
    def __init__(self, root: Path, file: str, code: str) -> None:
        self.name, self.path, self.code = file.removesuffix(".py").replace("/", "."), str(root / file), code

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.name:
            return None
        loader = _Mutated(name, self.path)
        loader.code = self.code
        return importlib.util.spec_from_file_location(name, self.path, loader=loader)


def _child(root: Path, mutant: Mutant | None, target: Target) -> None:
    """Run the tests in this forked process, and exit with pytest's status."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))  # what never ends is killed, which counts as found
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1), os.dup2(sink, 2)
    os.chdir(root)
    sys.path[:0] = [str(root), str(root / "tests")]
    if mutant:
        code = (root / mutant.file).read_text()
        mutated = mutate_code(code, plugins.get_operator(mutant.operator)(), mutant.occurrence)
        sys.meta_path.insert(0, _Finder(root, mutant.file, mutated or ""))
    import pytest

    options = ["-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-o", "addopts="]
    status = pytest.main([*options, *tests(root, target)], plugins=[_WithoutRay()])
    os._exit(int(status))


def run(root: Path, jobs: Sequence[tuple[Mutant | None, Target]], workers: int) -> Iterator[tuple[int, str]]:
    """Yields each job's number and how it ended: found or survived."""
    waiting, running = list(enumerate(jobs))[::-1], dict[int, int]()
    while waiting or running:
        while waiting and len(running) < workers:
            n, (mutant, target) = waiting.pop()
            pid = os.fork()
            if pid == 0:
                _child(root, mutant, target)
            running[pid] = n
        pid, status = os.wait()
        yield running.pop(pid), "survived" if status == 0 else "found"


def table(mutants: Sequence[Mutant]) -> str:
    """A line per module: how many, how many found, the share."""
    out = ["| module | mutants | found | share |", "|---|---|---|---|"]
    for name in [*dict.fromkeys(m.target for m in mutants), "all"]:
        of = Counter(m.outcome for m in mutants if name in (m.target, "all"))
        total, found = sum(of.values()), of["found"]
        out.append(f"| {name} | {total} | {found} | {found / max(total, 1):.3f} |")
    return "\n".join(out)


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(
        allow_abbrev=False, prog="python -m benchmarks.mutants", description=__doc__.splitlines()[0]
    )
    p.add_argument("how", choices=("sample", "again"))
    p.add_argument("file", type=Path, help="where the sample is kept, a line of JSON a mutant")
    p.add_argument("--root", type=Path, default=Path.cwd(), help="the tree (default: this folder)")
    p.add_argument("--count", type=int, default=32, help="a module's mutants (default 32)")
    p.add_argument("--seed", type=int, default=13)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--only", help="modules, with commas")
    p.add_argument("--output", type=Path, help="where outcomes go (default: the sample's file)")
    args = p.parse_args(argv)
    root = args.root.resolve()
    names = args.only.split(",") if args.only else list(TARGETS)
    if args.how == "sample":
        mutants = [m for name in names for m in draw(root, name, args.count, args.seed)]
    else:
        by_name = operators()
        before = [Mutant(**json.loads(line)) for line in args.file.read_text().splitlines()]
        before = [m for m in before if m.target in names]
        same = [find(root, m, by_name) for m in before]
        mutants = [m for m in same if m]
        for m, t in zip(before, same, strict=True):
            if t is None:
                print(f"no line like it is left: {m.target}: {m.before}", flush=True)
    preload()
    for n, how in run(root, [(None, TARGETS[name]) for name in names], args.workers):
        if how != "survived":
            raise SystemExit(f"the tests of {names[n]} fail without a mutant")
    done = list(mutants)
    for count, (n, how) in enumerate(run(root, [(m, TARGETS[m.target]) for m in mutants], args.workers)):
        done[n] = mutants[n]._replace(outcome=how)
        print(f"{count + 1}/{len(mutants)} {how} {done[n].file}: {done[n].before} -> {done[n].after}", flush=True)
    output = args.output or args.file
    output.write_text("".join(json.dumps(m._asdict()) + "\n" for m in done))
    print(table(done))
    return 0


def preload() -> None:
    """Import what every child would."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "FEDTUNE_FORKS": ""}  # no test starts Ray: no server of its workers
    for name in ("optuna", "pandas", "pytest", "ray.tune", "scipy.stats", "sklearn.cluster", "torch"):
        importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)


if __name__ == "__main__":
    sys.exit(main())
