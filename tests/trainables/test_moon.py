"""MOON: three rounds by hand."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.by_hand import rounds, step, whole_net
from support.helpers import DIGITS, own_rows, play, random_federation, simulate
from support.numbers import assert_close_numbers, copied
from torch import nn

from fedtune.experiment.scenario import Scenario


def before_head(net: nn.Module) -> dict[str, torch.Tensor]:
    return copied({n: t for n, t in net.state_dict().items() if not n.startswith("head")})


@pytest.mark.parametrize("projection", [True, False])
@pytest.mark.parametrize("model", ["mlp", "fedgen-cnn"])
def test_three_rounds_by_hand(model: str, projection: bool) -> None:
    def features(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return net.proj(net.body(x)) if projection else net.body(x)

    work_of: dict[str, Any] = {"lr": 0.1, "momentum": 0.0, "batch": 8, "local_steps": 2}
    config = work_of | {"projection": projection, "mu": 2.0, "temperature": 0.7}
    sim = simulate("moon", Scenario(model=model, features=8), random_federation([8, 8]), **config)
    last: list[nn.Module | None] = [None, None]

    def work(_t: int, k: int, net: nn.Module) -> None:
        received, optimizer, (x, y) = (
            copy.deepcopy(net).eval(),
            torch.optim.SGD(net.parameters(), 0.1),
            own_rows(sim, k),
        )
        for _ in range(2):
            z = features(net, x)
            loss = F.cross_entropy(net.head(z), y)
            if last[k]:
                sims = [F.cosine_similarity(z, features(other, x).detach()) for other in (received, last[k])]
                loss = loss - 2.0 * (torch.stack(sims, 1) / 0.7).log_softmax(1)[:, 0].mean()
            step(optimizer, loss)
        last[k] = copy.deepcopy(net).eval()

    for _ in rounds(sim, 3, work, [whole_net(sim, k) for k in range(2)]):
        for k in range(2):
            kept = {n: t[k] for n, t in sim.state.groups[0].kept["last"].items()}
            assert_close_numbers(kept, {n: t for n, t in before_head(last[k]).items() if "num_batches" not in n})


def test_who_sits_out_keeps_its_last_model() -> None:
    sim = simulate("moon", DIGITS.override(participation=0.4), random_federation([6, 8, 5, 9, 7]))
    seen = []
    for _ in range(4):
        play(sim, 1)
        kept = sim.state.groups[0].kept
        moved = (kept["last"]["body.1.weight"] != 0).flatten(1).any(1)
        assert torch.equal(moved, kept["seen"] > 0)
        seen.append(int(kept["seen"].sum()))
    assert seen[0] == 2 and seen == sorted(seen)
