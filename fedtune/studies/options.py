"""The options of a comparison, of a reproduction and of a table, each with its default and its help, declared once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fedtune.core.errors import UserError
from fedtune.programs.naming import is_program
from fedtune.runs import reading
from fedtune.runs.choice import TOP
from fedtune.runs.files import search_name
from fedtune.tuning.options.options import OF_ENGINE, ExperimentOptions, canonical
from fedtune.tuning.options.search import SearchOptions
from fedtune.tuning.options.types import (
    HOW,
    LENGTH,
    WHAT,
    WHERE,
    above_zero,
    check,
    option,
    positive_int,
    share,
    small_int,
)
from fedtune.user_code import user_files

OURS = "ours"  # the name of the defaults among the presets
BASELINES = "local,fedavgft"
TOP_K = 3
CHOSEN_BY = 3  # seeds by which a search of a comparison chooses; a single search has another default
OF_GRID = ("table", "dataset", "parts", "algos", "quick", "all_columns", "rounds", "seeds", "test_every", "all_classes")


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions(SearchOptions):
    """A comparison: the options that all its searches share, and how their findings are tested."""

    algo: str = ""  # set for each search
    final_seeds: int = 0  # fresh seeds come after all searches
    algos: str = option(
        "",
        "algorithms to compare, names or files; all: those that can train the scenario's models",
        "A,B,…",
        group=WHAT,
    )
    baselines: str = option(
        BASELINES,
        f"baselines, also tuned (default {BASELINES}); none: no baselines",
        "A,B|none",
        group=WHAT,
    )
    searches: int = option(
        3,
        "searches of each algorithm (default 3); each on seeds of its own; one gives no verdict",
        "K",
        small_int,
        group=LENGTH,
    )
    seeds: int = option(
        3, "fresh seeds of each search (default 3); each has its own partition", "N", small_int, group=LENGTH
    )
    choose_seeds: int = option(
        CHOSEN_BY,
        f"seeds that decide between the best {TOP} (default {CHOSEN_BY}); these finished trials are trained on K - 1 "
        "more at a search's end; 1: fresh seeds decide",
        "K",
        small_int,
        group=HOW,
    )
    margin: float = option(
        0.005, "difference that matters (default 0.005); in the metric's unit: half a point", "N", above_zero, group=HOW
    )
    control: bool = option(
        True, "leave out the control, FedAvg under a second name; without FedAvg: the plainest algorithm", group=HOW
    )
    widen: bool = option(
        False,
        "extend ranges if the best value is at an end; for all that share them, and every search gets half as many "
        "trials again",
        group=HOW,
    )
    top_k: int | None = option(
        None,
        f"best trials that fresh seeds judge (default 1); with --choose-seeds 1 they choose among these (default "
        f"{TOP_K})",
        "N",
        small_int,
        group=HOW,
    )

    @property
    def candidates(self) -> int:
        """How many of a search's best are trained on fresh seeds: what it names, if it chooses by more seeds."""
        return self.top_k or (TOP_K if self.choose_seeds == 1 else 1)

    def of_search(self, algorithm: str, folder: Path, number: int = 0, called: str = "") -> SearchOptions:
        """The options of one of an algorithm's searches, whose run lies in the comparison's folder.

        Each has a block of seeds: those of its trials, those that decide between its best, its fresh ones.
        called: by another name.
        """
        shared = {f.name: getattr(self, f.name) for f in dataclasses.fields(SearchOptions)}
        if is_program(algorithm):  # the scenario's options are for built-in algorithms
            shared = {name: value for name, value in shared.items() if name not in OF_ENGINE}
            shared["fields"] = {name: value for name, value in self.fields.items() if name == "rounds"}
        name = user_files.plain_name(canonical(algorithm))
        then = self.recorded and {**self.recorded, "defaults": self.recorded["defaults_of"][name]}
        return SearchOptions(
            **shared
            | {
                "algo": algorithm,
                "name": search_name(user_files.plain_name(called) if called else name, number),
                "storage_path": str(folder),
                "seed": self.seed + number * (self.seeds_per_trial + self.choose_seeds - 1 + self.seeds),
                "recorded": then,
            }
        )

    @classmethod
    def from_record(cls, content: Mapping[str, Any]) -> Self:
        """The options in a compare.json, with its algorithms by name where `all` was asked for."""
        options, algorithms = super().from_record(content), reading.compared_in(content)
        options = dataclasses.replace(options, recorded={**options.recorded, "defaults_of": content["defaults_of"]})
        return options if options.algos != "all" else dataclasses.replace(options, algos=",".join(algorithms))


