"""Golden rows: what training gave once, as plain JSON, and whether it gives the same bits today.

    python -m benchmarks.golden verify [--only 'algorithms/fedavg*' 'data/*']
    python -m benchmarks.golden write  [--only …]   # anew, after a change that is meant to change numbers

Each file of tests/golden is a group of cases, a case a line: what is trained, how, and the tables that came of it.  A
case is added by a line without tables, which `write` fills in.  Everything goes through commands and public names of
Python, so cases outlive what is inside fedtune.  Files that users would write lie in tests/golden/user.

Sums come out in another order where a processor has other instructions.  So AVX2 is asked for, which most have.  On
the machine that a file names every number must be the same; elsewhere numbers may differ by a millionth.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import functools
import importlib.metadata
import io
import json
import math
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "golden"
FIXED = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT),
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",  # programs say `python`
}
CLOSE = 1e-6  # on another machine: relative, and below 1 absolute
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "optuna", "ray")
LEFT_OUT = {"seconds", "eval_seconds", "search_seconds", "trial", "run", "reason"}  # times, names, sentences
# What a case says, and what it is called today: the one place to edit when options or files are renamed.
OPTIONS: dict[str, str] = {}
THEN = {"lr": 0.01, "momentum": 0.5}  # defaults of fedtune's own scenarios when the rows were made
TABLES = (
    *("trials.parquet", "rounds.parquet", "clients.parquet", "front.parquet", "evaluations.parquet"),
    *("table.csv", "pairs.csv", "against.csv", "budget.csv"),
)
Case = dict[str, Any]
Tables = dict[str, Any]


def options(case: Case) -> dict[str, Any]:
    """A case's options by today's names."""
    given = {"rounds": case["rounds"], "seed": case["seed"], **case["options"]}
    return {OPTIONS.get(name, name): value for name, value in given.items()}


def trained(case: Case) -> Tables:
    """One configuration, trained by Python."""
    import fedtune

    return {"rows": fedtune.train(case["algorithm"], case["scenario"], THEN | case["configuration"], **options(case))}


def command(case: Case, *words: str) -> None:
    """A command of ours with a case's options."""
    for name, value in options(case).items():
        words += f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])
    for name, value in case["configuration"].items():
        words += "--set", f"{name}={value}"
    words += ("--scenario", case["scenario"]) if case["scenario"] else ()
    result = subprocess.run([sys.executable, "-m", "fedtune", *words], capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"status {result.returncode} of fedtune {' '.join(words)}\n{result.stdout}{result.stderr}")


def run(case: Case) -> Tables:
    """One configuration, trained by the command."""
    import pandas as pd

    file = Path(tempfile.mkdtemp(dir=".")) / "rows.jsonl"
    case = case | {"configuration": THEN | case["configuration"]}
    command(case, "run", "--algo", case["algorithm"], "--output", str(file))
    return {"rows": pd.DataFrame(map(json.loads, file.read_text().splitlines()))}


def search(case: Case) -> Tables:
    """A search by Python, one trial after the other."""
    import pandas as pd
    import ray

    import fedtune

    if not ray.is_initialized():
        ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    given = {"set": case["configuration"], "max_concurrent": 1, "storage_path": tempfile.mkdtemp(dir=".")}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        result = fedtune.Search(case["algorithm"], case["scenario"], **given, **options(case)).run()
    best = {"best": pd.DataFrame([result.best["hyperparameters"]])} if (result.path / "best.yaml").exists() else {}
    return tables(result.path) | best


def compare(case: Case) -> Tables:
    """A comparison by its command."""
    folder = tempfile.mkdtemp(dir=".")
    at = ("--algos", case["algorithm"], "--max-concurrent", "1", "--storage-path", folder, "--name", "it")
    command(case, "compare", *at)
    searches = sorted(file.parent.name for file in Path(folder, "it").glob("*/trials.parquet"))
    trials = {f"{name}: trials": tables(Path(folder, "it", name))["trials"] for name in searches}
    return tables(Path(folder, "it")) | trials


def tables(folder: Path) -> Tables:
    """The tables of a study's folder; its trials by number."""
    import pandas as pd

    files = [folder / file for file in TABLES if (folder / file).exists()]
    read = {".parquet": pd.read_parquet, ".csv": lambda f: pd.read_csv(f, dtype=str, keep_default_na=False).map(number)}
    by_name = {file.stem: read[file.suffix](file) for file in files}
    if "trials" in by_name:
        order = {trial: i for i, trial in enumerate(by_name["trials"]["trial"])}
        for name in {"rounds", "front"} & by_name.keys():
            by_name[name].insert(0, "number", by_name[name]["trial"].map(order))
            by_name[name] = by_name[name].sort_values(["number", "round"], kind="stable")
    return by_name


def number(text: str) -> Any:
    """What a cell of a CSV file says; pandas' own reader may round."""
    try:
        return float(text)
    except ValueError:
        return text


HOW: dict[str, Callable[[Case], Tables]] = {"train": trained, "run": run, "search": search, "compare": compare}


