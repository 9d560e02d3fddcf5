"""FedAvgM: rounds by numpy."""

from __future__ import annotations

import numpy as np
import pytest
from support.helpers import BATCHNORM, DIGITS, play, random_federation, record_uploads, simulate
from support.numbers import TIGHT, copied
from torch.testing import assert_close

from fedtune.core.hyper import hyperparameters
from fedtune.experiment.experiment import Experiment
from fedtune.trainables.fedavgm import FedAvgM

BETA, LR = 0.8, 0.6


def test_three_rounds_of_the_server_by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulate("fedavgm", BATCHNORM, random_federation([3, 17]), beta1=BETA, server_lr=LR, lr=0.1)
    seen, w = record_uploads(sim, monkeypatch), {n: t.numpy() for n, t in copied(sim.state.server["shared"]).items()}
    m = {n: np.zeros_like(t) for n, t in w.items()}
    for t in range(3):
        play(sim, 1)
        for name, sent in seen[t]["shared"].items():
            mean = np.average(sent.double().numpy(), axis=0, weights=[3, 17])
            if name.endswith(("running_mean", "running_var", "num_batches_tracked")):
                w[name] = np.round(mean) if name.endswith("tracked") else mean
                continue
            m[name] = BETA * m[name] + mean - w[name]
            w[name] = w[name] + LR * m[name]
        for name, want in w.items():
            assert_close(sim.state.server["shared"][name].double().numpy(), np.asarray(want, float), **TIGHT)


def test_it_has_a_rate_and_a_momentum_and_the_papers_defaults() -> None:
    assert list(hyperparameters(FedAvgM)) == ["server_lr", "beta1"]
    ours, text = (Experiment(algorithm="fedavgm", scenario=DIGITS, preset=p).configuration({}) for p in ("", "as_text"))
    assert (ours["server_lr"], ours["beta1"]) == (1.0, 0.9)
    assert text == ours | {"momentum": 0.0} and ours["momentum"] == 0.5
