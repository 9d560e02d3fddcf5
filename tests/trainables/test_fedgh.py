"""FedGH: on features of one row each it is a step of FedAvg; the server's epochs by numpy; what is sent."""

import numpy as np
import pytest
from support.by_hand import mean_accuracy
from support.helpers import DIGITS, client_net, own_rows, play, random_federation, record_uploads, simulate
from support.numbers import TIGHT, copied
from torch.testing import assert_close


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_with_a_frozen_body_and_one_row_a_class_it_is_a_step_of_fedavg(executor: str) -> None:
    data, fixed = random_federation([4, 4, 4]), {"body_lr_scale": 0.0, "momentum": 0.0, "executor": executor}
    header = simulate("fedgh", DIGITS, data, server_lr=0.3, batch=12, lr=0.1, **fixed)
    avg = simulate("fedavg", DIGITS, data, lr=0.3, batch=4, local_steps=1, **fixed)
    start = copied(header.state.server["head"])
    for n, t in start.items():
        avg.state.server["shared"][f"head.{n}"] = t.clone()
    play(header, 3), play(avg, 3)
    for n, t in header.state.server["head"].items():
        assert_close(t, avg.state.server["shared"][f"head.{n}"], **TIGHT)
        assert (t - start[n]).abs().max() > 1e-3


def test_rounds_of_the_server_by_numpy() -> None:
    """Where a batch holds all pairs, their order does not matter."""
    data = random_federation([6, 9, 4], [[0, 1], [1, 2, 3], [3]])
    sim = simulate("fedgh", DIGITS, data, server_lr=0.4, server_epochs=3, batch=16, lr=0.1)
    seen, head = record_uploads(sim), {n: t.numpy() for n, t in copied(sim.state.server["head"]).items()}
    w, b = head["weight"], head["bias"]
    for t in range(3):
        play(sim, 1)
        protos, held = (v.numpy() for v in seen[t]["protos"])
        assert held.tolist() == [[c in own for c in range(4)] for own in ([0, 1], [1, 2, 3], [3])]
        for k in range(3):  # of the model as it was trained
            (x, y), z = own_rows(sim, k), trained_body(sim, k)
            for c in np.flatnonzero(held[k]):
                assert_close(protos[k, c], z(x[y == c]).mean(0).detach().numpy(), **TIGHT)
        x, y = protos[held], np.nonzero(held)[1]
        for _ in range(3):
            logits = x @ w.T + b
            p = np.exp(logits - logits.max(1, keepdims=True))
            slope = (p / p.sum(1, keepdims=True) - np.eye(4)[y]) / len(y)
            w, b = w - 0.4 * slope.T @ x, b - 0.4 * slope.sum(0)
        assert_close(sim.state.server["head"]["weight"].numpy(), w, **TIGHT)
        assert_close(sim.state.server["head"]["bias"].numpy(), b, **TIGHT)


def trained_body(sim, k):  # type: ignore[no-untyped-def]
    return client_net(sim, k).eval().body


def test_a_client_is_scored_with_its_own_body_and_the_servers_head() -> None:
    data = random_federation([12, 12], [[0, 1], [2, 3]], other=6)
    sim = simulate("fedgh", DIGITS, data, server_lr=0.5, server_epochs=10, lr=0.1)
    row, head = play(sim, 3)[-1], sim.state.server["head"]
    found = mean_accuracy(sim, "test", lambda k, x: trained_body(sim, k)(x) @ head["weight"].T + head["bias"])
    assert_close(row["test_acc"], found, **TIGHT)
