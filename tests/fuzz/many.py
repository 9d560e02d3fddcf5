"""python -m tests.fuzz.many --trials 10000: what status, report and frames take on a search of so many trials.

The run is made up, by the project's own writers of logs, tables and records: every third trial goes on at each rung.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

ROUNDS, RUNGS = 27, (3, 9, 27)
HELD = "next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM'))"  # not its parent's
PEAK = f"import atexit; atexit.register(lambda: print('peak', {HELD})); "
ASKED = {
    "status": "import sys; from fedtune.commands.status import main; sys.exit(main([sys.argv[1]]))",
    "frames": "import sys; from fedtune.runs import frames; print([len(f) for f in frames.load(sys.argv[1])])",
    "report": "import sys; from fedtune.commands.report import main; sys.exit(main([sys.argv[1]]))",
    "imports": "import pandas, plotly, optuna, rich",
}


def made_up(run: Path, count: int, log: bool = True) -> Path:
    """The folder of a finished search.  log: with each trial's own log, as Ray leaves it."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    from fedtune.core.budget import Budget
    from fedtune.core.metrics import METRIC
    from fedtune.experiment.experiment import Experiment
    from fedtune.experiment.scenarios import find
    from fedtune.runs import provenance, reading, tables
    from fedtune.runs.files import RunFiles

    files, chance = RunFiles(run), random.Random(0)
    rows = {f"{i:08x}": _rows(f"{i:08x}", chance) for i in range(count)}
    run.mkdir(parents=True)
    rounds = tables.rounds_frame(rows)
    by_trial = dict(iter(rounds.groupby("trial", sort=False)))
    trials = [_trial(name, of, tables.trial_summary(by_trial[name])) for name, of in rows.items()]
    import pandas as pd

    reading.write_table(rounds, files.rounds_file)
    reading.write_table(pd.DataFrame(trials), files.trials_file)
    experiment = Experiment(algorithm="fedprox", scenario=find("digits-w4"))
    files.add(
        **provenance.of_workload(experiment),
        scenario_name="digits-w4",
        trials=count,
        space={"lam": "0.01..10", "lr": "0.001..1"},
        searcher="random",
        scheduler="asha",
        budget=Budget("rounds", ROUNDS)._asdict(),
        rungs=[*RUNGS[:-1]],
        concurrent=2,
    )
    files.write("finished")
    if log:
        for name, of in rows.items():
            (run / f"fedprox-{name}").mkdir()
            text = "".join(json.dumps(row) + "\n" for row in of)
            (run / f"fedprox-{name}" / "result.json").write_text(text)
    study = optuna.create_study(
        study_name="run", direction="maximize", storage=JournalStorage(JournalFileBackend(str(files.study_file)))
    )
    over = {n: optuna.distributions.FloatDistribution(1e-3, 10.0, log=True) for n in ("lam", "lr")}
    study.add_trials(
        [
            optuna.trial.create_trial(
                params=of[0]["config"],
                distributions=over,
                value=of[-1][METRIC],
                user_attrs={"trial": name},
                intermediate_values={int(r["round"]): r[METRIC] for r in of},
            )
            for name, of in rows.items()
        ]
    )
    return run


def _rows(trial: str, chance: random.Random) -> list[dict[str, Any]]:
    """What a trial reports; one in three goes on at each rung."""
    last = next(rung for rung in RUNGS if rung == RUNGS[-1] or chance.random() > 1 / 3)
    config = {"lam": 10 ** chance.uniform(-2, 1), "lr": 10 ** chance.uniform(-3, 0)}
    height = chance.uniform(0.5, 0.95)
    return [
        {
            "trial_id": trial,
            "training_iteration": t,
            "timestamp": t,
            "round": t,
            "time_total_s": float(t),
            "val_acc": height * t / (t + 2),
            "test_acc": height * t / (t + 2.1),
            "val_loss": 3 / t,
            "comm_mb": 0.1 * t,
            "seconds": float(t),
            "eval_seconds": 0.01,
            "train_loss": 3 / t,
            "config": config,
            "complete": t == ROUNDS,
        }
        for t in range(1, last + 1)
    ]


def _trial(name: str, rows: list[dict[str, Any]], summary: dict[str, Any]) -> dict[str, Any]:
    status = "finished" if rows[-1]["complete"] else "stopped"
    return (
        {"trial": name, "status": status, "reason": ""}
        | summary
        | {f"config/{n}": v for n, v in rows[0]["config"].items()}
    )


def main() -> int:
    """Make the run, ask, and print a line for each."""
    p = argparse.ArgumentParser(allow_abbrev=False, prog="python -m tests.fuzz.many", description=__doc__)
    p.add_argument("--trials", type=int, default=10_000)
    p.add_argument("--keep", type=Path, help="make the run here, and leave it")
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        run = args.keep or Path(temporary) / "run"
        if not run.exists():
            made_up(run, args.trials)
        for name, code in ASKED.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            said = subprocess.run([sys.executable, "-c", PEAK + code, str(run)], capture_output=True, text=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            peak = int(said.stdout.split()[-1]) / 1024
            print(
                f"{name:8} status {said.returncode}, {seconds:5.1f} CPU s, {peak:5.0f} MB {said.stderr[-300:]}",
                flush=True,
            )
        page = run / "report.html"
        print(f"page     {page.stat().st_size / 1e6:.1f} MB" if page.exists() else "no page")
    return 0


if __name__ == "__main__":
    sys.exit(main())
