"""A metric is declared once: from the declaration it reaches every table and every axis."""

import subprocess
import sys

from fedtune.core.metrics import METRIC, METRICS, MODE, OBJECTIVES

ADDED = """
from fedtune.core import metrics

metrics.METRICS["distance"] = metrics.Metric("how far it is", "way", "km", last=True, best=True, evaluated=True)

from analysis import frames, plot_tools
from fedtune.runs import tables
from fedtune.studies import fresh_seeds

rows = [{"round": t, **dict.fromkeys(metrics.METRICS, 0.5 / t), "distance": 10.0 * t} for t in (1, 2)]
summary = tables.trial_summary(tables.rounds_frame({"a": rows}))
assert (summary["last_distance"], summary["best_distance"]) == (20, 10), summary
assert "distance" in frames.ROUNDS and {"last_distance", "best_distance"} <= set(frames.TRIALS)
assert "distance" in fresh_seeds.LAST
assert plot_tools.in_words("last_distance") == "way [km]"
"""


def test_a_metric_that_is_declared_reaches_tables_frames_and_axes() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", ADDED], check=True)


def test_searches_select_by_validation_accuracy_and_optimise_what_has_a_goal() -> None:
    assert (METRIC, MODE) == ("val_acc", "max")
    assert OBJECTIVES == {"val_acc": "max", "comm_mb": "min", "seconds": "min"}
    assert all(name.endswith("seconds") == metric.summed for name, metric in METRICS.items())
