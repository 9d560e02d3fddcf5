"""Figures: dataframe in, plotly Figure out.

    from fedtune.analysis import frames, plots
    trials, rounds = frames.load("runs/NAME")
    plots.learning_curves(rounds, trials, by="config/components").show()
    plots.importance(plots.study("runs/NAME")).write_html("importance.html")

Every figure has a title that says what was varied, units on its axes, and n.  Where a frame is empty, or too small for
the figure, the figure says so.  Those of an Optuna study are Optuna's own.
"""

from fedtune.analysis.comparison_plots import by_budget, by_level, comparison, pairs
from fedtune.analysis.cost_plots import accuracy_communication, tradeoffs
from fedtune.analysis.curve_plots import learning_curves
from fedtune.analysis.found_plots import found
from fedtune.analysis.hyperparameter_plots import effect, interaction
from fedtune.analysis.importances import RESAMPLES, Importance, mattered, pooled, study
from fedtune.analysis.model_plots import communication_by, embedding, per_client
from fedtune.analysis.regret_plots import regret
from fedtune.analysis.rung_plots import rung_survival
from fedtune.analysis.study_plots import importance, parallel, slices

__all__ = [
    "RESAMPLES",
    "Importance",
    "accuracy_communication",
    "by_budget",
    "by_level",
    "communication_by",
    "comparison",
    "effect",
    "embedding",
    "found",
    "importance",
    "interaction",
    "learning_curves",
    "mattered",
    "pairs",
    "parallel",
    "pooled",
    "per_client",
    "regret",
    "rung_survival",
    "slices",
    "study",
    "tradeoffs",
]
