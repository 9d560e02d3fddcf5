"""A comparison's plan from words of its command line."""

from fedtune.commands import compare
from fedtune.studies.comparison import plan as comparison_plan
from fedtune.studies.options import ComparisonOptions
from fedtune.tuning.options import arguments


def compared(*words: str) -> comparison_plan.ComparisonPlan:
    """The plan of `fedtune compare WORDS`."""
    given = arguments.given(compare.parser().parse_args(words), ComparisonOptions)
    return comparison_plan.make(ComparisonOptions(**given))
