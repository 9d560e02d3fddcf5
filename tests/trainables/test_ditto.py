"""Ditto: three rounds by hand."""

from support.by_hand import assert_own, common_model, distance, sgd_step
from support.helpers import DIGITS, client_net, own_rows, play, random_federation, simulate
from support.numbers import assert_close_numbers, copied
from torch import nn


def test_its_loss_is_that_of_both_models() -> None:
    data = random_federation([5, 9, 7])
    sims = [simulate(name, data=data, **c) for name, c in (("ditto", {"lam": 0.0}), ("fedavg", {}), ("local", {}))]
    for mine, common, own in zip(*(play(sim, 3) for sim in sims), strict=True):
        assert abs(mine["train_loss"] - common["train_loss"] - own["train_loss"]) < 1e-12


def test_three_rounds_by_hand() -> None:
    data = random_federation([6])
    sim = simulate("ditto", DIGITS, data, lam=0.6, lr=0.1, momentum=0.0, batch=6, local_steps=2)
    common, own, (x, y) = client_net(sim, 0), client_net(sim, 0), own_rows(sim, 0)
    for _ in range(3):  # with B = n each batch is all rows, in whatever order
        received = copied(common.state_dict())
        for net, lam in ((common, 0.0), (own, 0.6)):
            for _ in range(2):
                sgd_step(nn.functional.cross_entropy(net(x), y) + lam / 2 * distance(net, received), net, 0.1)
        play(sim, 1)
        assert_close_numbers(common_model(sim), common.state_dict())  # of one client: its own
        assert_own(sim, [own.state_dict()])