def plain(table: Any) -> dict[str, list[Any]]:
    """A table's columns as JSON has them, which gives a float's bits back.  NaN and what is absent are null."""
    return {str(name): [_plain(v) for v in table[name].tolist()] for name in table if name not in LEFT_OUT}


def _plain(value: Any) -> Any:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return repr(value) if isinstance(value, float) and math.isinf(value) else value


def gives(case: Case, how: str) -> Tables:
    """A case's tables as JSON has them."""
    return {name: plain(table) for name, table in HOW[how](case).items()}


def machine() -> dict[str, str]:
    """What decides about the last bits."""
    import torch

    cpu = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in cpu.read_text().splitlines() if line.startswith("model name")]
    versions = {package: importlib.metadata.version(package) for package in PACKAGES}
    return versions | {"instructions": torch.backends.cpu.get_cpu_capability(), "processor": names[0] if names else ""}


def differences(was: Tables, now: Tables, same: Callable[[Any, Any], bool]) -> Iterator[str]:
    """Columns that differ, each with the first two values that do."""
    for name in sorted(was.keys() | now.keys()):
        old, new = was.get(name, {}), now.get(name, {})
        for column in sorted(old.keys() | new.keys()):
            a, b = old.get(column), new.get(column)
            if a is None or b is None or len(a) != len(b):
                yield f"{name}, {column}: was {a}, is {b}"
            elif wrong := [(x, y) for x, y in zip(a, b, strict=True) if not same(x, y)]:
                yield f"{name}, {column}: was {wrong[0][0]!r}, is {wrong[0][1]!r} ({len(wrong)} of {len(a)})"


def equal(a: Any, b: Any) -> bool:
    """Whether two numbers have the same bits."""
    return a == b


def close(a: Any, b: Any, to: float = CLOSE) -> bool:
    """Whether two numbers are the same to a millionth, or as a case says."""
    numbers = all(isinstance(v, int | float) for v in (a, b))
    return a == b or (numbers and abs(a - b) <= to * max(1.0, abs(a), abs(b)))


@contextlib.contextmanager
def users_folder() -> Iterator[None]:
    """A folder with the users' files and data, in which everything is trained."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(shutil.copytree(FOLDER / "user", f"{folder}/user")):
        runpy.run_path("data.py")["write"]()
        yield


def verify(group: str, cases: list[Case], made: dict[str, str]) -> int:
    """Train the cases anew; how many differ or fail."""
    wrong, here = 0, machine()
    other = [f"{name} {value}, was {made[name]}" for name, value in here.items() if made.get(name) != value]
    for case in cases:
        for how in case["how"]:
            try:
                now = gives(case, how)
            except Exception as error:  # the other cases are told of nevertheless
                wrong += 1
                print(f"{group}/{case['name']}, {how}: FAILED, {type(error).__name__}: {error}", flush=True)
                continue
            differ, by = list(differences(case["tables"], now, equal)), "bit by bit"
            if differ and other:
                to = case.get("close", CLOSE)
                differ = list(differences(case["tables"], now, functools.partial(close, to=to)))
                by = f"to {to}, as {'; '.join(other)}"
            wrong += bool(differ)
            outcome = "DIFFERS" if differ else "equal"
            print(f"{group}/{case['name']}, {how}: {outcome}, compared {by}", *differ, sep="\n  ", flush=True)
    return wrong


def write(file: Path, content: dict[str, Any], cases: list[Case]) -> None:
    """Train the chosen cases, and write the group's file with what they give."""
    for case in cases:
        first, *others = (gives(case, how) for how in case["how"])
        for more in others:
            if differ := list(differences(first, more, equal)):
                raise SystemExit(f"{case['name']}: {' and '.join(case['how'])} differ: {differ}")
        case["tables"] = first
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in content["cases"])
    file.write_text(f'{{"made": {json.dumps(machine())},\n"cases": [\n{lines}\n]}}\n')
    print(f"{file.name}: {len(cases)} of {len(content['cases'])} cases written", flush=True)


def main(argv: list[str] | None = None) -> int:
    """Verify or write; 1 if a number differs."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("verify", "write"))
    parser.add_argument("--only", nargs="+", default="*", help="GROUP/CASE, in which * and ? stand for any letters")
    args = parser.parse_args(argv)
    wrong = seen = 0
    with users_folder():
        for file in sorted(FOLDER.glob("*.json")):
            content = json.loads(file.read_text())
            names = {case["name"]: f"{file.stem}/{case['name']}" for case in content["cases"]}
            wanted = {n for n, full in names.items() if any(fnmatch.fnmatch(full, p) for p in args.only)}
            cases = [case for case in content["cases"] if case["name"] in wanted]
            seen += len(cases)
            if cases and args.what == "write":
                write(file, content, cases)
            elif cases:
                wrong += verify(file.stem, cases, content["made"])
    print(f"{seen} cases, {wrong} differ" if args.what == "verify" else f"{seen} cases")
    return int(wrong > 0 or seen == 0)


if __name__ == "__main__":
    if any(
        os.environ.get(name) != value for name, value in FIXED.items() if name != "PATH"
    ):  # before PyTorch is loaded
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.golden", *sys.argv[1:]], os.environ | FIXED)
    sys.exit(main())
