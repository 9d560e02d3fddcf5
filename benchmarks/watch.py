"""What the live page costs: its first paint, its memory, its share of a processor, and what it takes from a driver.

    python -m benchmarks.watch [--searches 10] [--trials 200] [--rounds 60] [--seconds 60] [--turns 1000]

Half of the searches go on: their logs grow by a round of two trials each second.  First paints are a headless
Chromium's own (first-contentful-paint), of the history and of a search that goes on; without Chromium there are none.

Memory is that of all processes of the page together, as the kernel shares it out (PSS), looked at twice a second.

What the page takes from a driver is told by one that does nothing but log rounds, in a process of its own: into the
log that the page follows, and into a file that nobody reads, in turns.  It pays if the page's reading makes its writing
slower, by locks or by the page cache; the page is another process, and nothing of it runs in the driver.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
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
from statistics import median
from typing import Any

import numpy as np
import optuna
import psutil
import requests
from optuna.distributions import FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from fedtune.core import statistics
from fedtune.runs.files import RunFiles, write_json

TOKEN = "a-token-of-the-benchmark"
LIMIT = 200  # megabytes
RECORD: dict[str, Any] = {
    "algorithm": "fedproto",
    "searcher": "tpe",
    "scheduler": "asha",
    "started": "2026-11-21T05:08:12+00:00",
    "concurrent": 2,
    "space": {"lr": "0.001..0.3 log", "lam": "0.01..50 log", "momentum": "0..0.95"},
    "scenario_name": "digits-w4",
    "objectives": ["val_acc"],
    "seed": 0,
}
BLOCK, REST = 20, 0.03  # rounds that the driver logs in a row, and seconds before them
RANGES = dict.fromkeys(("lr", "lam", "momentum"), FloatDistribution(0.0, 1.0))
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
    states, ended_trials = [], []
    for i in range(trials):
        trial, config = f"{seed:02x}{i:06x}", {name: float(rng.random()) for name in RANGES}

        running = goes_on and i >= trials - 2
        played = 1 if running else (rungs[0], rungs[1], rounds)[i % 3]
        folder = run / f"fedproto-{trial}"
        folder.mkdir()
        (folder / "result.json").write_text("".join(line(trial, t, rng, config) for t in range(1, played + 1)))
        if not running:
            state = TrialState.COMPLETE if played == rounds else TrialState.PRUNED
            attributes = {"trial": trial, "rounds": played}
            ended_trials.append(
                optuna.create_trial(
                    state=state,
                    params=config,
                    distributions=RANGES,
                    value=float(rng.random()) if state == TrialState.COMPLETE else None,
                    intermediate_values={t: float(rng.random()) for t in range(1, played + 1)},
                    user_attrs=attributes,
                )
            )
        states.append((json.dumps({"trial_id": trial, "status": "RUNNING" if running else "TERMINATED"}), ""))
    write_json(run / "experiment_state-2026.json", {"trial_data": states})
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = JournalStorage(JournalFileBackend(str(files.study_file)))
    optuna.create_study(storage=storage, study_name=run.name, direction="maximize").add_trials(ended_trials)


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
    """Megabytes of the server, and of the process that draws, by what the kernel has each answer for (PSS)."""
    shares = [process.memory_full_info().pss]
    for child in process.children(recursive=True):
        with suppress(psutil.Error):  # it may end meanwhile
            shares.append(child.memory_full_info().pss)
    return shares[0] / 1e6, sum(shares[1:]) / 1e6


def paints(base: str) -> dict[str, float]:
    """Milliseconds to the first paint, by page, in a browser that has never seen them."""
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        print("first paint: not measured, for it needs chromium and chromedriver")
        return {}
    place = Path(__file__).parents[1] / "tests"
    sys.path.insert(0, str(place))
    chromium = importlib.import_module("support.chromium").chromium
    times = {}
    with chromium() as browser:
        browser.do("url", url=f"{base}/static/watch.css?token={TOKEN}")  # for the cookie alone
        for name, path in {"the history": "/", "a search that goes on": "/run/search-00"}.items():
            browser.do("url", url=base + path)
            look = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
            while not (at := browser.script(look)):
                time.sleep(0.1)
            times[name] = at
    return times


DRIVER = """
import sys, time
from pathlib import Path
import numpy as np
from benchmarks.watch import BLOCK, REST, line

