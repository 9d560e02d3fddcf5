"""Another search's trials again: the same configurations in the same order, each as far as it went."""

from __future__ import annotations

from typing import Any

from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

from fedtune.core.objectives import BY_ACCURACY, Goal
from fedtune.tuning.space_types import Config


class ReplaySearcher(Searcher):
    """Suggests what another search tried, in its order."""

    def __init__(self, configs: list[Config], goal: Goal = BY_ACCURACY) -> None:
        """configs: what the other search tried, in its order.  goal: what it went for."""
        super().__init__(metric=goal.attribute, mode=goal.first.mode)
        self.configs = configs
        self.places: dict[str, int] = {}  # trial -> its place in that order

    def suggest(self, trial_id: str) -> Any:
        """The next configuration, until there is none left."""
        if len(self.places) == len(self.configs):
            return Searcher.FINISHED
        place = self.places.setdefault(trial_id, len(self.places))
        return dict(self.configs[place])

    def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
        """Nothing is learnt from how a trial ends."""


class StopAtRecordedRound(FIFOScheduler):
    """Ends every trial of a `ReplaySearcher` in the round in which it ended then."""

    def __init__(self, searcher: ReplaySearcher, rounds: list[int]) -> None:
        """rounds: the last one of each trial, in the searcher's order."""
        super().__init__()
        self.searcher, self.rounds = searcher, rounds

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict) -> str:
        """Stop the trial in its last round."""
        last = self.rounds[self.searcher.places[trial.trial_id]]
        return self.STOP if result["training_iteration"] >= last else self.CONTINUE
