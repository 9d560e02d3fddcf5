"""What the live page costs: its first paint, its memory, its share of a processor, and what it takes from a driver.

    python -m benchmarks.watch [--searches 10] [--trials 200] [--rounds 60] [--seconds 30]

Half of the searches go on: their logs grow by a round of two trials each second.  First paints are a headless
Chromium's own (first-contentful-paint), of the history and of a search that goes on; without Chromium there are none.
What the page takes from a driver is told by one that does nothing but log rounds: its processor's seconds a round,
in turns without and with a page that follows its search.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
import psutil
import requests

from fedtune.runs.files import RunFiles, write_json

TOKEN = "a-token-of-the-benchmark"
RECORD: dict[str, Any] = {
    "algorithm": "fedproto",
    "searcher": "tpe",
    "scheduler": "asha",
    "started": "2026-11-21T05:08:12+00:00",
    "concurrent": 2,
    "space": {"lr": "0.001 … 0.3 (log)", "lam": "0.01 … 50 (log)", "momentum": "0 … 0.95"},
    "scenario_name": "digits-w4",
    "objectives": ["val_acc"],
    "seed": 0,
}
METRICS = ("val_acc", "val_acc_std", "val_acc_worst10", "val_loss", "train_loss", "test_acc", "comm_mb", "seconds")
METRICS += ("eval_seconds", "up_bytes", "down_bytes", "test_acc_std", "test_acc_worst10", "test_loss")


def line(trial: str, t: int, rng: np.random.Generator, config: dict[str, float]) -> str:
    """A round's line in a trial's log, of about the length of a real one."""
    row: dict[str, Any] = {name: float(value) for name, value in zip(METRICS, rng.random(len(METRICS)), strict=True)}
    row |= {"round": t, "training_iteration": t, "trial_id": trial, "timestamp": time.time(), "time_total_s": float(t)}
    row |= {"hostname": "node", "pid": 1, "node_ip": "127.0.0.1", "time_this_iter_s": 0.5, "config": config}
    return json.dumps(row) + "\n"


def made(run: Path, trials: int, rounds: int, goes_on: bool, seed: int) -> None:
    """A search's folder: two trials of one that goes on are running, and of the others two thirds were stopped."""
    rng, files = np.random.default_rng(seed), RunFiles(run)
    scenario, budget = {"dataset": "digits", "rounds": rounds}, {"unit": "rounds", "limit": rounds, "since": 1}
    rungs = [max(1, rounds // 9), max(2, rounds // 3)]
    state = "running" if goes_on else "finished"
    files.write(
        state, **RECORD, trials=trials, scenario=scenario, budget=budget, rungs=rungs, status={"stopped": trials}
    )
    states = []
    for i in range(trials):
        trial, config = f"{seed:02x}{i:06x}", {"lr": float(rng.random()), "lam": float(rng.random()), "momentum": 0.5}
        running = goes_on and i >= trials - 2
        played = 1 if running else (rungs[0], rungs[1], rounds)[i % 3]
        folder = run / f"fedproto-{trial}"
        folder.mkdir()
        (folder / "result.json").write_text("".join(line(trial, t, rng, config) for t in range(1, played + 1)))
        states.append((json.dumps({"trial_id": trial, "status": "RUNNING" if running else "TERMINATED"}), ""))
    write_json(run / "experiment_state-2026.json", {"trial_data": states})


def grow(run: Path, over: threading.Event) -> None:
    """Two trials of a search go on, a round a second."""
    rng, files = np.random.default_rng(0), sorted(run.glob("*/result.json"))[-2:]
    t = 1
    while not over.wait(1):
        t += 1
        for file in files:
            with file.open("a") as log:
                log.write(line(file.parent.name.rpartition("-")[2], t, rng, {"lr": 0.1, "lam": 1.0, "momentum": 0.5}))


@contextmanager
def watched(storage: Path) -> Iterator[tuple[str, psutil.Process]]:
    """`fedtune watch` on this storage path: its address, and its process."""
    words = [sys.executable, "-m", "fedtune", "watch", "--storage-path", str(storage), "--port", "0"]
    settings = os.environ | {"FEDTUNE_WATCH_TOKEN": TOKEN}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=settings)
    try:
        assert process.stdout
        address = re.search(r"http://[\d.:]+", process.stdout.readline())
        assert address, "it did not start"
        yield address[0], psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)


