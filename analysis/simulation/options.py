"""The options of a table, each with its default and its help, declared once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedtune.tuning.options.options import ExperimentOptions
from fedtune.tuning.options.types import HOW, LENGTH, WHERE, above_zero, option, share, small_int
from fedtune.user_code import user_files


@dataclass(frozen=True, kw_only=True)
class RunsOptions(ExperimentOptions):
    """Runs of an experiment outside a search: the machine that they are trained on, and their folder."""

    cpus_per_trial: float = option(1.0, "CPUs of a run (default 1)", "N", above_zero, group=WHERE)
    gpus_per_trial: float = option(
        0.0, "GPUs of a run (default 0); a fraction or a whole number", "N", share, group=WHERE
    )
    name: str | None = option(None, "name of the folder; default: table, algorithm and scenario", "NAME", group=WHERE)
    storage_path: str = option("runs", "where that folder goes (default runs)", "DIR", group=WHERE)
    address: str | None = option(None, "a Ray cluster (default: start Ray here)", "ADDRESS", group=WHERE)
    dashboard: bool = option(True, "do not start Ray's dashboard", group=WHERE, rare=True)

    @property
    def folder(self) -> Path:
        """Where its runs lie, a file each."""
        what = [Path(self.algo).stem if self.is_program else self.algo, self.scenario]
        default = "-".join(["table", *map(user_files.plain_name, filter(None, what))])
        return Path(self.storage_path) / (self.name or default)


@dataclass(frozen=True, kw_only=True)
class TabulationOptions(RunsOptions):
    """A table: an experiment, its grid, and the machine that it is trained on."""

    space: str = option(
        "", "a grid, your file; all of its values are tune.grid_search or tune.choice", "NAME|FILE.py", group=HOW
    )
    seeds: int = option(3, "seeds for every configuration (default 3)", "N", small_int, group=LENGTH)
    more_of: str | None = option(
        None,
        "a table whose configurations get more seeds; --space: a list of some of them, --seeds: how many fresh ones",
        "TABLE.parquet",
        group=LENGTH,
    )
