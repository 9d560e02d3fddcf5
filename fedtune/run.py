"""python -m fedtune.run: one configuration from its first round to its last, without Tune."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedtune import arguments
from fedtune.core.errors import UserError
from fedtune.core.memory import keep_freed_memory
from fedtune.core.terminal import say
from fedtune.data import federation
from fedtune.federated import model_file
from fedtune.federated.simulation import Simulation


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """The command."""
    parser = arguments.Parser(prog="fedtune run", description="Play one configuration, without searching.")
    arguments.add_experiment(parser)
    parser.add_argument("--config", metavar="best.yaml", help="play what a search found; other arguments override it")
    parser.add_argument("--output", type=Path, metavar="FILE.jsonl", help="also write the metrics, a line a round")
    parser.add_argument("--save", type=Path, metavar="MODEL.pt", help="also keep the model, for analysis.saved to open")
    parser.add_argument("--threads", type=arguments.positive, default=1, help="of PyTorch (default 1, as in a search)")
    args = parser.parse_args(argv)
    config = arguments.read_config(args.config)
    experiment = arguments.experiment_from(args, config)
    for name, file in (("--output", args.output), ("--save", args.save)):
        if file and (file.exists() or not file.absolute().parent.is_dir()):
            raise UserError(f"{name} needs a new file in a folder that exists, but got {file}; give another")
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    data = federation.make(experiment.scenario, experiment.seed, args.data_dir, args.download)
    simulation = Simulation(experiment, {}, data)
    setting, rows, began = simulation.setting, [], time.perf_counter()
    executor = " and ".join(sorted({g.executor for g in simulation.state.groups}))
    say(
        f"{experiment.algorithm}, {setting.task.clients} clients, {setting.scenario.rounds} rounds, "
        f"seed {experiment.seed}, executor {executor}, {experiment.device}"
    )
    say(f"scored: {experiment.validate()}")
    columns = (TextColumn("round"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=setting.scenario.rounds)
        for _ in range(setting.scenario.rounds):
            rows.append(simulation.step())
            shown = f"val_acc {rows[-1]['val_acc']:.4f}  train_loss {rows[-1]['train_loss']:.4f}"
            progress.update(bar, advance=1, description=shown)
    if args.output:
        args.output.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if args.save:
        model_file.write(args.save, experiment, {}, simulation)
    last = rows[-1]
    say(
        f"after {last['round']} rounds in {time.perf_counter() - began:.1f} s: val_acc {last['val_acc']:.4f}, "
        f"test_acc {last['test_acc']:.4f} (std over clients {last['test_acc_std']:.4f}, worst tenth "
        f"{last['test_acc_worst10']:.4f}), {last['comm_mb']:.2f} MB sent and received"
        + (f"; test_acc over all classes {last['test_acc_all']:.4f}" if "test_acc_all" in last else "")
    )
    heads = {k.removeprefix("test_acc_"): v for k, v in last.items() if k.startswith("test_acc_")}
    heads = {h: v for h, v in heads.items() if h not in ("std", "worst10", "all")}
    if heads:
        say("test_acc by head: " + ", ".join(f"{head} {value:.4f}" for head, value in heads.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
