"""What tuning is worth, on made-up figures whose answers are known."""

import numpy as np
import optuna
import pandas as pd
import pytest
from optuna.distributions import FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from scipy import stats

from fedtune.analysis import worth
from fedtune.core.errors import UserError
from fedtune.runs.files import RunFiles

NOISE = np.array([0.001, -0.001, 0.002, -0.002])


def runs(default: dict[str, float], tuned: dict[str, float]) -> pd.DataFrame:
    each = [
        (n, c, s, of[n]) for n in default for c, of in (("default", default), ("top 1", tuned)) for s in (2, 0, 3, 1)
    ]
    frame = pd.DataFrame(each, columns=["algorithm", "configuration", "seed", "test_acc"])
    return frame.assign(chosen=frame["configuration"] != "default", test_acc=frame["test_acc"] + NOISE[frame["seed"]])


DEFAULT = {"fedavg": 0.5, "gfpl": 0.7, "local": 0.6, "fedproto": 0.65}
TUNED = {"fedavg": 0.72, "gfpl": 0.75, "local": 0.62, "fedproto": 0.69}


def test_gains_are_paired_by_seed_and_their_mean_has_an_interval() -> None:
    frame = runs(DEFAULT, TUNED)
    frame.loc[frame["chosen"], "test_acc"] += 2 * NOISE[frame.loc[frame["chosen"], "seed"]]
    table = worth.gains(*worth.by_seed(frame)).set_index("algorithm")
    assert list(table.index) == ["fedavg", "gfpl", "fedproto", "local", "mean of all"]
    assert list(table["gain"]) == pytest.approx([22, 5, 4, 2, 8.25])
    half = 100 * 2 * stats.t.ppf(0.975, 3) * NOISE.std(ddof=1) / 2
    assert list(table["half"]) == pytest.approx([half] * 5)


def test_orders_agree_by_kendalls_tau(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worth, "SAMPLES", 200)
    assert worth.agreement(*worth.by_seed(runs(DEFAULT, DEFAULT))) == pytest.approx((1, 1, 1))
    tau = worth.agreement(*worth.by_seed(runs(DEFAULT, TUNED)))
    assert tau == pytest.approx((1 / 3,) * 3)  # of six pairs fedavg's with local and with fedproto turn round
    close = runs(DEFAULT, TUNED | {"fedavg": 0.6904})
    close.loc[close["chosen"] & (close["algorithm"] == "fedavg"), "test_acc"] += [0.004, -0.004, 0.002, -0.002]
    tau = worth.agreement(*worth.by_seed(close))
    assert tau.low == pytest.approx(1 / 3) and tau.high == pytest.approx(2 / 3)


def test_of_few_searches_the_order_of_each_is_told() -> None:
    default, tuned = (pd.DataFrame({"a": [1.0, 1.0], "b": [2.0, 2.0], "c": c}) for c in ([3.0, 3.0], [3.0, 1.5]))
    assert worth.agreed(default, tuned, 2) == "τ = 1.00 (in single searches 1.00, 0.33)"


def test_trials_of_all_searches_count_and_of_a_widened_one_the_last(tmp_path) -> None:
    for folder, trials in (("gfpl", 3), ("gfpl+2", 4), ("gfpl+2+widened", 6)):
        (run := tmp_path / folder).mkdir()
        RunFiles(run).write("finished")
        storage = JournalStorage(JournalFileBackend(str(RunFiles(run).study_file)))
        study = optuna.create_study(storage=storage, direction="maximize")
        study.add_trials(
            optuna.create_trial(params={"lr": i / 10}, distributions={"lr": FloatDistribution(0, 1)}, value=i)
            for i in range(trials)
        )
    assert (
        len(worth.studied(tmp_path, "gfpl", 2).trials) == 3 + 6 and len(worth.studied(tmp_path, "gfpl", 1).trials) == 3
    )
    assert worth.studied(tmp_path, "fedavg", 2) is None


def test_an_algorithm_that_diverged_on_a_seed_is_left_out() -> None:
    frame = runs(DEFAULT, TUNED)
    frame.loc[0, "test_acc"] = float("nan")
    default, tuned = worth.by_seed(frame)
    assert list(default) == list(tuned) == ["fedproto", "gfpl", "local"]
    assert worth.spread(default) == pytest.approx((5, 10))


def test_fedbn_leaves_where_it_is_fedavg_and_a_control_is_no_algorithm_of_its_own() -> None:
    same, other = ({**DEFAULT, "fedbn": v} for v in (DEFAULT["fedavg"], 0.51))
    tuned = {**TUNED, "fedbn": 0.74}
    assert "fedbn" not in worth.by_seed(runs(same, tuned))[0] and "fedbn" in worth.by_seed(runs(other, tuned))[0]
    table = runs(DEFAULT | {"fedavg-again": DEFAULT["fedavg"]}, TUNED | {"fedavg-again": 0.73})
    assert set(worth.by_seed(table)[0]) == set(DEFAULT)


def test_families_are_by_what_is_sent() -> None:
    found = worth.families(["fedavg", "fedper", "fedproto", "gfpl"])
    assert list(found.values()) == ["the model", "a part of it", "something else", "something else"]


def test_a_folder_that_is_none_is_refused(tmp_path) -> None:
    with pytest.raises(UserError, match="the folder of a finished comparison is needed"):
        worth.text(tmp_path)
