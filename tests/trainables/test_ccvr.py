"""CCVR: the moments and the calibrated head by hand."""

import numpy as np
import torch
from support.by_hand import mean_accuracy
from support.helpers import BATCHNORM, DIGITS, client_net, own_rows, play, random_federation, record_uploads, simulate
from support.numbers import TIGHT, assert_same_numbers, copied
from torch.testing import assert_close

from fedtune.core import randomness
from fedtune.core.trees import Ragged
from fedtune.nn.heads import descend
from fedtune.trainables.ccvr import CCVR

HELD = [[0, 1], [1, 2], [0, 1]]  # nobody holds class 3
SMALL = {"virtual": 12, "head_epochs": 2, "head_batch": 8}


def test_a_client_tells_the_moments_of_the_model_that_it_received() -> None:
    sim = simulate("ccvr", BATCHNORM, random_federation([9, 17, 8], HELD), lr=0.2, **SMALL)
    play(sim, 1)
    seen, received = record_uploads(sim), client_net(sim, 0).eval()
    row = play(sim, 1)[0]
    (up,) = seen
    upper, numbers_sent = np.triu_indices(8), 0
    for k, own in enumerate(HELD):
        x, y = own_rows(sim, k)
        z = received.body(x).detach().numpy()
        assert up["counts"].present[k].nonzero()[:, 0].tolist() == own
        for c in own:
            f = z[y.numpy() == c]
            assert up["counts"].values[k, c] == len(f)
            assert_close(up["means"].values[k, c].numpy(), f.mean(0), **TIGHT)
            assert_close(up["covariances"].values[k, c].numpy(), np.cov(f.T)[upper], **TIGHT)
            numbers_sent += 8 + 36
    model = sum(t.numel() for t in sim.state.server["shared"].values() if t.is_floating_point())
    assert row["up_floats"] == 3 * model + numbers_sent


def test_the_calibrated_model_is_the_received_body_and_a_head_fitted_to_gaussians() -> None:
    config = SMALL | {"variance_floor": 0.1, "head_lr": 0.2, "head_optimizer": "sgd"}
    sim = simulate("ccvr", DIGITS, random_federation([24, 17, 9], HELD), **config)
    play(sim, 1)
    received = copied(sim.state.server["shared"])
    net = client_net(sim, 0)
    play(sim, 1)
    z, y = (
        torch.cat(ts)
        for ts in zip(*((net.body(x).detach(), y) for x, y in (own_rows(sim, k) for k in range(3))), strict=True)
    )
    stream, chosen, labels = randomness.stream(0, "virtual", 2), [], []
    normal = torch.randn(4, 12, 12, generator=stream, dtype=torch.float64)
    for c in range(3):
        f = z[y == c]
        spread = f.T.cov()
        spread += (0.1 * spread.diagonal().mean() + 1e-6) * torch.eye(12, dtype=torch.float64)
        chosen.append(f.mean(0) + normal[c] @ torch.linalg.cholesky(spread).T)
        labels.append(torch.full((12,), c))
    head = descend(
        received["head.weight"], received["head.bias"], torch.cat(chosen), torch.cat(labels), 2, 8, 0.2, stream
    )
    want = received | {"head.weight": head[0], "head.bias": head[1]}
    for name, t in sim.state.server["calibrated"].items():
        assert_close(t, want[name], rtol=0, atol=1e-10)
    assert_same_numbers(
        *({n: t for n, t in m.items() if n.startswith("body")} for m in (sim.state.server["calibrated"], received))
    )


def test_the_score_is_the_calibrated_models() -> None:
    sim = simulate("ccvr", DIGITS, random_federation([24, 17, 9]), **SMALL)
    row = play(sim, 2)[-1]
    net = client_net(sim, 0)
    net.load_state_dict(sim.state.server["calibrated"])
    assert abs(row["val_acc"] - mean_accuracy(sim, "val", lambda _, x: net(x))) < 1e-12
    assert row["val_acc"] == row["val_acc_calibrated"]


def test_after_round_one_the_scored_body_is_the_start_and_clients_hold_nothing() -> None:
    sim, start = (simulate("ccvr", DIGITS, random_federation([9, 8]), **SMALL) for _ in range(2))
    play(sim, 1)
    assert not sim.state.groups[0].tensors and not sim.state.groups[0].kept
    bodies = (
        {n: t for n, t in tree.items() if n.startswith("body")}
        for tree in (sim.state.server["calibrated"], start.state.server["shared"])
    )
    assert_same_numbers(*bodies)


def test_a_floor_that_is_too_small_is_raised_and_counted() -> None:
    """Covariances of a rank below the features' width; all three classes, and not the one that nobody holds."""
    sim = simulate("ccvr", DIGITS, random_federation([4, 4, 4], HELD), **SMALL | {"variance_floor": 1e-6})
    row = play(sim, 2)[-1]
    assert row["raised_floors"] == 0  # in double precision 1e-6 of the variance is enough
    means, upper = torch.zeros(3, 4, 12), torch.zeros(3, 4, 12, 12)
    upper[:] = 1.01 - 0.01 * torch.eye(12)  # an eigenvalue of -0.01, as rounding may leave it of few rows
    i, j = torch.triu_indices(12, 12)
    counts = torch.tensor([[2, 0, 0, 0], [0, 2, 0, 0], [0, 0, 0, 0]])
    up = {"means": means, "covariances": upper[..., i, j], "counts": counts}
    up = {n: Ragged(t, counts > 0) for n, t in up.items()}
    x, raised = CCVR(virtual=10, variance_floor=1e-3).draws(up, randomness.stream(0))
    assert raised.tolist() == [True, True, False, False] and x.isfinite().all()
