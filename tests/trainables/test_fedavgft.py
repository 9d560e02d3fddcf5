"""FedAvg-FT: scores are those of the tuned models, by hand."""

import pytest
import torch
from support.helpers import DIGITS, client_net, play, random_federation, simulate
from support.tuned import tuned_scores

from fedtune.engine import evaluation
from fedtune.experiment.scenario import Scenario


@pytest.mark.parametrize("tune", ["all", "head"])
@pytest.mark.parametrize("model", ["mlp", "fedgen-cnn"])
@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_scores_are_those_of_models_tuned_by_hand(executor: str, model: str, tune: str) -> None:
    """With B = n each epoch is one step on all rows."""
    work = {"executor": executor, "batch": 8, "tune_epochs": 3, "tune": tune, "tune_lr": 0.2, "momentum": 0.5}
    sim = simulate("fedavgft", Scenario(model=model, features=8), random_federation([8, 8]), **work)
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
