"""How long a large study's folder takes to load by analysis.frames, beside reading its two files and nothing more.

python -m benchmarks.frames [--trials 10000] [--rounds 100]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from fedtune.analysis import frames
from fedtune.core.metrics import METRICS


def made(run: Path, trials: int, rounds: int) -> None:
    """A finished study's folder with made-up numbers."""
    rng, names = np.random.default_rng(0), [f"{i:08x}" for i in range(trials)]
    run.mkdir()
    record = {"algorithm": "gfpl", "scenario": {"dataset": "digits", "rounds": rounds}}
    (run / "run.json").write_text(json.dumps(record))
    table = {"trial": names, "status": rng.choice(["finished", "stopped"], trials), "rounds": rounds, "reason": ""}
    numbers = [c for c, kind in frames.TRIALS.items() if kind == "float64"] + [f"config/h{i}" for i in range(6)]
    pd.DataFrame(table | {c: rng.random(trials) for c in numbers}).to_parquet(run / "trials.parquet")
    every = {"trial": np.repeat(names, rounds), "round": np.tile(np.arange(1, rounds + 1), trials)}
    metrics = {m: rng.random(trials * rounds) for m, d in METRICS.items() if not d.search_only}
    pd.DataFrame(every | metrics).to_parquet(run / "rounds.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=100)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        made(run, args.trials, args.rounds)
        began = time.perf_counter()
        for name in ("trials", "rounds"):
            pd.read_parquet(run / f"{name}.parquet")
        read = time.perf_counter() - began
        began = time.perf_counter()
        _, rows = frames.load(run)
        loaded = time.perf_counter() - began
    print(f"{args.trials:,} trials, {len(rows):,} rounds: {loaded:.2f} s, {loaded / read:.1f} times as long as reading")


if __name__ == "__main__":
    main()
