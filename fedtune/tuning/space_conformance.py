"""The check of search spaces: each of an algorithm's spaces can be searched, under its defaults and every preset."""

from __future__ import annotations

from fedtune.conformance.check import Note, Violation, check
from fedtune.conformance.subject import Subject
from fedtune.core.errors import UserError
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.tuning import space
from fedtune.user_code import sources


@check("spaces", "every search space holds hyperparameters within their ranges", needs=("declarations",))
def spaces(s: Subject) -> Violation | Note | None:
    """The spaces of the algorithm's file, or the one made from its declarations."""
    names = []
    try:
        for name in (names := space.names(s.name)):
            for preset in ("", *s.cls.presets):
                space.load(name, Experiment(algorithm=s.name, scenario=Scenario(), preset=preset))
    except UserError as error:
        return Violation(
            sources.of_name(s.cls, "SPACES"), str(error), "see docs/reference/your-code.md on search spaces"
        )
    return Note(", ".join(names))
