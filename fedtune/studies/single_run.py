"""One configuration trained from its first round to its last, without Tune, and the messages about it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch

from fedtune.core.memory import keep_freed_memory
from fedtune.core.metrics import METRICS, SIM_SECONDS, is_own, is_share
from fedtune.core.statistics import figure
from fedtune.core.terminal import progress, say, several
from fedtune.engine import model_file
from fedtune.engine.simulation import Simulation
from fedtune.experiment import partitioning
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.privacy import Privacy
from fedtune.runs.trial_states import UNHEARD, unheard


def run(
    experiment: Experiment,
    data_dir: str | None = None,
    download: bool = False,
    output: Path | None = None,
    model: Path | None = None,
) -> list[dict[str, Any]]:
    """Train, show the progress and say how it ended; every round's row.

    output: where the rows are written, a line a round.  model: where the model is kept.
    """
    torch.set_num_threads(1)  # as in a trial
    keep_freed_memory()
    data = partitioning.make(experiment.scenario, experiment.seed, data_dir, download)
    simulation = Simulation(experiment, {}, data)
    setup, began = simulation.setup, time.perf_counter()
    private = Privacy.of(setup.scenario)
    executor = " and ".join(sorted({g.executor for g in simulation.state.groups}))
    size = f"{several(setup.task.clients, 'client')}, {several(setup.scenario.rounds, 'round')}"
    say(f"{experiment.algorithm}, {size}, seed {experiment.seed}, executor {executor}, {experiment.device}")
    for line in experiment.describe():
        say(line)
    rows = _rounds(simulation)
    if output:
        output.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if model:
        model_file.write(model, experiment, {}, simulation)
    _conclude(rows[-1], time.perf_counter() - began, private.delta if private else None)
    if unheard(rows, setup.scenario.least_asked):
        say(f"WARNING: {UNHEARD}")
    return rows


def _rounds(simulation: Simulation) -> list[dict[str, Any]]:
    rows, rounds = [], simulation.setup.scenario.rounds
    with progress("round") as bar:
        task = bar.add_task("", total=rounds)
        for _ in range(rounds):
            rows.append(simulation.step())
            metrics = {n: v for n in ("val_acc", "train_loss") if (v := rows[-1][n]) is not None}  # if anybody trained
            shown = "  ".join(f"{n} {figure(n, v)}" for n, v in metrics.items())
            bar.update(task, advance=1, description=shown)
    return rows


def _conclude(last: dict[str, Any], seconds: float, delta: float | None = None) -> None:
    in_words = {n: figure(n, v) for n, v in last.items() if is_share(n) and v is not None}
    more = {"test_acc_all": "test accuracy over all classes", "test_acc_foreign": "over foreign ones"}
    say(
        f"after {several(last['round'], 'round')} in {seconds:.1f} s: validation accuracy {in_words['val_acc']}, "
        f"test accuracy {in_words['test_acc']} (std over clients {in_words['test_acc_std']}, worst tenth "
        f"{in_words['test_acc_worst10']}), {last['comm_mb']:.2f} MB sent and received"
        + (f", {last[SIM_SECONDS]:.4g} device seconds" if SIM_SECONDS in last else "")
        + (f", ε = {last['epsilon']:.4g} at δ = {delta:.3g}" if delta else "")
        + "".join(f"; {words} {in_words[name]}" for name, words in more.items() if name in last)
    )
    own = [n for n in last if is_own(n)]
    heads = [n for n in last if n.startswith("test_acc_") and n not in METRICS]
    for title, of in (("metrics of your own", own), ("test accuracy by head", heads)):
        if of:
            figures = [f"{n.removeprefix('test_acc_')} {figure(n, last[n])}" for n in of]
            say(f"{title}: {', '.join(figures)}")
