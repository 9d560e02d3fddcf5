"""FedProto: the loss and the nearest prototype by hand; its prototypes are in test_prototypes.py."""

import numpy as np
import torch
import torch.nn.functional as F
from support.by_hand import SEEN, assert_loss, first_client, head_on, movable, three_of_four
from support.helpers import DIGITS, random_federation, simulate
from support.numbers import TIGHT, randn
from torch.testing import assert_close

from fedtune.experiment.algorithm import Batch, Ragged
from fedtune.trainables.fedproto import FedProto


def filled() -> Ragged:
    return three_of_four(randn(4, 12, seed=9))


def test_the_loss_by_hand() -> None:
    m, x, y = first_client(simulate("fedproto", DIGITS, random_federation([9])))
    m, p = movable(m), filled()
    z = m.body(x)
    pull = (((z - p.values[y]) ** 2).mean(1) * SEEN[y]).mean()
    assert pull > 0 and not SEEN[y].all()
    got = FedProto(lam=3.0).loss(m, Batch(x, y, {}), {"protos": p})
    assert_loss(got, F.cross_entropy(m.head(z), y) + 3 * pull, m)


def test_the_prediction_is_the_nearest_prototype_or_at_first_the_head() -> None:
    m, x, _ = first_client(simulate("fedproto", DIGITS, random_federation([9])))
    p, z = filled(), m.body(x).numpy()
    logits = head_on(m, z)
    ways = FedProto().predict(m, x, {"protos": p})
    assert list(ways) == ["nearest", "head"]
    far = np.sqrt(((z[:, None] - p.values.numpy()) ** 2).sum(2))
    known = [0, 2, 3]
    assert_close(ways["nearest"][:, known], torch.as_tensor(-far[:, known]), **TIGHT)
    assert (ways["nearest"][:, 1] == -torch.inf).all()
    assert_close(ways["head"], torch.as_tensor(logits), **TIGHT)
    assert list(FedProto(predictor="head").predict(m, x, {"protos": p})) == ["head", "nearest"]
    none = Ragged(p.values, torch.zeros(4, dtype=torch.bool))
    assert torch.equal(FedProto().predict(m, x, {"protos": none})["nearest"], ways["head"])
