"""FedBN: BatchNorm stays, whole; a round by hand."""

import pytest
import torch
from support.by_hand import assert_own, step
from support.helpers import BATCHNORM, client_net, own_rows, play, random_federation, record_uploads, simulate
from support.numbers import TIGHT, assert_close_numbers, copied
from torch import nn, optim
from torch.testing import assert_close

LAYERS = ("body.1", "body.4")  # BatchNorm's of fedgen-cnn
TENSORS = {
    f"{layer}.{n}" for layer in LAYERS for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
}


def test_two_rounds_by_hand() -> None:
    sim = simulate("fedbn", BATCHNORM, random_federation([8, 8]), lr=0.1, momentum=0.0, batch=8, local_steps=2)
    nets = [client_net(sim, k).train() for k in range(2)]
    for _ in range(2):  # with B = n each batch is all rows, in whatever order
        for k, net in enumerate(nets):
            optimizer, (x, y) = optim.SGD(net.parameters(), lr=0.1), own_rows(sim, k)
            for _ in range(2):
                step(optimizer, nn.functional.cross_entropy(net(x), y))
        one, other = (net.state_dict() for net in nets)
        mean = {n: (one[n] + other[n]) / 2 for n in one if n not in TENSORS}
        for net in nets:
            net.load_state_dict(net.state_dict() | mean)
        play(sim, 1)
        assert_close_numbers(sim.state.server["shared"], mean)
        assert_own(sim, [net.state_dict() for net in nets])
        assert sim.state.groups[0].tensors.keys() == TENSORS
    assert (nets[0].body[1].weight != nets[1].body[1].weight).all()


def test_the_rest_is_the_mean_by_rows_and_only_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulate("fedbn", BATCHNORM, random_federation([3, 17]))
    seen = record_uploads(sim, monkeypatch)
    row = play(sim, 1)[0]
    up = seen[0]["shared"]
    for name, t in sim.state.server["shared"].items():
        assert_close(t, (3 * up[name][0] + 17 * up[name][1]) / 20, **TIGHT)
    assert row["down_floats"] == row["up_floats"] == 2 * sum(t.numel() for t in sim.state.server["shared"].values())
    assert row["down_ints"] == 0 and row["up_ints"] == 2  # no counters; the rows


def test_who_sits_out_keeps_its_batch_norm() -> None:
    sim = simulate("fedbn", BATCHNORM.override(participation=0.5), random_federation([6, 8, 5, 9]))
    before = copied(sim.state.groups[0].tensors)
    play(sim, 1)
    moved = torch.stack([(t != before[n]).view(4, -1).any(1) for n, t in sim.state.groups[0].tensors.items()])
    assert sorted(moved.sum(0).tolist()) == [0, 0, len(TENSORS), len(TENSORS)]