def memory(process: psutil.Process) -> tuple[float, float]:
    """Megabytes of the server, and of the process that draws."""
    drawing = [child.memory_info().rss for child in process.children()]
    return process.memory_info().rss / 1e6, sum(drawing) / 1e6


def paints(base: str) -> dict[str, float]:
    """Milliseconds to the first paint, by page, in a browser that has never seen them."""
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        print("first paint: not measured, for it needs chromium and chromedriver")
        return {}
    place = Path(__file__).parents[1] / "tests"
    sys.path.insert(0, str(place))
    chromium = importlib.import_module("support.chromium").chromium
    found = {}
    with chromium() as browser:
        browser.do("url", url=f"{base}/static/watch.css?token={TOKEN}")  # for the cookie alone
        for name, path in {"the history": "/", "a search that goes on": "/run/search-00"}.items():
            browser.do("url", url=base + path)
            look = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
            while not (at := browser.script(look)):
                time.sleep(0.1)
            found[name] = at
    return found


def logging_seconds(file: Path, rounds: int) -> float:
    """The processor's seconds for a thousand rounds of a driver that does nothing but log them."""
    rng = np.random.default_rng(0)
    with file.open("a") as log:
        began = time.process_time()
        for t in range(rounds):
            log.write(line("00000000", t + 2, rng, {"lr": 0.1}))
            log.flush()
            time.sleep(0.001)
        return (time.process_time() - began) / rounds * 1000


def follow(base: str, path: str, over: threading.Event) -> None:
    """A browser's part: it listens for changes and fetches what is drawn."""
    cookies = {f"fedtune-watch-{base.rpartition(':')[2]}": TOKEN}
    listening = requests.get(f"{base}/events{path}", cookies=cookies, stream=True, timeout=600)
    with suppress(requests.RequestException), listening as events:  # until the server ends
        for heard in events.iter_lines():
            if over.is_set():
                return
            if heard == b"event: drawn":
                requests.get(f"{base}/drawn{path}", cookies=cookies, timeout=600)


def main() -> int:
    """Make the searches, watch them, and print what it cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=10)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=30, help="of following a search")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as held:
        storage, over = Path(folder), threading.Event()
        runs = [storage / f"search-{i:02}" for i in range(args.searches)]
        for i, run in enumerate(runs):
            made(run, args.trials, args.rounds, i % 2 == 0, i)
        growing = [threading.Thread(target=grow, args=(run, over)) for run in runs[::2]]
        held.callback(over.set)
        for run, thread in zip(runs[::2], growing, strict=True):
            held.enter_context(RunFiles(run).lock())
            thread.start()
        print(f"{args.searches} searches of {args.trials} trials, half of them going on, load {os.getloadavg()[0]:.1f}")
        with watched(storage) as (base, process):
            for name, at in paints(base).items():
                print(f"first paint of {name}: {at / 1000:.2f} s")
            print("memory: server {:.0f} MB, drawing {:.0f} MB".format(*memory(process)))
            follows = threading.Thread(target=follow, args=(base, "/run/search-00", over), daemon=True)
            follows.start()
            time.sleep(5)
            used, most = sum(process.cpu_times()[:2]), [0.0, 0.0]
            began = time.monotonic()
            while time.monotonic() - began < args.seconds:
                time.sleep(0.5)
                most = [max(a, b) for a, b in zip(most, memory(process), strict=True)]
            share = (sum(process.cpu_times()[:2]) - used) / args.seconds
            print(f"following a search: server at most {most[0]:.0f} MB and {100 * share:.1f} % of a processor")
            print(f"while its figures are drawn: another process of at most {most[1]:.0f} MB, at the lowest priority")
            file, unseen, ratios = sorted(runs[0].glob("*/result.json"))[-1], storage / "unseen.json", []
            for _ in range(21):
                alone = logging_seconds(unseen, 1000)
                ratios.append(2 * logging_seconds(file, 1000) / (alone + logging_seconds(unseen, 1000)))
            low, _, high = quantiles(ratios, n=4)
            said = f"{median(ratios):.3f} (quartiles {low:.3f} and {high:.3f})"
            print(f"a driver that logs: {said} times the processor's time a round")
        over.set()
    return 0


if __name__ == "__main__":
    sys.exit(main())
