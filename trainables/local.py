"""Local: every client trains alone; nothing is exchanged.  The baseline that federated learning has to beat.

client   local epochs on CE
"""

from dataclasses import dataclass

from fedtune.experiment.algorithm import Algorithm, Phase, Task


@dataclass(frozen=True)
class Local(Algorithm):
    """Local training as the docstring of its module gives it: no client sends or receives anything."""

    pure = True
    releases = "nothing"
    as_in_text = True

    def round(self, task: Task) -> tuple[Phase | str, ...]:
        """Local training; nothing is sent or received."""
        return self.phases(task)
