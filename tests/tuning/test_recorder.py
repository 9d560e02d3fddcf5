"""What a driver keeps of its trials: every row, and little else."""

import tracemalloc
from types import SimpleNamespace

from ray.tune.trainable.metadata import _TrainingRunMetadata

from fedtune.core.metrics import METRICS
from fedtune.tuning.driver import TrialRows

ROUNDS, TRIALS = 30, 8


def rows(first: int = 1, last: int = 3) -> list[dict]:
    return [{"round": t, "val_acc": 1 / t, "reason": None, "config": {"lr": 0.1}} for t in range(first, last + 1)]


def trial(name: str) -> SimpleNamespace:
    return SimpleNamespace(trial_id=name, run_metadata=_TrainingRunMetadata())


def hear(recorder: TrialRows, some: SimpleNamespace, results: list[dict]) -> None:
    for result in results:
        for name in METRICS:
            some.run_metadata.update_metric(name, result.get(name, 0.1), step=result["round"])
        recorder.on_trial_result(0, [], some, result)


def test_a_trial_that_goes_on_after_its_end_keeps_its_order() -> None:
    recorder, one = TrialRows({"old": rows(), "one": rows(1, 2)}, ["val_acc"]), trial("one")
    hear(recorder, one, rows(3, 4))
    recorder.on_trial_error(0, [], one)
    assert set(one.run_metadata.metric_analysis) == {"val_acc"}  # of an ended trial Tune keeps the goal alone
    hear(recorder, one, rows(5, 5))
    assert recorder["one"] == rows(1, 5)
    assert list(recorder) == ["old", "one"] and len(recorder) == 2
    assert dict(recorder) == {"old": rows(), "one": rows(1, 5)}


def test_a_thousand_trials_of_thirty_rounds_take_at_most_twenty_megabytes() -> None:
    recorder, some = TrialRows(goal=["val_acc"]), [trial(str(i)) for i in range(TRIALS)]
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for i, one in enumerate(some):
        for t in range(1, ROUNDS + 1):
            row = {name: (i + 1) / (t + k + 0.1) for k, name in enumerate(METRICS)}
            hear(recorder, one, [row | {"round": t, "config": {"lr": 1 / (i + 1)}}])
        recorder.on_trial_complete(0, [], one)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (after - before) / TRIALS < 20_000
