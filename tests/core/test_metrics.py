"""A metric is declared once: from the declaration it reaches every table and every axis."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score, recall_score
from torch.testing import assert_close

from fedtune.core import metrics
from fedtune.core.metrics import METRIC, METRICS, OBJECTIVES, figures

TIGHT = {"rtol": 0, "atol": 1e-12}

ADDED = """
from fedtune.core import metrics

metrics.METRICS["distance"] = metrics.Metric("how far it is", "way", "km", last=True, best=True, evaluated=True)

from fedtune.analysis import frames, plot_tools
from fedtune.runs import tables

rows = [{"round": t, **dict.fromkeys(metrics.METRICS, 0.5 / t), "distance": 10.0 * t} for t in (1, 2)]
summary = tables.trial_summary(tables.rounds_frame({"a": rows}))
assert (summary["last_distance"], summary["best_distance"]) == (20, 10), summary
assert "distance" in frames.ROUNDS and {"last_distance", "best_distance"} <= set(frames.TRIALS)
assert "distance" in metrics.figures(rows[-1])
assert plot_tools.in_words("last_distance") == "way [km]"
assert plot_tools.in_words("config/seconds") == "seconds", "a hyperparameter, whatever its name"
"""


def test_a_metric_that_is_declared_reaches_tables_frames_and_axes() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", ADDED], check=True)


def test_searches_select_by_validation_accuracy_and_optimise_what_has_a_goal() -> None:
    assert METRIC == "val_acc" and OBJECTIVES[METRIC] == "max"
    least = {"val_loss", "val_acc_std", "comm_mb", "up_bytes", "down_bytes", "seconds", "sim_seconds", "epsilon"}
    assert {n for n, mode in OBJECTIVES.items() if mode == "min"} == least
    assert not any(name.startswith("test") for name in OBJECTIVES)
    assert {name for name, metric in METRICS.items() if metric.summed} == {"seconds", "eval_seconds"}


def test_what_validation_is_scored_by_test_is_too() -> None:
    assert {n.removeprefix("val_") for n in OBJECTIVES if n.startswith("val_")} == {
        n.removeprefix("test_") for n, m in METRICS.items() if n.startswith("test_") and m.evaluated
    } - {"acc_all", "acc_foreign"}  # rows of classes that a client does not hold are scored for the report alone


def test_how_accuracy_is_spread_over_clients_by_hand() -> None:
    correct, rows = torch.tensor([1, 6, 2, 4]), torch.tensor([4, 8, 2, 10])  # shares 1/4, 3/4, 1 and 2/5
    got = metrics.accuracy("val", {"head": correct}, rows, 4)
    assert_close(got["val_acc_rows"], 13 / 24, **TIGHT)
    assert (got["val_acc_lowest"], got["val_acc_worst10"]) == (0.25, 0.25)  # a tenth of four is at least one
    assert "val_acc_head" not in got  # there is one head alone
    assert_close(got["val_acc_std"], float(np.std([0.25, 0.75, 1.0, 0.4])), **TIGHT)


@pytest.mark.parametrize("classes", [2, 7])
def test_balanced_accuracy_and_f1_are_scikit_learns_client_by_client(classes: int) -> None:
    rng = np.random.default_rng(classes)
    truths = [rng.choice(rng.permutation(classes)[: rng.integers(1, classes + 1)], n) for n in (1, 5, 40, 9)]
    said = [np.where(rng.random(len(y)) < 0.5, y, rng.integers(0, classes, len(y))) for y in truths]
    counts = torch.stack(
        [
            torch.stack([torch.bincount(torch.as_tensor(a), minlength=classes) for a in (y, z, y[y == z])])
            for y, z in zip(truths, said, strict=True)
        ]
    )
    got = metrics.by_class("test", counts)
    pairs = list(zip(truths, said, strict=True))
    recall = [recall_score(y, z, labels=np.unique(y), average="macro") for y, z in pairs]
    for (y, z), known in zip(pairs, recall, strict=True):
        if 1 < len(set(y)) and set(z) <= set(y):  # it warns of one class alone, and of other classes
            assert_close(balanced_accuracy_score(y, z), known, **TIGHT)
    assert_close(got["test_acc_balanced"], float(np.mean(recall)), **TIGHT)
    assert_close(got["test_f1"], float(np.mean([f1_score(y, z, average="macro") for y, z in pairs])), **TIGHT)


def test_a_round_of_several_seeds_has_means_and_errors_by_hand() -> None:
    def row(val_acc: float, seconds: float, **more: float | None) -> dict[str, float | None]:
        return {"round": 7, "val_acc": val_acc, "seconds": seconds, "eval_seconds": 0.5, **more}

    rows = [row(0.5, 1.0, test_acc=0.25, own=2), row(0.75, 2.0, test_acc=0.5, own=None), row(1.0, 4.0, test_acc=0.75)]
    errors = {"val_acc_se": 0.25 / 3**0.5, "test_acc_se": 0.25 / 3**0.5}
    want = {"round": 7, "val_acc": 0.75, "test_acc": 0.5, "own": 2.0, "seconds": 7.0, "eval_seconds": 1.5} | errors
    assert metrics.over_seeds(rows) == pytest.approx(want, rel=1e-12)
    assert metrics.over_seeds(rows[:1]) is rows[0]
    untested = metrics.over_seeds([row(0.5, 1.0), row(0.75, 1.0)])
    assert untested["val_acc_se"] == pytest.approx(0.125) and "test_acc_se" not in untested


def test_tables_of_runs_have_what_a_part_that_is_off_does_not_measure_only_where_it_is_on() -> None:
    off, on = set(figures({"val_acc": 0.5})), set(figures({"val_acc": 0.5, "epsilon": 0.0, "sim_seconds": 1.0}))
    assert on - off == {"epsilon", "sim_seconds"} and {"val_acc", "test_acc", "comm_mb"} <= off
