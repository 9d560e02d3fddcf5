"""A body that learns at its own pace, or not at all: by torch's optimisers, for every algorithm, and over the wire."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.algorithms import every
from support.helpers import BATCHNORM, DIGITS, EARLY, client_draws, client_net, play, random_federation, simulate
from support.numbers import TIGHT, assert_close_numbers, assert_close_rows, assert_same_numbers, numbers
from torch.nn import functional as F
from torch.testing import assert_close

from fedtune.core.errors import UserError
from fedtune.core.trees import is_shared
from fedtune.engine.batches import Pool
from fedtune.engine.local_training import train
from fedtune.experiment.algorithm import Algorithm, Batch, Model, Phase
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.registry import find

DATA = random_federation([5, 7, 3])


@pytest.mark.parametrize("name", every())
def test_a_frozen_body_stays_and_is_not_sent_under_every_algorithm(name: str) -> None:
    scenario, config = BATCHNORM.override(participation=0.7), EARLY.get(name, {}) | {"body_lr_scale": 0.0}
    sims = [simulate(name, scenario, DATA, executor=executor, **config) for executor in ("stack", "loop")]
    before = {n: t.clone() for n, t in numbers(sims[0].state).items() if n.split("/")[1].startswith("body.")}
    assert before and not any(n.startswith("server/shared/body") for n in numbers(sims[0].state))
    rows = [play(sim, 2) for sim in sims]  # in the second from what the server made of the first
    assert_close_rows(*rows)
    assert_close_numbers(*(numbers(sim.state) for sim in sims))
    after = numbers(sims[0].state)
    assert_same_numbers({n: after[n] for n in before}, before)
    assert all(is_shared(t) for n, t in sims[0].state.groups[0].tensors.items() if n.startswith("body."))


def test_the_head_of_a_frozen_body_is_trained_as_logistic_regression_on_its_features() -> None:
    sim = simulate("local", BATCHNORM, DATA, body_lr_scale=0.0, lr=0.1)
    net, f, rows = client_net(sim, 1), sim.setup.federation, client_draws(sim, 1, 1).rows[0]
    z = net.eval().body(f.x).detach()
    optimizer = torch.optim.SGD(net.head.parameters(), lr=0.1, momentum=0.5)
    for index in rows:
        optimizer.zero_grad()
        F.cross_entropy(net.head(z[index]), f.y[index]).backward()
        optimizer.step()
    play(sim, 1)
    for n, t in net.head.state_dict().items():
        assert_close(sim.state.groups[0].tensors[f"head.{n}"][1], t, **TIGHT)


def test_a_phase_of_the_frozen_body_alone_moves_nothing_but_still_tallies() -> None:
    def loss(m: Model, batch: Batch, down: dict) -> Any:
        return Algorithm().loss(m, batch, down), {"steps": torch.ones(())}

    for executor in ("stack", "loop"):
        sim = simulate("local", BATCHNORM, DATA, executor=executor, body_lr_scale=0.0)
        f, g = sim.setup.federation, sim.state.groups[0]
        streams = [torch.Generator().manual_seed(k) for k in range(3)]
        args = (Pool(f.x, f.y, *f.train), sim.setup.scenario, g.executor, streams)
        done = train(g.net, g.tensors, {}, Phase(loss, train=("body",)), *args)
        assert_same_numbers(done.tensors, g.tensors)
        assert done.tally["steps"].tolist() == [2, 2, 1] and done.losses.min() > 0


def test_a_frozen_part_is_in_the_checkpoint_once_and_resumes_bit_for_bit(tmp_path: Any) -> None:
    few = BATCHNORM.override(participation=0.7)
    whole = simulate("fedrep", few, DATA, body_lr_scale=0.0)
    rows = play(whole, 3)
    first = simulate("fedrep", few, DATA, body_lr_scale=0.0)
    play(first, 1)
    first.save(tmp_path / "state.pt")
    second = simulate("fedrep", few, DATA, body_lr_scale=0.0)
    second.load(tmp_path / "state.pt")
    assert all(is_shared(t) for n, t in second.state.groups[0].tensors.items() if n.startswith("body."))
    assert play(second, 2) == rows[1:]
    assert_same_numbers(numbers(second.state), numbers(whole.state))


def test_unlike_bodies_may_be_frozen_under_an_algorithm_that_would_average_them() -> None:
    mixed = DIGITS.override(model="htmini3", features=12)
    with pytest.raises(UserError, match="averages body and head"):
        Experiment(algorithm="fedavg", scenario=mixed).check()
    experiment = Experiment(algorithm="fedavg", scenario=mixed, pinned={"body_lr_scale": 0.0})
    experiment.check()
    assert (
        experiment.describe_scoring()
        == "the averaged model, the body with its initial weights, on each client's own rows"
    )
    sim = simulate("fedavg", mixed, body_lr_scale=0.0)
    play(sim, 1)
    assert set(sim.state.server["shared"]) == {"head.weight", "head.bias"}


def test_with_a_frozen_body_a_shared_head_is_a_global_model() -> None:
    name = "lgfedavg"
    assert "body" not in find(name)().shared
    with pytest.raises(UserError, match="scores one global model"):
        Experiment(algorithm=name, scenario=DIGITS.override(evaluation="pooled")).check()
    Experiment(algorithm=name, scenario=DIGITS.override(evaluation="pooled", body_lr_scale=0.0)).check()
