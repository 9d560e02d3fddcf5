"""FedAdam and FedAvgM: the server's rules by numpy."""

from typing import Any

import numpy as np
import pytest
from support.helpers import BATCHNORM, DIGITS, play, random_federation, record_uploads, simulate
from support.numbers import TIGHT, copied
from torch.testing import assert_close

from fedtune.core.hyper import hyperparameters
from fedtune.experiment.experiment import Experiment
from fedtune.trainables.fedadam import FedAdam
from fedtune.trainables.fedavgm import FedAvgM
from fedtune.tuning import space

B1, B2, TAU, LR = 0.8, 0.95, 1e-2, 0.05


def by_hand(rule: str, v: np.ndarray, square: np.ndarray) -> np.ndarray:
    if rule == "adagrad":
        return v + square
    if rule == "yogi":
        return v - (1 - B2) * square * np.sign(v - square)
    return B2 * v + (1 - B2) * square


@pytest.mark.parametrize("rule", ["adam", "yogi", "adagrad", "sgd", "fedavgm"])
def test_three_rounds_of_the_server_by_numpy(rule: str) -> None:
    name, how = ("fedavgm", {}) if rule == "fedavgm" else ("fedadam", {"rule": rule, "beta2": B2, "tau": TAU})
    sim = simulate(name, BATCHNORM, random_federation([3, 17]), beta1=B1, server_lr=LR, lr=0.1, **how)
    seen, w = record_uploads(sim), {n: t.numpy() for n, t in copied(sim.state.server["shared"]).items()}
    m: dict[str, Any] = {n: 0.0 for n in w}
    v: dict[str, Any] = {n: np.full(t.shape, TAU**2) for n, t in w.items()}
    for t in range(3):
        play(sim, 1)
        for name, sent in seen[t]["shared"].items():
            mean = np.average(sent.double().numpy(), axis=0, weights=[3, 17])
            if name.endswith("num_batches_tracked"):
                w[name] = np.round(mean)
                continue
            if "running" in name:
                w[name] = mean
                continue
            move = mean - w[name]
            if rule in ("sgd", "fedavgm"):
                m[name] = B1 * m[name] + move
                w[name] = w[name] + LR * m[name]
            else:
                m[name] = B1 * m[name] + (1 - B1) * move
                v[name] = by_hand(rule, v[name], move**2)
                w[name] = w[name] + LR * m[name] / (np.sqrt(v[name]) + TAU)
        for name, want in w.items():
            assert_close(sim.state.server["shared"][name].double().numpy(), np.asarray(want, float), **TIGHT)


def test_fedavgm_has_a_rate_and_a_momentum_and_the_papers_defaults() -> None:
    assert list(hyperparameters(FedAvgM)) == ["server_lr", "beta1"]
    ours, text = (Experiment(algorithm="fedavgm", scenario=DIGITS, preset=p).configuration({}) for p in ("", "as_text"))
    assert (ours["server_lr"], ours["beta1"]) == (1.0, 0.9)
    assert text == ours | {"momentum": 0.0} and ours["momentum"] == 0.5


@pytest.mark.parametrize(
    ("rule", "decay", "rate"), [("adam", 0.9, 0.03), ("yogi", 0.9, 0.03), ("adagrad", 0.0, 0.03), ("sgd", 0.9, 1.0)]
)
def test_each_rule_has_its_own_decay_and_rate(rule: str, decay: float, rate: float) -> None:
    """Reddi et al., appendix D: no first moment in FedAdagrad; FedAvgM's best rates are 0.3 to 1."""
    e = Experiment(algorithm="fedadam", scenario=DIGITS, pinned={"rule": rule})
    assert (e.default()["beta1"], e.default()["server_lr"]) == (decay, rate)
    data = random_federation([5, 9])
    left, given = (simulate("fedadam", DIGITS, data, rule=rule, **c) for c in ({}, {"beta1": decay, "server_lr": rate}))
    assert play(left, 2) == play(given, 2)


def test_a_space_with_every_rule_gives_each_what_it_uses() -> None:
    e = Experiment(algorithm="fedadam", scenario=DIGITS)
    wide = space.load("wide", e)
    uses = {"adam": {"beta1", "beta2", "tau"}, "yogi": {"beta1", "beta2", "tau"}, "adagrad": {"tau"}, "sgd": {"beta1"}}
    for rule, names in uses.items():
        assert {n for n, c in wide.conditions.items() if rule in c["rule"]} == names
        idle = e.idle({"rule": rule})
        assert not names & idle.keys()
    assert e.idle({"rule": "sgd"}).keys() & hyperparameters(FedAdam).keys() == {"beta2", "tau"}
