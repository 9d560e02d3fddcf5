"""This working tree against another commit: both train the same rounds in turns; CPU seconds of one thread.

    python -m benchmarks.against COMMIT [--only search,fedpa,fedproto] [--rounds 10] [--turns 7] [--pairs 1] [--json F]
    python -m benchmarks.against COMMIT --algo moon --scenario digits-dir0.1 [--set mu=5 --set lr=0.1]

The commit is checked out into a worktree of its own, which is removed at the end.  Each side is one process per case.
It trains some rounds (a turn) while the other side waits; evaluation is part of a round.  The table shows medians over
the turns after the first, in which caches are filled, and the ratio of the total times, which include the start and the
first turn.  One process can be some percent faster than another that does the same; with --pairs 30 each side is that
many, and ratios are geometric means, ± half a 95 % interval.  A commit that can skip test rows skips them as a search
would, so turns of ten rounds are alike.  Both sides must give the same numbers, because a ratio of different work would
say nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "search": ("gfpl", "digits-w4", {}),  # what the default search trains, by GFPL's defaults
    "fedpa": ("fedpa", "fedpa-fmnist-a0.3", {"distance": "l2"}),  # the default at the time
    "fedproto": ("fedproto", "gfpl-fmnist-w4", {}),
}
TIMES = ("seconds", "eval_seconds")
MOVED = {  # where the names that a side needs can be, because modules were moved
    "Experiment": ("fedtune.experiment.experiment.Experiment", "fedtune.federated.experiment.Experiment"),
    "train": ("fedtune.engine.simulation.train", "fedtune.federated.simulation.play"),
    "find": ("fedtune.experiment.scenarios.find", "fedtune.federated.scenarios.find"),
    "keep_freed_memory": ("fedtune.core.memory.keep_freed_memory",),
}


def _from_this_commit(name: str) -> Any:
    """Looks for the file, as an import would find in this tree what the other lacks (editable installation)."""
    for place in MOVED[name]:
        module, _, name_there = place.rpartition(".")
        if Path(*module.split(".")).with_suffix(".py").is_file():
            return getattr(importlib.import_module(module), name_there)
    raise SystemExit(f"this commit has {name} in none of {', '.join(MOVED[name])}")


def serve(algorithm: str, scenario: str, config: dict[str, Any], rounds: int, test_every: int) -> None:
    """One side: for every line that comes in, train that many rounds and answer with CPU seconds and rows."""
    import torch

    torch.set_num_threads(1)
    _from_this_commit("keep_freed_memory")()
    found = _from_this_commit("find")(scenario).override(rounds=rounds)
    given = _from_this_commit("Experiment")(algorithm=algorithm, scenario=found)
    if hasattr(given, "test_every"):
        given = dataclasses.replace(given, test_every=test_every)
    began = time.process_time()
    rows = _from_this_commit("train")(given, config, data_dir=os.environ.get("FEDTUNE_DATA_DIR"))
    for line in sys.stdin:
        some = [next(rows) for _ in range(int(line))]
        print(json.dumps({"cpu": time.process_time() - began, "rows": some}), flush=True)
        began = time.process_time()


class Side:
    """A process that trains one case with the code of one tree."""

    def __init__(self, tree: Path, case: tuple[str, str, dict[str, Any]], *often: int) -> None:
        """often: how many rounds in all, and which of them score test rows."""
        self.cpu: list[float] = []  # of each turn
        self.rows: list[dict[str, Any]] = []
        command = [sys.executable, "-P", str(Path(__file__)), "--serve", json.dumps([*case, *often])]
        env = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=tree, env=env, stdin=pipe, stdout=pipe, text=True)

    def turn(self, rounds: int) -> None:
        """Train some rounds."""
        assert self.process.stdin and self.process.stdout
        print(rounds, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit("one side ended early; its output is above")
        figures = json.loads(answer)
        self.cpu.append(figures["cpu"])
        self.rows += figures["rows"]

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()

    def scoring(self) -> float:
        """The share of scoring in the time of all rounds."""
        train, score = (sum(row[name] for row in self.rows) for name in TIMES)
        return score / (train + score)


def differences(rows: list[dict[str, Any]], other_rows: list[dict[str, Any]]) -> str:
    """The figures of both sides that differ, and the largest difference of each."""
    difference: dict[str, float] = {}
    for a, b in zip(rows, other_rows, strict=True):
        for name in a.keys() & b.keys() - set(TIMES):
            same = a[name] == b[name] or a[name] is None or b[name] is None or math.isnan(a[name] + b[name])
            difference[name] = max(difference.get(name, 0.0), 0.0 if same else abs(a[name] - b[name]))
    differ = {name: by for name, by in sorted(difference.items()) if by}
    if not differ:
        return f"all {len(difference)} figures are the same"
    return "differ: " + ", ".join(f"{name} by {by:.1g}" for name, by in differ.items())


def compare(
    name: str, case: tuple[str, str, dict[str, Any]], other: Path, rounds: int, turns: int, test_every: int
) -> dict[str, Any]:
    """One case, trained by both sides in turns."""
    sides = this_side, other_side = [Side(tree, case, rounds * turns, test_every) for tree in (ROOT, other)]
    for turn in range(turns):
        for side in sides if turn % 2 else reversed(sides):
            side.turn(rounds)
    for side in sides:
        side.end()
    a, b = (float(np.median(side.cpu[1:] or side.cpu)) / rounds for side in sides)
    return {
        "case": name,
        "algorithm": case[0],
        "scenario": case[1],
        "ours": a,
        "theirs": b,
        "ratio": b / a,
        "half": math.nan,
        "ratio_of_total": sum(other_side.cpu) / sum(this_side.cpu),
        "scoring": this_side.scoring(),
        "their_scoring": other_side.scoring(),
        "numbers": differences(this_side.rows, other_side.rows),
    }


def mean_of(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    """The pairs of a case in one row: means, geometric ones of ratios, and whether the numbers of all were the same."""
    from fedtune.core import statistics

    numeric = {n: float(np.mean([row[n] for row in pairs])) for n, v in pairs[0].items() if isinstance(v, float)}
    of_turns, of_all = (statistics.mean(np.log([row[n] for row in pairs])) for n in ("ratio", "ratio_of_total"))
    differ = [row["numbers"] for row in pairs if row["numbers"] != pairs[0]["numbers"]]
    numbers = "; ".join([pairs[0]["numbers"], *differ])
    ratio = math.exp(of_turns.mean)
    ratios = {"ratio": ratio, "half": ratio * of_turns.half, "ratio_of_total": math.exp(of_all.mean)}
    return pairs[0] | numeric | ratios | {"numbers": numbers, "pairs": len(pairs)}


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """The files of a commit in a folder of their own, for as long as they are needed."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", str(tree), commit], cwd=ROOT, check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", nargs="?", help="what this working tree is compared with")
    parser.add_argument("--only", default=",".join(CASES), help="which cases, with commas")
    parser.add_argument("--algo", help="a case of your own: this algorithm")
    parser.add_argument("--scenario", default="digits-w4", help="in this scenario (default digits-w4)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="with this hyperparameter")
    parser.add_argument("--rounds", type=int, default=10, help="of a turn (default 10)")
    parser.add_argument("--turns", type=int, default=7, help="of each side (default 7)")
    parser.add_argument("--pairs", type=int, default=1, help="of processes, the sides (default 1)")
    parser.add_argument("--test-every", type=int, default=10, help="as a search's (default 10); older commits have 1")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(*json.loads(args.serve))
        return 0
    if not args.commit:
        parser.error("name the commit to compare with")
    if unknown := set(args.only.split(",")) - set(CASES):
        parser.error(f"--only takes {', '.join(CASES)}, but got {', '.join(sorted(unknown))}")
    cases = {name: CASES[name] for name in args.only.split(",")}
    if args.algo:
        given = {name: json.loads(value) for name, value in (pair.split("=", 1) for pair in args.set)}
        cases = {args.algo: (args.algo, args.scenario, given)}
    heads = f"{'theirs ms':>10} {'ours ms':>9} {'ratio':>14} {'total':>6}"
    print(f"{'case':10} {'scenario':20} {heads}   scoring, theirs and ours")
    rows = []
    with worktree(args.commit) as tree:
        for name, case in cases.items():
            pairs = (compare(name, case, tree, args.rounds, args.turns, args.test_every) for _ in range(args.pairs))
            row = mean_of(list(pairs)) if args.pairs > 1 else next(pairs)
            rows.append(row)
            spread = f"{row['ratio']:.3f} ± {row['half']:.3f}" if args.pairs > 1 else f"{row['ratio']:.2f}"
            print(
                f"{name:10} {case[1]:20} {row['theirs'] * 1e3:10.1f} {row['ours'] * 1e3:9.1f} {spread:>14} "
                f"{row['ratio_of_total']:6.2f}   {row['their_scoring']:.0%}, {row['scoring']:.0%}; {row['numbers']}",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
