"""FedBABU: a body under a head that stands still, tuned before scoring."""

from support.by_hand import descend, rounds
from support.helpers import BATCHNORM, DIGITS, client_net, own_rows, play, random_federation, simulate
from support.numbers import assert_same_numbers, copied
from support.tuned import tuned_scores
from torch import nn

from fedtune.experiment.experiment import Experiment


def test_two_rounds_by_hand() -> None:
    """The body's steps under a head that never moves, the mean by rows, and the scores of tuned models."""
    work = {"batch": 8, "local_steps": 2, "lr": 0.2, "momentum": 0.0, "tune_epochs": 3, "tune_lr": 0.05}
    sim = simulate("fedbabu", DIGITS, random_federation([8, 8]), **work)
    heads = copied(sim.state.groups[0].tensors)
    nets = [client_net(sim, k) for k in range(2)]

    def work(_t: int, k: int, net: nn.Module) -> None:
        descend(net, net.body, own_rows(sim, k), 2, 0.2)

    for row in rounds(sim, 2, work, nets, shared=lambda n: n.startswith("body")):
        accuracy, loss = tuned_scores(sim, nets, "val", "all", epochs=6, lr=0.05, momentum=0.0)
        assert abs(row["val_acc"] - accuracy) < 1e-12 and abs(row["val_loss"] - loss) < 1e-12
    assert_same_numbers(sim.state.groups[0].tensors, heads)
    assert (heads["head.weight"][0] == heads["head.weight"][1]).all()


def test_the_body_alone_is_sent_and_the_head_tuned_alone_leaves_statistics() -> None:
    sim = simulate(
        "fedbabu", BATCHNORM, random_federation([8, 8]), batch=8, tune="head", tune_epochs=4, tune_lr=None, lr=0.1
    )
    row = play(sim, 2)[-1]
    assert {n.split(".")[0] for n in sim.state.server["shared"]} == {"body"}
    nets = [client_net(sim, k) for k in range(2)]
    accuracy, loss = tuned_scores(sim, nets, "val", "head", epochs=4, lr=0.1, momentum=0.5)
    assert abs(row["val_acc"] - accuracy) < 1e-12 and abs(row["val_loss"] - loss) < 1e-12


def test_the_default_is_the_codes_and_pfllibs_is_a_preset() -> None:
    """jhoon-oh/FedBABU, analysis.ipynb: body and head, five epochs at 1e-3; PFLlib: ten at the clients' own rate."""
    plain = Experiment(algorithm="fedbabu", scenario=DIGITS)
    tuned = {n: plain.default()[n] for n in ("tune", "tune_epochs", "tune_lr")}
    assert tuned == {"tune": "all", "tune_epochs": 5, "tune_lr": 1e-3}
    assert {n: Experiment(algorithm="fedavgft", scenario=DIGITS).default()[n] for n in tuned} == tuned
    theirs = Experiment(algorithm="fedbabu", scenario=DIGITS.override(lr=0.2), preset="pfllib")
    assert {n: theirs.default()[n] for n in tuned} == {"tune": "all", "tune_epochs": 10, "tune_lr": 0.2}
    assert Experiment(algorithm="fedbabu", scenario=DIGITS, preset="as_text").default()["tune"] == "head"
