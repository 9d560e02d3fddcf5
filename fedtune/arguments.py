"""What the commands share: arguments that say what to play, and one line for what cannot be."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from pathlib import Path
from typing import Any, NoReturn, Protocol

import yaml

from fedtune.core.errors import Diverged, UserError
from fedtune.core.hyper import knobs
from fedtune.federated.executors import EXECUTORS
from fedtune.federated.registry import find, names
from fedtune.federated.scenario import Scenario
from fedtune.federated.scenarios import SCENARIOS
from fedtune.federated.scenarios import find as find_scenario
from fedtune.federated.simulation import Experiment, require_device


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        """One line on stderr, exit status 2."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


class Command(Protocol):
    """A command's entry: arguments (default: the command line's) to exit status."""

    def __call__(self, argv: list[str] | None = None) -> int:
        """Run it."""


def guarded(main: Command) -> Command:
    """A command whose UserError is one line and exit status 2; `--debug` shows the stack instead."""

    def run(argv: list[str] | None = None) -> int:
        given = sys.argv[1:] if argv is None else argv
        try:
            return main(argv)
        except UserError as error:
            if "--debug" in given:
                raise
            print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
            return 2
        except Diverged as error:
            if "--debug" in given:
                raise
            print(f"stopped: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return 130

    return run


def add_experiment(parser: argparse.ArgumentParser) -> None:
    """Arguments that say what is played: algorithm, scenario and its fields, pinned hyperparameters, data, machine."""
    parser.add_argument("--algo", metavar="NAME", help=f"algorithm: {', '.join(names())}")
    parser.add_argument("--scenario", metavar="NAME", help=f"setting (default digits-w4): {', '.join(SCENARIOS)}")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="pin a hyperparameter; see fedtune list"
    )
    parser.add_argument(
        "--preset", metavar="NAME", help="as_text (the defaults) or as_published (the released code's choices)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of partition, start and draws (default 0)")
    parser.add_argument("--data-dir", metavar="DIR", help="torchvision's layout (default $FEDTUNE_DATA_DIR, data)")
    parser.add_argument("--download", action="store_true", help="fetch the data set if it is not there")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--executor", default="auto", choices=EXECUTORS, help="how clients run (default: by a rule)")
    parser.add_argument("--debug", action="store_true", help="show the stack of an error")
    fields = parser.add_argument_group("scenario fields (each overrides the scenario's)")
    for f in dataclasses.fields(Scenario):
        fields.add_argument(f"--{f.name.replace('_', '-')}", dest=f"field_{f.name}", metavar=str(f.default))


def experiment_from(args: argparse.Namespace, config: dict[str, Any] | None = None) -> Experiment:
    """The experiment that the arguments, over those of a best.yaml, describe; UserError for whatever is wrong."""
    base = config or {}
    algo = args.algo or base.get("algorithm")
    if not algo:
        raise UserError(f"--algo is needed, but none was given; there are {', '.join(names())}")
    cls = find(algo)
    scenario = find_scenario(args.scenario or base.get("scenario", "digits-w4"))
    if not args.scenario:
        scenario = scenario.override(**base.get("overrides", {}))
    fields = {n.removeprefix("field_"): v for n, v in vars(args).items() if n.startswith("field_") and v is not None}
    scenario = scenario.override(**fields)
    pinned = base.get("hyperparameters", {}) if algo == base.get("algorithm") else {}
    pinned = {n: v for n, v in pinned.items() if n not in fields} | dict(_pair(text) for text in args.set)
    require_device(args.device)
    seed = args.seed if args.seed is not None else base.get("seed", 0)
    if seed < 0:
        raise UserError(f"--seed must not be negative, but got {seed}")
    known = knobs(Scenario) | knobs(cls)
    preset = args.preset or ""
    experiment = Experiment(algo, scenario, seed, args.executor, args.device, pinned, preset, tuple(fields))
    experiment.validate()
    return dataclasses.replace(experiment, pinned={n: known[n].check(v) for n, v in pinned.items()})


def read_config(path: str | None) -> dict[str, Any]:
    """The content of a best.yaml; UserError if it is none."""
    if path is None:
        return {}
    try:
        content = yaml.safe_load(Path(path).read_text())
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"--config needs a best.yaml of a search, but {path} cannot be read: {error}") from error
    wanted = {"algorithm": str, "scenario": str, "hyperparameters": dict}
    if not isinstance(content, dict) or any(not isinstance(content.get(k), t) for k, t in wanted.items()):
        raise UserError(f"--config needs {', '.join(wanted)} as in a search's best.yaml, but {path} lacks some")
    return content


def positive(text: str) -> int:
    """An argument that must be a whole number of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, but got {text!r}")
    return value


def above_zero(text: str) -> float:
    """An argument that must be a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, but got {text!r}")
    return value


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise UserError(f"--set needs NAME=VALUE, but got {text!r}; for instance --set lr=0.05")
    return name, value
