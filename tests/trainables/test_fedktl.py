"""FedKTL: Local training of a net with a fixed equiangular head at μ = 0; rounds by hand; pictures and what is sent."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.by_hand import rounds, sgd_step, whole_net
from support.helpers import DIGITS, client_net, own_rows, play, random_federation, record_uploads, simulate
from support.numbers import TIGHT
from support.user_algorithms import own_net
from torch.testing import assert_close

from fedtune.core.errors import UserError
from fedtune.experiment.scenario import Scenario
from fedtune.nn import latents

M, S, MU, LR = 0.4, 8.0, 3.0, 0.05
FEW = {"server_epochs": 3, "server_batch": 8, "latents": 8}


def arcface(h: torch.Tensor, frame: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """CE of s · cos(θ + m [c = y]), from the angles themselves."""
    angles = torch.acos(F.normalize(h, dim=1) @ frame)
    return F.cross_entropy(S * torch.cos(angles + M * F.one_hot(y, h.shape[1]).double()), y)


def test_the_frame_has_unit_directions_at_equal_angles() -> None:
    z = whole_net(simulate("fedktl", DIGITS, random_federation([6]), **FEW), 0).frame.columns
    want = (4 * torch.eye(4, dtype=torch.float64) - 1) / 3  # kept in single precision
    assert_close(z.T @ z, want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("executor", ["stack", "loop"])
@pytest.mark.parametrize("mu", [0.0, MU])
def test_rounds_by_hand(mu: float, executor: str) -> None:
    """Without μ nothing of the server's matters: Local, with a fixed head.  A batch holds all rows, equally often."""
    rows = [6, 9]
    fixed = {"lr": LR, "momentum": 0.0, "batch": 18, "local_steps": 2, "angle": M, "scale": S, "executor": executor}
    sim = simulate("fedktl", DIGITS, random_federation(rows, [[0, 1], [1, 2, 3]]), mu=mu, **fixed, **FEW)

    def work(t: int, k: int, net: Any) -> None:
        (pictures, seen), vectors = sim.state.server["pictures"], sim.state.server["vectors"].values
        assert bool(seen.all()) == (t > 1)
        x, y = own_rows(sim, k)
        for _ in range(2):
            loss = arcface(net(x), net.frame.columns, y)
            if t > 1 and mu:
                loss = loss + mu * ((net.projection(net.body(pictures)) - vectors) ** 2).mean()
            sgd_step(loss, net, LR)

    for _ in rounds(sim, 3, work, [whole_net(sim, k) for k in range(2)], shared=lambda n: False):
        pass


def test_latents_are_class_means_of_the_transformed_and_pictures_what_the_generator_makes_of_them() -> None:
    data = random_federation([6, 9], [[0, 1], [1, 3]])  # nobody holds class 2
    sim = simulate("fedktl", DIGITS, data, **FEW)
    seen = record_uploads(sim)
    for t in range(2):
        play(sim, 1)
        protos, held = seen[t]["protos"]
        for k in range(2):
            x, y = own_rows(sim, k)
            h = F.normalize(client_net(sim, k)(x), dim=1)
            for c in held[k].nonzero()[:, 0].tolist():
                assert_close(protos[k, c], F.normalize(h[y == c].mean(0), dim=0), **TIGHT)
        server = sim.state.server
        vectors, present = server["vectors"]
        assert present.tolist() == server["pictures"].present.tolist() == [True, True, False, True]
        q = latents.transform(server["transformer"], protos.flatten(0, 1)).view(2, 4, -1)
        for c in (0, 1, 3):
            assert_close(vectors[c], q[held[:, c], c].mean(0), **TIGHT)
        assert_close(
            server["pictures"].values[0].flatten(), latents.generate(server["generator"], vectors[:1])[0], **TIGHT
        )


def test_tokens_are_refused_in_a_line() -> None:
    data = random_federation([6])
    whole = data._replace(x=(data.x > 0).astype("int64").reshape(len(data.y), -1))
    with pytest.raises(UserError, match="fedktl generates numbers, .* these rows are tokens"):
        play(simulate("fedktl", Scenario(model=own_net("tokens"), features=0), whole, **FEW), 1)
