"""Local: every client trains alone; nothing is exchanged.  The baseline that a federation has to beat.

    client   local epochs on CE
"""

from dataclasses import dataclass

from fedtune.federated.algorithm import Algorithm, Phase, Task


@dataclass(frozen=True)
class Local(Algorithm):
    """Local training; see the module."""

    def round(self, task: Task) -> tuple[Phase | str, ...]:
        """Local training; nothing is sent or received."""
        return self.phases(task)
