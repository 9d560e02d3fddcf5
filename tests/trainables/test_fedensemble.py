"""FedEnsemble: the prediction is the mean of the uploaded models' scores, by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from support.by_hand import mean_accuracy, softmax
from support.helpers import BATCHNORM, DIGITS, next_task, play, random_federation, record_uploads, simulate
from support.numbers import TIGHT, copied, flat, randn
from support.rows import first
from torch import Tensor
from torch.testing import assert_close

from fedtune.engine import engine
from fedtune.experiment.algorithm import Model
from fedtune.experiment.scenario import Scenario
from fedtune.nn import architectures


def data() -> Any:
    return random_federation([5, 9, 7, 6], [[0, 1], [1, 2], [0, 3], [2, 3]])


def scores(sim: Any, values: dict[str, Tensor], x: Tensor) -> np.ndarray:
    """A model's logits, by an ordinary module in eval mode."""
    f, task = sim.setup.federation, sim.setup.task
    net = architectures.build(sim.setup.scenario.model, f.shape, task.classes, task.features).double()
    net.load_state_dict({n: values[n] for n in net.state_dict()})
    return net.eval()(x).detach().numpy()


def predicted(sim: Any, k: int, x: Tensor) -> dict[str, Tensor]:
    """What client k predicts now."""
    alg, group = sim.setup.algorithm, sim.state.groups[0]
    group.net.eval()
    down = alg.deployed(sim.state.server, torch.tensor([k]), next_task(sim))
    own = {n: t[k] for n, t in group.tensors.items()} | {n: t[0] for n, t in down["shared"].items()}
    received = {n: {m: v[0] for m, v in t.items()} if isinstance(t, dict) else t[0] for n, t in down.items()}
    with torch.no_grad():
        return alg.predict(Model(group.net, own), x, received)


@pytest.mark.parametrize("model", ["mlp", "fedgen-cnn"])
@pytest.mark.parametrize("average", ["logits", "probabilities"])
def test_the_prediction_is_the_mean_of_the_uploaded_models(average: str, model: str) -> None:
    scenario = Scenario(model=model, features=8, participation=0.75)
    sim, x = simulate("fedensemble", scenario, data(), average=average, lr=0.1), randn(6, 1, 8, 8)
    seen = record_uploads(sim)
    for t in (1, 2):
        row = play(sim, 1)[0]
        up = seen[-1]["shared"]
        assert seen[-1]["ids"].tolist() == engine.participants(sim.setup, t).tolist()
        each = [scores(sim, {n: v[i] for n, v in up.items()}, x) for i in range(3)]
        want = np.mean(each, axis=0) if average == "logits" else np.log(np.mean([softmax(z) for z in each], axis=0))
        for k in range(4):  # who did not take part predicts with them too
            got = predicted(sim, k, x)
            assert list(got) == ["ensemble", "average"]
            assert_close(got["ensemble"].numpy(), want, **TIGHT)
            assert_close(got["average"].numpy(), scores(sim, sim.state.server["shared"], x), **TIGHT)

        def voted(_: int, rows: Tensor, up: dict = up) -> Tensor:  # and that is what is scored
            each = [scores(sim, {n: v[i] for n, v in up.items()}, rows) for i in range(3)]
            return torch.as_tensor(np.mean(each if average == "logits" else [softmax(z) for z in each], axis=0))

        assert_close(row["val_acc"], mean_accuracy(sim, "val", voted), **TIGHT)
        assert (row["val_acc_ensemble"], row["test_acc_ensemble"]) == (row["val_acc"], row["test_acc"])


@pytest.mark.parametrize(
    ("share", "taking", "votes"), first([(0.5, 2, [1, 1, 2]), (0.75, 3, [1, 1, 1, 1]), (1.0, 4, [1, 1, 1, 1])], 1)
)
def test_all_adds_the_received_model_once_for_each_of_the_others(share: float, taking: int, votes: list[int]) -> None:
    sim = simulate("fedensemble", BATCHNORM.override(participation=share), data(), members="all", lr=0.1)
    seen, x = record_uploads(sim), randn(6, 1, 8, 8)
    play(sim, 1)
    received = copied(sim.state.server["shared"])  # what round 2 starts from
    play(sim, 1)
    assert sim.state.server["votes"].tolist() == votes
    up = seen[-1]["shared"]
    total = sum(scores(sim, {n: v[i] for n, v in up.items()}, x) for i in range(taking))
    want = (total + (4 - taking) * scores(sim, received, x)) / 4
    assert_close(predicted(sim, 0, x)["ensemble"].numpy(), want, **TIGHT)


@pytest.mark.parametrize("members", ["participants", "all"])
def test_with_personal_statistics_members_predict_with_their_own_and_others_with_the_firsts(members: str) -> None:
    scenario = BATCHNORM.override(batch_norm="personal", participation=0.5)
    sim = simulate("fedensemble", scenario, data(), lr=0.1, members=members)
    seen, x = record_uploads(sim), randn(6, 1, 8, 8)
    play(sim, 1)
    received = copied(sim.state.server["shared"])
    play(sim, 1)
    up, own = seen[-1], sim.state.groups[0].tensors
    ids = up["ids"].tolist()
    assert set(own) == set(up["statistics"]) and len(own) == 6
    for n, t in up["statistics"].items():  # they are those of the clients that came in, as they are now
        assert torch.equal(t, own[n][ids])
    assert not torch.equal(own["body.1.running_mean"][ids[0]], own["body.1.running_mean"][ids[1]])
    each = [scores(sim, {n: v[i] for n, v in (up["shared"] | up["statistics"]).items()}, x) for i in range(2)]
    if members == "all":
        each += [scores(sim, received | {n: v[0] for n, v in up["statistics"].items()}, x)] * 2
    for k in range(4):
        assert_close(predicted(sim, k, x)["ensemble"].numpy(), np.mean(each, axis=0), **TIGHT)
        alone = scores(sim, sim.state.server["shared"] | {n: t[k] for n, t in own.items()}, x)
        assert_close(predicted(sim, k, x)["average"].numpy(), alone, **TIGHT)


def test_before_the_first_round_the_start_predicts_and_no_member_is_sent() -> None:
    sim, x = simulate("fedensemble", DIGITS, data()), randn(6, 1, 8, 8)
    got = predicted(sim, 0, x)
    assert torch.equal(got["ensemble"], got["average"])
    play(sim, 1)
    assert set(sim.setup.algorithm.broadcast(sim.state.server, torch.arange(2), next_task(sim))) == {"shared"}
    assert set(flat(sim.state.server["members"])) == set(flat(sim.state.server["shared"]))
