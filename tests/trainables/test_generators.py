"""Generators of features: a client's step beside one, what is sent, and who leaves it as it is."""

from typing import Any

import pytest
import torch
from support.by_hand import assert_one_step
from support.generators import assert_far, inputs, loss_by_hand, module, two_clients, variational
from support.helpers import DIGITS, EARLY, next_task, play, simulate
from support.numbers import assert_same_numbers, copied
from torch import Tensor, nn

from fedtune.core import randomness
from fedtune.core.trees import take
from fedtune.experiment.registry import find

C, D = 4, 12
BOTH = pytest.mark.parametrize("name", ["fedgen", "fedgenp"])
GEN = {"batch": 8, "gen_weight": 3.0, "kl_weight": 2.0, "gen_decay": 0.9, "kl_decay": 0.95}
GENP = {"batch": 6, "a": 3.0, "b": 2.0, "a_decay": 0.9, "b_decay": 0.95}


def run(name: str, **config: Any) -> Any:
    return simulate(name, DIGITS, two_clients(), **EARLY[name], **config)


@pytest.mark.parametrize(
    ("name", "config"), [("fedgen", GEN), *(("fedgenp", GENP | {"generated": rows}) for rows in (0, 8))]
)
def test_two_clients_take_one_step_each_on_the_loss_by_hand(name: str, config: dict) -> None:
    sim = run(name, local_steps=1, lr=0.1, momentum=0.0, **config)
    play(sim, 1)
    server, own = sim.state.server, name == "fedgenp"  # whether each client has a generator of its own
    law = torch.ones(C) if own else server["counts"].sum(0)
    assert own or law.tolist() == [8, 8, 2, 2]

    def loss(k: int, net: nn.Module, x: Tensor, y: Tensor, eps: dict) -> Tensor:
        assert len(eps["noise"]) == len(eps["label"]) == (config.get("generated") or config["batch"])
        generator = take(server["nets"], k) if own else server["nets"]
        return loss_by_hand(net, generator, x, y, eps, law.double(), 3 * 0.9, 2 * 0.95)

    assert_one_step(sim, loss)
    assert not own or not torch.equal(server["nets"]["out.weight"][0], server["nets"]["out.weight"][1])


@BOTH
def test_clients_leave_generators_as_they_were_sent(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sim, seen, aggregate = run(name), [], find(name).aggregate
    play(sim, 1)
    kept = copied(sim.state.server["nets"])

    def taken(alg: Any, server: dict, up: dict, task: Any) -> dict:
        seen.append(copied(server["nets"]))
        assert not any(t.requires_grad for t in server["nets"].values())
        return aggregate(alg, server, up, task)

    monkeypatch.setattr(find(name), "aggregate", taken)
    play(sim, 1)
    assert_same_numbers(seen[0], kept)


@BOTH
def test_what_is_sent_the_model_first_then_the_generator_and_the_law_too(name: str) -> None:
    sim, avg, out = run(name), simulate("fedavg", DIGITS, two_clients()), D if name == "fedgen" else 2 * D
    net = (32 + C) * 16 + 16 + 4 * 16 + 16 * out + out  # with running statistics
    for t in range(3):
        (row,), (plain,) = play(sim, 1), play(avg, 1)
        assert row["down_floats"] - plain["down_floats"] == 2 * (net + C) * (t > 0)
        assert row["up_floats"] == plain["up_floats"] and row["up_ints"] - plain["up_ints"] == 2 * C
    if name == "fedgenp":  # each client its own
        sent = sim.setup.algorithm.broadcast(sim.state.server, torch.tensor([1, 0]), next_task(sim))["generator"]
        assert_same_numbers({n: t.values[0] for n, t in sent.items()}, take(sim.state.server["nets"], 1))
        assert all(t.present.all() for t in sent.values())


@BOTH
def test_quality_tells_distances_of_generated_features(name: str) -> None:
    sim = run(name, quality=True)
    row, nets = play(sim, 1)[0], sim.state.server["nets"]
    y, draw = torch.arange(C).repeat_interleave(20), {"dtype": torch.float64}
    noise = torch.randn(80, 32, generator=randomness.stream("quality"), **draw)
    xi = torch.randn(80, D, generator=randomness.stream("quality", "xi"), **draw)
    if name == "fedgen":
        made = [module(nets).eval()(inputs(noise, y))]
    else:
        made = [variational(take(nets, k), noise, xi, y, False)[0] for k in range(2)]
    assert_far(row, [h.detach() for h in made], y)
    assert row.keys() - play(run(name), 1)[0].keys() == {"generated_intra", "generated_inter"}
