"""What a trial of a program costs beside the program's own time.

    python -m benchmarks.programs [--json FILE] [--rounds 2000] [--runs 15]

Two figures.  A row, from the program's line to the row that `step` returns: a program prints all its rounds at once, so
nothing but reading is measured; by pattern, by a reported line, and through a file.  And a whole run of a program that
does nothing but print one round, against the same command started and waited for without fedtune.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fedtune.programs import program_file
from fedtune.programs.program_file import Program
from fedtune.programs.run import ProgramRun

ROW_MS, RUN_S = 1.0, 0.2  # what is asked
PATTERN = "[metrics.acc]\npattern = 'acc: ([0-9.]+)'\nmode = 'max'\n[metrics.loss]\npattern = 'loss: ([0-9.]+)'\n"
NAMED = "[metrics.acc]\nmode = 'max'\n[metrics.loss]\n"
COLUMNS = "[metrics.acc]\nmode = 'max'\n[metrics.loss]\n"
# the program's file beside its head, and what a program does for each round
WAYS = {
    "pattern": (PATTERN, "print(f'round {i} acc: 0.{i} loss: 0.{i}')"),
    "line": (NAMED, """print('fedtune {"round": %d, "acc": 0.5, "loss": 1.5}' % i)"""),
    "reported": (NAMED, "report(round=i, acc=0.5, loss=1.5)"),
    "table": (f"file = '{{folder}}/a.csv'\n{COLUMNS}", "table.write(f'{i},0.5,1.5\\n')"),
}
HEAD = """
import sys
from fedtune import report
table = open(sys.argv[1] + '/a.csv', 'w')
table.write('round,acc,loss\\n')
"""


def program(folder: Path, more: str, script: str, rounds: int) -> Program:
    """A program in a folder of its own."""
    (folder / "own.py").write_text(script)
    top, bar, tables = more.partition("[")
    words = json.dumps([sys.executable, "own.py", "{folder}"])
    (folder / "own.toml").write_text(f"command = {words}\nrounds = {rounds}\nseed = 'none'\n{top}{bar}{tables}")
    return program_file.read(folder / "own.toml")


def rows(way: str, rounds: int) -> dict[str, float]:
    """Milliseconds for a row: of the worker's processor, and of the clock from the first row to the last."""
    more, line = WAYS[way]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        script = f"{HEAD}for i in range(1, {rounds} + 1):\n    {line}\n"
        run = ProgramRun(program=program(folder, more, script, rounds), config={}, seed=0, folder=folder / "trial")
        run.step()
        began, used = time.perf_counter(), time.process_time()
        while run.round < rounds:
            run.step()
        took, used = time.perf_counter() - began, time.process_time() - used
    return {"row_ms": 1e3 * used / rounds, "clock_ms": 1e3 * took / rounds, "asked_ms": ROW_MS}


def run_times(runs: int) -> dict[str, float]:
    """Seconds of a run and of its command alone, in turns, so that a busy machine hits both alike."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        made = program(folder, PATTERN, "print('acc: 0.5 loss: 1.5')", 1)
        with_fedtune, alone = [], []
        for i in range(runs):
            began = time.perf_counter()
            ProgramRun(program=made, config={}, seed=0, folder=folder / f"trial-{i}").step()
            middle = time.perf_counter()
            subprocess.run([sys.executable, "own.py", place], cwd=folder, capture_output=True, check=True)
            with_fedtune.append(middle - began)
            alone.append(time.perf_counter() - middle)
    run_s, alone_s = statistics.median(with_fedtune), statistics.median(alone)
    return {"run_s": run_s, "alone_s": alone_s, "beside_s": run_s - alone_s, "asked_s": RUN_S}


def main() -> int:
    """Measure both."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=15)
    args = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    for way in WAYS:
        row = figures[way] = rows(way, args.rounds)
        late = "" if max(row["row_ms"], row["clock_ms"]) <= ROW_MS else "  above"
        print(f"{way:9} {row['row_ms']:7.3f} ms of processor, {row['clock_ms']:7.3f} ms a row; asked {ROW_MS}{late}")
    run = figures["run"] = run_times(args.runs)
    late = "" if run["beside_s"] <= RUN_S else "  above"
    print(
        f"a run {run['run_s']:.3f} s, alone {run['alone_s']:.3f} s: {run['beside_s']:.3f} s more; asked {RUN_S}{late}"
    )
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
