"""What tuning is worth beyond tuning FedAvg: every algorithm of a kept comparison with FedAvg's tuned values.

    python -m fedtune.analysis.borrowed TABLE.parquet --scenario gfpl-fmnist-few --rounds 20 --set local_epochs=1

Papers often give a new method the learning rate that was found for FedAvg.  So each algorithm is trained on the fresh
seeds of every search once more, with what FedAvg's search of the same number chose for the hyperparameters that both
have, and with its own defaults otherwise.  TABLE.parquet holds a comparison's runs on fresh seeds
(`evaluations.parquet`); the options are those that the comparison had.  Each run leaves a file, and the same
command continues after an interruption.

It was asked before any of these runs, of the algorithms that `fedtune.analysis.worth` counts, with FedAvg left out:
1. What is the mean gain of their own tuning over FedAvg's values (tuned − borrowed)?
2. What is the mean gain of FedAvg's values over the defaults (borrowed − default)?
3. Which algorithms gain by their own tuning?  One test each, paired by search, with variances that are shrunk over all,
   and Holm's correction.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from fedtune.analysis import worth
from fedtune.analysis.simulation.options import RunsOptions
from fedtune.analysis.twins import CONTROL
from fedtune.core import statistics
from fedtune.core.errors import UserError
from fedtune.core.hyper import hyperparameters
from fedtune.core.importing import quick_imports
from fedtune.core.statistics import interval
from fedtune.core.terminal import say, several
from fedtune.experiment import registry
from fedtune.experiment.scenario import Scenario
from fedtune.runs.tables import BORROWED, CONFIG, DEFAULT, SEARCH, plain
from fedtune.studies.comparison import tables as comparison_tables
from fedtune.studies.comparison import text as comparison_text
from fedtune.tuning.options import arguments
from fedtune.tuning.space_types import Config
from fedtune.user_code.command import require_new

MODULE = "fedtune.analysis.borrowed"


def configurations(evaluations: pd.DataFrame, baseline: str = "fedavg") -> pd.DataFrame:
    """A row per algorithm, search and fresh seed, with `config`: its default with the baseline's tuned values of what
    both have.  Without the baseline, whose own tuned runs these are, and without a control.
    """
    tuned = evaluations[(evaluations["algorithm"] == baseline) & evaluations["chosen"]]
    if tuned.empty:
        raise UserError(f"the table needs tuned runs of {baseline}, but it has none; give the runs of a comparison")
    lent = {k: _config(rows.iloc[0]) for k, rows in tuned.groupby(SEARCH)}
    lends = evaluations["algorithm"].isin([baseline, baseline + CONTROL])
    rows = evaluations[(evaluations["configuration"] == DEFAULT) & ~lends]
    configs = []
    for _, row in rows.iterrows():
        declared = hyperparameters(Scenario) | hyperparameters(registry.find(str(row["algorithm"])))
        own = {n: v for n, v in _config(row).items() if declared[n].default is not None}  # an open one follows lr
        configs.append(own | {n: v for n, v in lent[row[SEARCH]].items() if n in own})
    return rows[["algorithm", SEARCH, "seed"]].assign(config=configs)


def _config(row: pd.Series) -> Config:
    searched = row[[name for name in row.index if str(name).startswith(CONFIG)]].dropna()
    return plain({str(name).removeprefix(CONFIG): value for name, value in searched.items()})


def train(options: RunsOptions, configs: pd.DataFrame) -> pd.DataFrame:
    """A row per run with the metrics of its last round, as in a comparison's runs on fresh seeds; at most one run at a
    time of each CPU.  options.algo is that of each row in turn.
    """
    from fedtune.cluster import ray_start
    from fedtune.runs.files import RunFiles
    from fedtune.studies import fresh_seeds, ray_tasks

    workloads = {name: replace(options, algo=name).workload() for name in configs["algorithm"].unique()}
    first = next(iter(workloads.values()))
    data = first.trainer.load(first, options.data_dir, options.download)
    runs = [
        ray_tasks.RunTask(
            f"{row.algorithm} {BORROWED} {row.seed}",
            workloads[row.algorithm].with_seed(row.seed, checking=True),
            row.config,
        )
        for row in configs.itertuples()
    ]
    files = RunFiles(options.folder)
    files.path.mkdir(parents=True, exist_ok=True)
    shared = options.cpus_per_trial, options.gpus_per_trial
    with files.lock(), ray_start.connected(options.address, *shared, options.dashboard, log=files.ray_log_file):
        outcomes = ray_tasks.run_all(runs, data, files.runs_folder, *shared, title=BORROWED)
    rows: list[dict[str, Any]] = []
    for run, row in zip(runs, configs.itertuples(), strict=True):
        whose = {"algorithm": row.algorithm, "configuration": BORROWED, "seed": row.seed, SEARCH: row.search}
        config = {CONFIG + n: v for n, v in row.config.items()}
        rows.append(whose | fresh_seeds.run_summary(outcomes[run.label]) | config)
    return pd.DataFrame(rows)


def judged(evaluations: pd.DataFrame, borrowed: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, statistics.Mean]]:
    """A row per algorithm that is counted, the largest gain first: percent by default, with FedAvg's values and tuned,
    what its own tuning gains over FedAvg's values in points, ± half a 95 % interval, p by Holm; and the mean gains.
    """
    default, tuned = worth.by_seed(evaluations)
    rows = comparison_tables.with_units(borrowed)
    lent = pd.DataFrame({n: 100 * comparison_tables.numbers(of, "test_acc") for n, of in rows.groupby("algorithm")})
    counted = [n for n in default if n in lent and lent[n].notna().all()]
    differences = [(tuned[n] - lent[n]).to_numpy(float) for n in counted]
    spreads = statistics.moderated(differences)
    found = [statistics.paired_by(d, spread) for d, spread in zip(differences, spreads, strict=True)]
    table = pd.DataFrame(found).assign(algorithm=counted, p_holm=statistics.holm([d.p for d in found]))
    table = table.assign(default=default[counted].mean().values, borrowed=lent[counted].mean().values)
    table["tuned"] = tuned[counted].mean().values
    means = {
        "tuned − borrowed": statistics.mean((tuned[counted] - lent[counted]).mean(axis=1)),
        "borrowed − default": statistics.mean((lent[counted] - default[counted]).mean(axis=1)),
        "tuned − default": statistics.mean((tuned[counted] - default[counted]).mean(axis=1)),
    }
    return table.sort_values("mean", ascending=False, ignore_index=True), means


def text(evaluations: pd.DataFrame, borrowed: pd.DataFrame, command: str) -> str:
    """The result as a page."""
    table, means = judged(evaluations, borrowed)
    counted, lost = set(table["algorithm"]), borrowed[borrowed["reason"] != ""]
    middle = {
        "tuned − borrowed": table["mean"],
        "borrowed − default": table["borrowed"] - table["default"],
        "tuned − default": table["tuned"] - table["default"],
    }
    of_lost = ", ".join(f"{name} {n}" for name, n in lost["algorithm"].value_counts().sort_index().items())
    shown = pd.DataFrame(
        {
            "algorithm": table["algorithm"],
            "default %": [f"{v:.2f}" for v in table["default"]],
            "with FedAvg's values %": [f"{v:.2f}" for v in table["borrowed"]],
            "tuned %": [f"{v:.2f}" for v in table["tuned"]],
            "tuned − with FedAvg's": [interval(r.mean, r.half, "+z.2f") for r in table.itertuples()],
            "p (Holm)": [f"{p:.3f}" for p in table["p_holm"]],
        }
    )
    lines = [
        "# What tuning is worth beyond tuning FedAvg",
        f"`{command}`",
        f"{several(len(counted), 'algorithm')}; test accuracy, a number for each search: the mean of its fresh seeds.",
        "\n".join(
            f"- {name}: {interval(*m, '+z.2f')} points on average, {middle[name].median():+.2f} in the median"
            for name, m in means.items()
        ),
        f"Runs with FedAvg's values that diverged: {of_lost or 'none'}.",
        comparison_text.markdown(shown),
    ]
    return "\n\n".join(lines) + "\n"


def parser() -> argparse.ArgumentParser:
    """The command line; see the module."""
    p = arguments.Parser(prog=f"python -m {MODULE}", description=(__doc__ or "").partition("\n")[0])
    p.add_argument("table", type=Path, metavar="TABLE.parquet", help="runs on fresh seeds of a comparison")
    arguments.add_options(p, RunsOptions)
    p.add_argument("-o", "--output", type=Path, metavar="FILE.parquet", help="the table (default: beside its folder)")
    return p


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """The command; see the module."""
    args = parser().parse_args(argv)
    options = RunsOptions(**{"name": BORROWED} | arguments.given(args, RunsOptions))
    output = args.output or options.folder.with_suffix(".parquet")
    require_new("--output", output, ".parquet")
    evaluations = pd.read_parquet(args.table)
    configs = configurations(evaluations)
    if options.algo:
        configs = configs[configs["algorithm"].isin(options.algo.split(","))]
    with quick_imports():
        rows = train(options, configs)
    rows.to_parquet(output, index=False)
    page = text(evaluations, rows, " ".join([f"python -m {MODULE}", *(sys.argv[1:] if argv is None else argv)]))
    output.with_suffix(".md").write_text(page, encoding="utf-8")
    say(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
