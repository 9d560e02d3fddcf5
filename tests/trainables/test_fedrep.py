"""FedRep: the head first, on a body that stands still; then the body under a head that stands still."""

from typing import Any

import pytest
from support.by_hand import descend, rounds
from support.helpers import DIGITS, client_net, own_rows, play, random_federation, simulate
from support.numbers import assert_close_numbers, assert_same_numbers, copied
from torch import nn

from fedtune.experiment.algorithm import Phase
from fedtune.experiment.scenario import Scenario


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_a_round_is_tau_epochs_of_the_head_and_then_the_local_work_of_the_body(executor: str) -> None:
    work = {"executor": executor, "head_epochs": 3, "local_epochs": 2, "batch": 8, "lr": 0.1, "momentum": 0.5}
    sim = simulate("fedrep", DIGITS, random_federation([8]), **work)

    def work(_t: int, k: int, net: nn.Module) -> None:  # with B = n each epoch is one step on all rows
        descend(net, net.head, own_rows(sim, k), 3, 0.1, 0.5)
        descend(net, net.body, own_rows(sim, k), 2, 0.1, 0.5)

    for _ in rounds(sim, 2, work, shared=lambda n: n.startswith("body")):
        pass


def test_the_local_work_is_the_bodys_and_tau_is_the_heads() -> None:
    sim = simulate("fedrep", head_epochs=4)
    head, body = sim.setup.algorithm.phases(sim.setup.task)
    assert (head.train, head.epochs) == (("head",), 4) and (body.train, body.epochs) == (("body",), None)


@pytest.mark.parametrize("executor", ["stack", "loop"])
@pytest.mark.parametrize("model", ["mlp", "fedgen-cnn"])
def test_the_head_is_a_linear_classifier_on_features_computed_once(model: str, executor: str) -> None:
    """The frozen body is in evaluation mode: its BatchNorms use what they received, not the batch."""
    config = {"head_epochs": 5, "batch": 6, "lr": 0.2, "momentum": 0.0}
    sim = simulate("fedrep", Scenario(model=model, features=12), random_federation([6]), executor=executor, **config)
    net, (x, y) = client_net(sim, 0).eval(), own_rows(sim, 0)
    z = net.body(x).detach()
    head = nn.Linear(12, 4).double()
    head.load_state_dict(net.head.state_dict())
    descend(head, head, (z, y), 5, 0.2)
    play(sim, 1)
    assert_close_numbers(
        {n: t[0] for n, t in sim.state.groups[0].tensors.items()},
        {f"head.{n}": t for n, t in head.state_dict().items()},
    )


def test_the_heads_phase_moves_no_running_statistics_and_the_bodys_does(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulate("fedrep", Scenario(model="fedgen-cnn", features=8), random_federation([8, 5]))
    cls = type(sim.setup.algorithm)
    phases, before = cls.phases, copied(sim.state.server["shared"])

    def first(alg: Any, task: Any) -> tuple[Phase, ...]:
        return phases(alg, task)[:1]

    with monkeypatch.context() as patch:
        patch.setattr(cls, "phases", first)
        play(sim, 1)
    assert_close_numbers(sim.state.server["shared"], before)
    counters = {n: t for n, t in before.items() if "num_batches" in n}
    assert_same_numbers({n: sim.state.server["shared"][n] for n in counters}, counters)
    play(sim, 1)
    assert all(sim.state.server["shared"][n] > 0 for n in counters)
