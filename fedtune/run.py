"""python -m fedtune.run: one configuration from its first round to its last, without Tune."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from fedtune import arguments
from fedtune.core.errors import UserError
from fedtune.tuning.options import ExperimentOptions


def parser() -> argparse.ArgumentParser:
    """The command line of `fedtune run`."""
    p = arguments.Parser(prog="fedtune run", description="Train one configuration, without searching.")
    arguments.add_options(p, ExperimentOptions)
    p.add_argument("--config", metavar="best.yaml", help="train what a search found; other arguments override it")
    p.add_argument("--output", type=Path, metavar="FILE.jsonl", help="also write the metrics, a line a round")
    p.add_argument("--save", type=Path, metavar="MODEL.pt", help="also keep the model, for analysis.models to open")
    p.add_argument("--threads", type=arguments.positive, default=1, help="of PyTorch (default 1, as in a search)")
    return p


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """Run `fedtune run` and return its exit status."""
    args = parser().parse_args(argv)
    given = arguments.given(args, ExperimentOptions)
    if args.config:
        given = over_best(arguments.read_config(args.config), given)
    options = ExperimentOptions(**given)
    experiment = options.experiment()
    for name, file in (("--output", args.output), ("--save", args.save)):
        if file and (file.exists() or not file.absolute().parent.is_dir()):
            raise UserError(f"{name} needs a new file in a folder that exists, but got {file}; give another")
    from fedtune.studies import single_run

    single_run.run(experiment, options.data_dir, options.download, args.output, args.save, args.threads)
    return 0


def over_best(config: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Options as a best.yaml has them, where nothing else was given."""
    base: dict[str, Any] = {"algo": config["algorithm"], "scenario": config["scenario"], "seed": config.get("seed", 0)}
    base |= {n: config[n] for n in ("start", "start_from") if n in config}
    overrides = {} if "scenario" in given else config.get("overrides", {})
    fields = given.get("fields", {})
    found = config["hyperparameters"] if given.get("algo", base["algo"]) == base["algo"] else {}
    pinned = {n: v for n, v in found.items() if n not in fields}
    return base | given | {"fields": overrides | fields, "set": pinned | given.get("set", {})}


if __name__ == "__main__":
    sys.exit(main())
