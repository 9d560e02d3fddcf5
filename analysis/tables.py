"""Runs of many configurations without a search, each left in a file: what the tables of this folder are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from rich.console import Console
from rich.progress import Progress

from fedtune.core.errors import Diverged, UserError
from fedtune.core.memory import give_back_memory, keep_freed_memory
from fedtune.data import federation
from fedtune.federated import engine, scenarios
from fedtune.federated.algorithm import Algorithm
from fedtune.federated.experiment import Experiment
from fedtune.federated.simulation import Simulation

KEPT = ("round", "val_acc", "test_acc", "test_acc_std", "test_acc_all", "comm_mb", "seconds")


def play_all(
    runs: Sequence[tuple[Experiment, str]], rounds: int, work: Path, data_dir: str | None, every: int = 1
) -> pd.DataFrame:
    """Rows of all runs; a run whose file lies in `work` is not played again, so several commands may share the work.

    runs: experiments, each with the name of its scenario.  every: the model is scored every so many rounds, and after
    the last; always, if the algorithm wants to know.
    """
    torch.set_num_threads(1)
    keep_freed_memory()
    work.mkdir(parents=True, exist_ok=True)
    found = []
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=len(runs))
        for experiment, name in runs:
            cell = {"scenario": name, "algorithm": experiment.algorithm, "preset": experiment.preset or "as_text"}
            cell["seed"] = str(experiment.seed)
            label = "-".join([*cell.values(), *(f"{n}={v}" for n, v in experiment.pinned.items())])
            progress.update(bar, description=label)
            file = work / f"{label}-{rounds}.run.csv"
            if not file.exists():
                play(experiment, cell, rounds, data_dir, every).to_csv(file, index=False)
                give_back_memory()
            found.append(pd.read_csv(file))
            progress.advance(bar)
    return pd.concat(found)


def play(
    experiment: Experiment, cell: Mapping[str, Any], rounds: int, data_dir: str | None, every: int = 1
) -> pd.DataFrame:
    """One run: a row each time that it is scored; fewer if it diverges."""
    data = federation.make(experiment.scenario, experiment.seed, data_dir)
    sim = Simulation(experiment, {}, data)
    listens = type(sim.setting.algorithm).observe is not Algorithm.observe
    rows = []
    try:
        for t in range(1, rounds + 1):
            if listens or t % every == 0 or t == rounds:
                rows.append(sim.step())
            else:
                sim.state, _ = engine.play_round(sim.setting, sim.state)
    except Diverged:
        rows.append({"round": sim.state.round + 1})
    return pd.DataFrame([dict(cell) | {k: r.get(k) for k in KEPT} for r in rows])


def seeds(text: str) -> list[int]:
    """Whole numbers with commas between them; UserError for anything else."""
    if bad := [s for s in text.split(",") if not s.isdecimal()]:
        raise UserError(f"--seeds takes whole numbers with commas, but got {bad[0]!r}; for instance --seeds 0,1,2")
    return [int(s) for s in text.split(",")]


def write(table: pd.DataFrame, text: str, folder: Path | None, name: str) -> None:
    """The table on the terminal, and as CSV and as Markdown in a folder if there is one."""
    print(text)
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        table.to_csv(folder / f"{name}.csv", index=False)
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


def experiment(algo: str, name: str, seed: int, preset: str = "", **changes: Any) -> tuple[Experiment, str]:
    """A run of `play_all` on a named scenario with some fields changed."""
    return Experiment(algo, scenarios.find(name).override(**changes), seed, preset=preset), name