@dataclass(frozen=True, kw_only=True)
class ReproductionOptions:
    """A reproduction: which part of a paper's table is run, how long, and on what machine."""

    table: str = option("", "one of those that --list shows", "TABLE")
    dataset: str | None = option(
        None, "only its columns; or this data set in place of the table's first", "NAME", group=WHAT
    )
    parts: str | None = option(
        None, "only these parts; a figure's letters, or a table's data sets", "A,B,…", group=WHAT
    )
    algos: str | None = option(None, "only the rows of these algorithms", "A,B,…", group=WHAT)
    quick: bool = option(False, "a small version: few rounds, seeds and columns", group=LENGTH)
    all_columns: bool = option(False, "with --quick: few rounds and seeds, every column", group=LENGTH, rare=True)
    rounds: int | None = option(
        None, "rounds of the longest column; other columns in proportion", "N", positive_int, group=LENGTH
    )
    seeds: int | None = option(None, "runs behind every figure (default: the paper's)", "N", small_int, group=LENGTH)
    preset: str | None = option(
        None,
        "whose choices where papers differ (default ours); ours (the defaults), as_text, as_published, or several: a "
        "row for each that exists",
        "A[,B,C]",
        group=WHAT,
    )
    test_every: int = option(
        10,
        "test every N rounds and in the last (default 10); unless a figure needs all",
        "N",
        positive_int,
        group=LENGTH,
        rare=True,
    )
    all_classes: bool = option(
        False, "score on all classes too; even in tables without such a figure", group=WHAT, rare=True
    )
    data_dir: str | None = option(
        None,
        "folder with the data sets; in torchvision's layout (default $FEDTUNE_DATA_DIR, data)",
        "DIR",
        group=WHERE,
    )
    download: bool = option(False, "download the data sets if they are missing", group=WHERE)
    debug: bool = option(False, "show the full traceback of an error", group=WHERE, rare=True)
    cpus_per_trial: float = option(1.0, "CPUs of a run (default 1)", "N", above_zero, group=WHERE)
    gpus_per_trial: float = option(
        0.0, "GPUs of a run (default 0); a fraction or a whole number", "N", share, group=WHERE
    )
    name: str | None = option(None, "name of the folder; default: table, data set and options", "NAME", group=WHERE)
    storage_path: str = option("runs", "where that folder goes (default runs)", "DIR", group=WHERE)
    address: str | None = option(
        None,
        "a Ray cluster (default: start Ray here); auto, host:port or ray://host:port",
        "ADDRESS",
        group=WHERE,
    )
    dashboard: bool = option(True, "do not start Ray's dashboard", group=WHERE, rare=True)

    def __post_init__(self) -> None:
        """Parse every value; UserError for one that breaks its option's rule."""
        check(self)

    @property
    def grid(self) -> dict[str, Any]:
        """The options that decide which runs there are."""
        return {name: getattr(self, name) for name in OF_GRID} | {"presets": self.preset}

    @property
    def presets(self) -> str:
        """The presets, with commas."""
        return self.preset or OURS

    @property
    def folder(self) -> Path:
        """Where the runs and the table go."""
        given = [f"{n}{name}" for name in ("rounds", "seeds") if (n := getattr(self, name))]
        parts, algos = (text and text.replace(",", "+") for text in (self.parts, self.algos))
        kind = ["quick"] * self.quick + ["all-columns"] * self.all_columns
        parts_of_name = filter(None, [self.table, self.dataset, parts, algos, self.preset, *kind, *given])
        return Path(self.storage_path) / (self.name or "-".join(parts_of_name))

    @classmethod
    def from_record(cls, content: Mapping[str, Any]) -> Self:
        """The options that decide which runs there are, from a reproduce.json; UserError if it has others."""
        grid = content["grid"]
        if not isinstance(grid, dict) or (strange := set(grid) - {*OF_GRID, "presets"}):
            raise UserError(f"the record has options that this fedtune does not know: {', '.join(sorted(strange))}")
        return cls(**{"preset" if name == "presets" else name: value for name, value in grid.items()})


@dataclass(frozen=True, kw_only=True)
class TabulationOptions(ExperimentOptions):
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
