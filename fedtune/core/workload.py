"""A workload: what is tuned, whatever trains it.  The built-in engine is one (fedtune.engine.built_in), a program of
yours another (fedtune.programs).

Everything above the two (searches, comparisons, fresh seeds, tables, reports) sees these two classes only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol


class Run(Protocol):
    """A configuration in training, from its first round to its last; one object per trial."""

    @property
    def round(self) -> int:
        """The rounds that are done."""

    @property
    def rounds(self) -> int:
        """The rounds of a whole run."""

    def step(self) -> dict[str, Any]:
        """Train a round; its row: `round`, `seconds` of training, `eval_seconds`, and the metrics.

        Diverged if training diverged; UserError for an error that would come again.
        """

    def test(self) -> dict[str, Any]:
        """The last round's row with its test metrics: scored now, if they were not before."""

    def save(self, folder: Path) -> None:
        """Write all that `load` needs to continue."""

    def load(self, folder: Path) -> None:
        """Continue after the round in which it was saved; ValueError if that belongs to another run."""

    def close(self) -> None:
        """End everything that the run started; may be called twice."""
