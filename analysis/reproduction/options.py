"""The options of a reproduction, each with its default and its help, declared once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fedtune.core.errors import UserError
from fedtune.tuning.options.types import LENGTH, WHAT, WHERE, above_zero, check, option, positive_int, share, small_int

OURS = "ours"  # the name of the defaults among the presets
OF_GRID = ("table", "dataset", "parts", "algos", "quick", "all_columns", "rounds", "seeds", "test_every", "all_classes")


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
        None, "folder with the data sets; in torchvision's layout (default $FEDTUNE_DATA_DIR, data)", "DIR", group=WHERE
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
        None, "a Ray cluster (default: start Ray here); auto, host:port or ray://host:port", "ADDRESS", group=WHERE
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