def counted():
    found = dict(text.split(": ") for text in Path("/proc/self/io").read_text().splitlines())
    return [int(found[name]) for name in ("syscr", "syscw", "rchar", "wchar")]

rng = np.random.default_rng(0)
with open(sys.argv[1], "a") as watched, open(sys.argv[2], "a") as unseen:
    for turn in range(int(sys.argv[3])):
        for log in (watched, unseen, unseen, watched) if turn % 2 else (unseen, watched, watched, unseen):
            time.sleep(REST)
            before, began = counted(), time.process_time()
            for _ in range(BLOCK):
                log.write(line("00000000", turn + 2, rng, {"lr": 0.1}))
                log.flush()
            print(int(log is watched), time.process_time() - began, *(b - a for a, b in zip(before, counted())))
"""


def what_it_takes(seen: Path, unseen: Path, turns: int) -> None:
    """Print what a round costs a driver that logs it where the page looks, over where nobody does.

    Its processor's time is compared between blocks of rounds that lie milliseconds apart, in turns.
    """
    words = [sys.executable, "-c", DRIVER, str(seen), str(unseen), str(turns)]
    printed = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
    blocks = np.array([line.split() for line in printed.splitlines()], float).reshape(turns, 4, -1)
    of = {watched: blocks[blocks[..., 0] == watched].reshape(turns, 2, -1).sum(1)[:, 1:] for watched in (1, 0)}
    cost = statistics.mean(np.log(of[1][:, 0] / of[0][:, 0]))
    low, middle, high = (100 * math.expm1(cost.mean + k * cost.half) for k in (-1, 0, 1))
    ms = 1e3 * of[0][:, 0].mean() / (2 * BLOCK)
    print(f"a driver's round: {ms:.3f} ms of processor time where nobody looks", end="; ")
    print(f"{middle:+.2f} % (95 % interval {low:+.2f} to {high:+.2f}) where the page does")
    reads, writes, read, written = (
        " and ".join(f"{of[w][:, 1 + k].mean() / (2 * BLOCK):.3f}" for w in (0, 1)) for k in range(4)
    )
    print(f"without and with the page: {writes} calls that write, {written} bytes written; {reads} calls that read")


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
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--searches", type=int, default=10)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=60, help="of following a search")
    parser.add_argument("--turns", type=int, default=1000, help="of a driver")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        storage, over = Path(folder), threading.Event()
        runs = [storage / f"search-{i:02}" for i in range(args.searches)]
        for i, run in enumerate(runs):
            made(run, args.trials, args.rounds, i % 2 == 0, i)
        growing = [threading.Thread(target=grow, args=(run, over)) for run in runs[::2]]
        stack.callback(over.set)
        for run, thread in zip(runs[::2], growing, strict=True):
            stack.enter_context(RunFiles(run).lock())
            thread.start()
        print(f"{args.searches} searches of {args.trials} trials, half of them going on, load {os.getloadavg()[0]:.1f}")
        with watched(storage) as (base, process):
            for name, at in paints(base).items():
                print(f"first paint of {name}: {at / 1000:.2f} s")
            print("memory: server {:.0f} MB, drawing {:.0f} MB".format(*memory(process)))
            follows = threading.Thread(target=follow, args=(base, "/run/search-00", over), daemon=True)
            follows.start()
            used, seen = sum(process.cpu_times()[:2]), []
            began = time.monotonic()
            while time.monotonic() - began < args.seconds:
                time.sleep(0.5)
                seen.append(memory(process))
            share = (sum(process.cpu_times()[:2]) - used) / args.seconds
            peaks, together = [max(part) for part in zip(*seen, strict=True)], sorted(map(sum, seen))
            print(f"following a search: server at most {peaks[0]:.0f} MB and {100 * share:.1f} % of a processor")
            print(f"while its figures are drawn: another process of at most {peaks[1]:.0f} MB, at the lowest priority")
            half, below = median(together), sum(m <= LIMIT for m in together) / len(together)
            print(f"together: {half:.0f} MB half of the time, {together[-1]:.0f} MB at most", end="")
            print(f"; {100 * below:.0f} % of the time {LIMIT} MB or less")
            what_it_takes(sorted(runs[0].glob("*/result.json"))[-1], storage / "unseen.json", args.turns)
        over.set()
    return 0


if __name__ == "__main__":
    sys.exit(main())
