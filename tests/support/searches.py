"""Whole searches, in this process and in one of their own, and how two of them compare."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd

from fedtune.commands import search
from fedtune.core.errors import UserError
from fedtune.runs import logs, tables
from fedtune.runs.folder import StudyFolder
from fedtune.tuning import saved_state
from fedtune.tuning.plan import SearchPlan, StartedSearch
from support.processes import below, working
from support.waiting import wait_for

QUICK = "--scenario digits-w4 --clients 4 --no-dashboard --final-seeds 0 "


class Listed:
    """A searcher that suggests numbers in order, and remembers how their trials ended."""

    def __init__(self) -> None:
        self.ended: dict[str, dict[str, Any]] = {}

    def suggest(self, trial_id: str) -> dict[str, Any]:
        return {"n": int(trial_id)}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        assert trial_id not in self.ended

    def on_trial_complete(self, trial_id: str, result: dict[str, Any]) -> None:
        assert trial_id not in self.ended
        self.ended[trial_id] = result


def searched(folder: Path, arguments: str, status: int = 0) -> SimpleNamespace:
    """Run a search; its folder, its tables, and what run.json says."""
    assert search.main([*arguments.split(), "--storage-path", str(folder), "--name", "run"]) == status
    at = folder / "run"
    return SimpleNamespace(
        folder=at,
        trials=pd.read_parquet(at / "trials.parquet"),
        rounds=pd.read_parquet(at / "rounds.parquet"),
        record=json.loads((at / "run.json").read_text()),
    )


def started(p: SearchPlan, prepared: Any = (), concurrent: int = 1) -> StartedSearch:
    """A planned search as it starts, without a look at its data."""
    return StartedSearch(plan=p, workload=p.workload, prepared=prepared, gpus=p.gpus, concurrent=concurrent)


def configuration(trial: Any) -> dict[str, Any]:
    """What a row of the table of trials was played with."""
    plain = {k.removeprefix(tables.CONFIG): v for k, v in trial.items() if k.startswith(tables.CONFIG)}
    return {k: v.item() if hasattr(v, "item") else v for k, v in plain.items()}


# ---- a search that is disturbed in every way, and must end as if it had not been

# two trials at once; random, so that what is tried does not depend on who ends first
TRIALS, ROUNDS = 4, 9
TWO_AT_ONCE = (
    f"--algo fedproto --clients 4 --rounds {ROUNDS} --trials {TRIALS} --searcher random --scheduler none "
    "--max-concurrent 2 --set local_epochs=1 --set lr=0.02 --set momentum=0.5 --final-seeds 0 --no-dashboard"
)


MOMENTS = (1, 12, 20, 24)  # of its 36 rounds: after so many a copy of its folder is taken


def begin_search(folder: Path, *more: str) -> subprocess.Popen:
    """The search in a process of its own."""
    return command("fedtune", "search", *TWO_AT_ONCE.split(), "--storage-path", str(folder), "--name", "run", *more)


def command(*words: str) -> subprocess.Popen:
    """A module of ours in a process of its own."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, "-m", *words], start_new_session=True, **pipes)


def copy_at(moment: int, process: subprocess.Popen, run: Path, copy: Path) -> None:
    """The folder of a running search once it has written down so many rounds."""
    copy_when(lambda: logged_rounds(run) >= moment, process, run, copy)
    assert '"running"' in (copy / "run.json").read_text()


def copy_when(moment: Callable[[], Any], process: subprocess.Popen, run: Path, copy: Path) -> None:
    """A running process's folder.  Its driver and its trials stand still meanwhile: this is what SIGKILL leaves."""
    wait_for(lambda: moment() or process.poll() is not None)
    with standing_still(process, run):
        shutil.copytree(run, copy)


@contextmanager
def standing_still(process: subprocess.Popen, run: Path) -> Iterator[None]:
    """A search's driver and trials, stopped for as long as this lasts.

    Not while Ray writes its state, which it does in place: a kill then leaves a state that is cut off and refused, as
    test_failures.py has it on purpose.
    """

    def stopped() -> list[int]:
        """Those that stand still now, with Ray's state whole; else none."""
        pids = [working(process.pid), *actors(process.pid)]
        signalled(pids, signal.SIGSTOP)
        wait_for(lambda: all(map(stands, pids)), every=0.01)
        if all(resumable(record.parent) for record in run.rglob("run.json")):
            return pids
        signalled(pids, signal.SIGCONT)
        return []

    pids = wait_for(stopped)
    try:
        yield
    finally:
        signalled(pids, signal.SIGCONT)


def signalled(pids: list[int], number: int) -> None:
    """Send a signal to those that there still are."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def stands(pid: int) -> bool:
    """Whether all threads of a process are stopped, or it has ended."""
    try:
        stats = [stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:
        return False  # a thread ended meanwhile
    return all(stat.rpartition(")")[2].split()[0] in "TtZX" for stat in stats)


def resumable(run: Path) -> bool:
    """Whether Ray's saved state is there and whole."""
    try:
        return saved_state.require_state(run)
    except UserError:
        return False


def copy_to(folder: Path, run: Path) -> Path:
    """A run's copy in a test's folder, of a name of its own.

    Within one Ray, Tune keeps a resumed search's state by the run's name and the time at which it began: of two copies
    of one name the second would be resumed from where the first one ended.
    """
    return shutil.copytree(run, folder / folder.name)


def rounds_by_configuration(run: Path) -> dict[str, pd.DataFrame]:
    """What every configuration reported, without times and names."""
    trials, rounds = (pd.read_parquet(run / f"{n}.parquet") for n in ("trials", "rounds"))
    found = {}
    for trial in trials.to_dict("records"):
        rows = rounds[rounds["trial"] == trial["trial"]].drop(columns=["trial", "seconds", "eval_seconds"])
        found[json.dumps(configuration(trial), sort_keys=True)] = rows.reset_index(drop=True)
    return found


def actors(driver: int, name: str = "Trainable") -> list[int]:
    """Processes below a driver that run trials, or the task of that name."""
    found = []
    for pid in below(driver):
        with suppress(OSError):  # it ended meanwhile
            title = Path(f"/proc/{pid}/cmdline").read_text()
            if title.startswith("ray::") and name in title:  # of a class that Ray wraps it in
                found.append(pid)
    return found


def assert_as_undisturbed(run: Path, undisturbed: Path) -> None:
    """Every configuration once, every round once, bit for bit."""
    got, want = rounds_by_configuration(run), rounds_by_configuration(undisturbed)
    assert got.keys() == want.keys() and len(got) == TRIALS
    for name, rows in want.items():
        assert rows["round"].tolist() == list(range(1, ROUNDS + 1))
        pd.testing.assert_frame_equal(got[name], rows, check_exact=True)
    trials = pd.read_parquet(run / "trials.parquet")
    assert set(trials["status"]) == {"finished"}
    study = StudyFolder(run).study
    assert study and [len(t.intermediate_values) for t in study.trials] == [ROUNDS] * TRIALS
    assert {t.user_attrs["trial"]: (t.value, t.user_attrs["test_acc"]) for t in study.trials} == {
        t.trial: (t.last_val_acc, t.last_test_acc) for t in trials.itertuples()
    }
    assert json.loads((run / "run.json").read_text())["state"] == "finished"


def logged_rounds(run: Path) -> int:
    """How many rounds a search has written down."""
    return sum(len(rows) for rows in logs.logged(run).values())
