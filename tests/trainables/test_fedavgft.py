"""FedAvg-FT: training is FedAvg's; scores are those of the tuned models, by hand; without tuning it is FedAvg."""

from __future__ import annotations

import pytest
import torch
from support.helpers import (
    BATCHNORM,
    DIGITS,
    assert_same_numbers,
    client_net,
    numbers,
    play,
    random_federation,
    simulate,
)
from support.tuned import tuned_scores

from fedtune.core.errors import UserError
from fedtune.engine import evaluation
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_without_tuning_it_is_fedavg(executor: str) -> None:
    data = random_federation([5, 9, 7])
    sims = [
        simulate("fedavgft", BATCHNORM, data, executor=executor, tune_epochs=0),
        simulate("fedavg", BATCHNORM, data, executor=executor),
    ]
    assert play(sims[0], 3) == play(sims[1], 3)
    assert_same_numbers(*(numbers(sim.state) for sim in sims))


def test_tuning_changes_no_round_and_costs_no_communication() -> None:
    scenario, data = BATCHNORM.override(participation=0.7), random_federation([5, 9, 7])
    ft, avg = (simulate(name, scenario, data) for name in ("fedavgft", "fedavg"))
    rows, wanted = play(ft, 3), play(avg, 3)
    assert_same_numbers(numbers(ft.state), numbers(avg.state))
    scores = [n for n in wanted[0] if n.startswith(("val_", "test_"))]
    for row, one in zip(rows, wanted, strict=True):
        assert {n: v for n, v in row.items() if n not in scores} == {n: v for n, v in one.items() if n not in scores}
    assert rows[-1]["val_loss"] != wanted[-1]["val_loss"]


@pytest.mark.parametrize("tune", ["all", "head"])
@pytest.mark.parametrize("model", ["mlp", "fedgen-cnn"])
@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_scores_are_those_of_models_tuned_by_hand(executor: str, model: str, tune: str) -> None:
    """With B = n each epoch is one step on all rows."""
    sim = simulate(
        "fedavgft",
        Scenario(model=model, features=8),
        random_federation([8, 8]),
        executor=executor,
        batch=8,
        tune_epochs=3,
        tune=tune,
        tune_lr=0.2,
        momentum=0.5,
    )
    row = play(sim, 2)[-1]
    nets = [client_net(sim, k) for k in range(2)]
    for split in ("val", "test"):
        accuracy, loss = tuned_scores(sim, nets, split, tune, epochs=3, lr=0.2, momentum=0.5)
        assert abs(row[f"{split}_acc"] - accuracy) < 1e-12
        if split == "val":
            assert abs(row["val_loss"] - loss) < 1e-12


@pytest.mark.parametrize("groups", [None, [[1, 4], [0, 3], [2]]], ids=["one group", "three"])
def test_a_client_is_tuned_alike_whoever_else_is_scored_and_however_they_are_grouped(groups: list | None) -> None:
    data = random_federation([8, 6, 7, 9, 5], other=11)
    few, all_ = (simulate("fedavgft", DIGITS.override(eval_clients=n), data, groups=groups, lr=0.1) for n in (2, 0))
    play(few, 2), play(all_, 2)
    found, want = (evaluation.score(sim.setup, sim.state).clients for sim in (few, all_))
    assert len(found["client"]) == 2
    for name in ("val_acc", "test_acc"):
        assert torch.equal(found[name], want[name][found["client"]])
    plain = simulate("fedavg", DIGITS, data, lr=0.1)
    play(plain, 2)
    assert not torch.equal(evaluation.score(plain.setup, plain.state).clients["test_acc"], want["test_acc"])


def test_a_rule_for_one_global_model_is_refused_unless_nothing_is_tuned() -> None:
    pooled = DIGITS.override(evaluation="pooled")
    with pytest.raises(UserError, match="under fedavgft body, head stays with each client"):
        Experiment(algorithm="fedavgft", scenario=pooled).check()
    Experiment(algorithm="fedavgft", scenario=pooled, pinned={"tune_epochs": 0}).check()
    words = Experiment(algorithm="fedavgft", scenario=DIGITS).describe_scoring()
    assert words.startswith("the averaged model, trained on the client's own rows before it is scored, on each")
