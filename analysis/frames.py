"""Study folders as dataframes, as fedtune.runs.frames and fedtune.studies.comparison.results make them.

from fedtune.analysis import frames
trials, rounds = frames.load("runs/gfpl-digits-w4-20261121-050812")
"""

from fedtune.runs.frames import CONFIG, ROUNDS, STATUSES, TRIALS, clients, hyperparameters, load, record
from fedtune.studies.comparison.results import by_budget

__all__ = ["CONFIG", "ROUNDS", "STATUSES", "TRIALS", "by_budget", "clients", "hyperparameters", "load", "record"]
