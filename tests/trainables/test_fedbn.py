"""FedBN: BatchNorm stays, whole; a round by hand."""

import torch
from support.by_hand import descend, rounds
from support.helpers import BATCHNORM, client_net, own_rows, play, random_federation, record_uploads, simulate
from support.numbers import TIGHT, copied
from torch import nn
from torch.testing import assert_close

LAYERS = ("body.1", "body.4")  # BatchNorm's of fedgen-cnn
TENSORS = {
    f"{layer}.{n}" for layer in LAYERS for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
}


def test_two_rounds_by_hand() -> None:
    sim = simulate("fedbn", BATCHNORM, random_federation([8, 8]), lr=0.1, momentum=0.0, batch=8, local_steps=2)
    nets = [client_net(sim, k).train() for k in range(2)]

    def work(_t: int, k: int, net: nn.Module) -> None:  # with B = n each batch is all rows, in whatever order
        descend(net, net, own_rows(sim, k), 2, 0.1)

    for _ in rounds(sim, 2, work, nets, shared=lambda n: n not in TENSORS):
        assert sim.state.groups[0].tensors.keys() == TENSORS
    assert (nets[0].body[1].weight != nets[1].body[1].weight).all()


def test_the_rest_is_the_mean_by_rows_and_only_it_is_sent() -> None:
    sim = simulate("fedbn", BATCHNORM, random_federation([3, 17]))
    seen = record_uploads(sim)
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
