"""Every algorithm on FedSA's cross-device setting, on Fashion-MNIST: one architecture, and three.

    python -m analysis.fedsa_device [--rounds 50] [--seeds 0,1,2] [--algos fedsa,fedavg] [--data-dir DIR]

Defaults as the papers' texts have them, nothing tuned: 100 clients, 10 in a round, Dirichlet 0.1, a quarter of each
client's rows for test.  On three architectures run those whose shared parts are alike in all of them.  Every run leaves
a file in --work and is not played again.  That of analysis/results was written with --rounds 30 --write
analysis/results: accuracy of each client's own model (or the averaged one) on its own test rows after the last round,
mean over clients; mean and standard deviation over seeds.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd

from analysis.tables import experiment, play_all, seeds, write
from fedtune import arguments
from fedtune.federated import registry, scenarios
from fedtune.federated.experiment import Experiment, fitting

SCENARIOS = ("fedsa-fmnist-device", "fedsa-fmnist-device-htmini3")


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """The command."""
    parser = arguments.Parser(prog="python -m analysis.fedsa_device", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=arguments.positive, default=50, help="of every run; the paper has 1000")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--algos", default=",".join(registry.names()))
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("--work", type=Path, default=Path("runs/fedsa-device"), help="a file per run")
    parser.add_argument("--write", type=Path, help="folder of the table (default that of --work)")
    parser.add_argument("--data-dir", help="torchvision's layout (default $FEDTUNE_DATA_DIR, data)")
    parser.add_argument("--debug", action="store_true", help="show the stack of an error")
    args = parser.parse_args(argv)
    runs = planned(args.algos.split(","), args.scenarios.split(","), seeds(args.seeds), args.rounds)
    table = summary(play_all(runs, args.rounds, args.work, args.data_dir, every=10))
    write(table, text(table), args.write or args.work, "fedsa-device")
    return 0


def planned(algos: list[str], names: list[str], numbers: list[int], rounds: int) -> list[tuple[Experiment, str]]:
    """Seed by seed, every algorithm on every scenario on which it runs."""
    for algo in algos:
        registry.find(algo)
    fits = {name: dict(line.partition(" ")[::2] for line in fitting(scenarios.find(name))) for name in names}
    runs = []
    for seed in numbers:
        for name in names:
            for algo in algos:
                if algo in fits[name]:
                    run, _ = experiment(algo, name, seed, rounds=rounds)
                    pinned = dict(registry.find(algo).mixed) if fits[name][algo] else {}
                    runs.append((replace(run, pinned=pinned), name))
    return runs


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """A row per scenario and algorithm, the best first; accuracies in percent."""
    runs = rows.sort_values("round").groupby(["scenario", "algorithm", "seed"])
    cells = runs.tail(1).groupby(["scenario", "algorithm"])  # the last round's own figures: none if it diverged
    out = cells.agg(
        rounds=("round", "max"), seeds=("test_acc", "count"), val=("val_acc", "mean"), test=("test_acc", "mean"),
        test_std=("test_acc", "std"), clients_std=("test_acc_std", "mean"), all_classes=("test_acc_all", "mean"),
        comm_mb=("comm_mb", "mean"),
    ).reset_index()  # fmt: skip
    out[["val", "test", "test_std", "clients_std", "all_classes"]] *= 100
    return out.sort_values(["scenario", "test"], ascending=[True, False])


def text(table: pd.DataFrame) -> str:
    """The table in Markdown."""
    rounds = table.rounds.max()
    lines = [
        "# Every algorithm on FedSA's cross-device setting, Fashion-MNIST, measured",
        "",
        f"`python -m analysis.fedsa_device --rounds {rounds}`: defaults as the papers' texts have them, nothing tuned.",
        f"Test: accuracy in percent on a client's own test rows after round {rounds}, mean over 100 clients, then mean",
        "± standard deviation over the seeds; spread: standard deviation over clients; all classes: the same model on",
        "100 test rows of all ten classes; MB: sent and received by all clients.",
    ]
    for name, part in table.groupby("scenario"):
        lines += ["", f"## {name}", ""]
        lines += ["| algorithm | test | spread | all classes | val | MB | seeds |", "|---" * 7 + "|"]
        for row in part.itertuples():
            lines.append(
                f"| {row.algorithm} | {row.test:.2f} ± {row.test_std:.2f} | {row.clients_std:.1f} | "
                f"{row.all_classes:.2f} | {row.val:.2f} | {row.comm_mb:.1f} | {row.seeds} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
