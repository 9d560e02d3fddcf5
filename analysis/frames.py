"""Run folders as dataframes, as fedtune.runs.frames makes them.

from analysis import frames
trials, rounds = frames.load("runs/gfpl-digits-w4-20261121-050812")
"""

from fedtune.runs.frames import CONFIG, ROUNDS, STATUSES, TRIALS, clients, hyperparameters, load, record

__all__ = ["CONFIG", "ROUNDS", "STATUSES", "TRIALS", "clients", "hyperparameters", "load", "record"]
