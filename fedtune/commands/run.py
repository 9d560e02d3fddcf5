"""fedtune run: one configuration from its first round to its last, without Tune."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from fedtune.core.errors import UserError
from fedtune.core.importing import quick_imports
from fedtune.experiment import registry
from fedtune.experiment.scenarios import SCENARIOS
from fedtune.runs import user_copies
from fedtune.tuning.options import arguments
from fedtune.tuning.options.options import ExperimentOptions
from fedtune.user_code import user_files
from fedtune.user_code.command import require_new


def parser() -> argparse.ArgumentParser:
    """The command line of `fedtune run`."""
    p = arguments.Parser(
        prog="fedtune run",
        description="Train one configuration, without searching.",
        examples=("fedtune run gfpl --set lr=0.05 --rounds 20", "fedtune run --config runs/first/best.yaml --seed 7"),
    )
    arguments.add_what(p)
    arguments.add_options(p, ExperimentOptions)
    p.add_argument(
        "--config", metavar="best.yaml", help="train the configuration of this file; other arguments override it"
    )
    p.add_argument("--trust", action="store_true", help="with --config: accept another user's folder; its code is run")
    p.add_argument("--output", type=Path, metavar="FILE.jsonl", help="also write the metrics, one line per round")
    p.add_argument("--save", type=Path, metavar="MODEL.pt", help="save the model, too, for fedtune.analysis.models")
    return p


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """Run `fedtune run` and return its exit status."""
    args = parser().parse_args(argv)
    given = arguments.given(args, ExperimentOptions)
    if args.config:
        config = arguments.read_config(args.config)
        user_copies.restore(Path(args.config).absolute().parent, config, args.trust)
        given = over_best(config, given)
    with quick_imports():
        from fedtune.studies import single_run

    options = ExperimentOptions(**given)
    experiment = options.experiment()
    require_new("--output", args.output)
    require_new("--save", args.save)
    if args.output and args.save and os.path.abspath(args.output) == os.path.abspath(args.save):
        raise UserError(f"--output and --save are two files, but both are {args.save}; give another")
    single_run.run(
        experiment=experiment, data_dir=options.data_dir, download=options.download, output=args.output, model=args.save
    )
    return 0


def over_best(config: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Options from a best.yaml, where none was given."""
    algo, fields = user_files.reference(config["algorithm"]), given.get("fields", {})
    base: dict[str, Any] = {"algo": algo, "scenario": config["scenario"], "seed": config.get("seed", 0)}
    if config["scenario"] not in SCENARIOS and "dataset" in fields and "scenario" not in given:
        del base["scenario"]  # it is the name of the other data set
    base |= {n: user_files.reference(config[n]) for n in ("start", "start_from") if n in config}
    overrides = {} if "scenario" in given else config.get("overrides", {})
    overrides = {n: v for n, v in overrides.items() if n not in given.get("set", {})}  # --set swaps=2 replaces it
    overrides = {n: user_files.reference(v) if isinstance(v, str) else v for n, v in overrides.items()}
    same = user_files.take_each(given.get("algo", algo), registry.names())[0] == config["algorithm"]
    pinned = {n: v for n, v in config["hyperparameters"].items() if n not in fields} if same else {}
    if same and not fields.keys() & {"model", "dataset"} and "scenario" not in given and "executor" in config:
        base["executor"] = config["executor"]  # the one that was chosen for this code
    return base | given | {"fields": overrides | fields, "set": pinned | given.get("set", {})}
