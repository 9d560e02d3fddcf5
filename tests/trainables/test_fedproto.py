"""FedProto: prototypes are means over rows, the loss and the nearest prototype by hand."""

import numpy as np
import torch
import torch.nn.functional as F
from support.by_hand import assert_loss, first_client, head_on, movable
from support.helpers import DIGITS, random_federation, simulate
from support.numbers import TIGHT, randn
from torch.testing import assert_close

from fedtune.experiment.algorithm import Batch, Ragged, Task
from fedtune.nn.prototypes import class_means
from fedtune.trainables.fedproto import FedProto

TASK = Task(classes=4, features=12, clients=3, batch=4, seed=0)
SEEN = torch.tensor([True, False, True, True])


def filled() -> Ragged:
    """Prototypes of three classes; the absent one is far off, so that reading it would show."""
    return Ragged(torch.where(SEEN[:, None], randn(4, 12, seed=9), 1e3), SEEN)


def upload(parts: list[tuple[torch.Tensor, torch.Tensor]]) -> dict:
    means, counts = (torch.stack(t) for t in zip(*parts, strict=True))
    return {"protos": Ragged(means, counts > 0), "counts": Ragged(counts, counts > 0)}


def test_the_prototype_is_the_mean_over_all_rows_wherever_they_live() -> None:
    z, mask = randn(60, 12), torch.rand(60, generator=torch.Generator().manual_seed(1)) > 0.2
    y = torch.randint(3, (60,), generator=torch.Generator().manual_seed(2))
    up = upload([class_means(z[k::4], y[k::4], mask[k::4], 4) for k in range(4)])
    got = FedProto().aggregate({"protos": filled()}, up, TASK)["protos"]
    for c in range(3):
        assert_close(got.values[c], z[mask & (y == c)].mean(0), **TIGHT)
    assert_close(got.values[3], filled().values[3], **TIGHT)  # nobody saw it: it stays
    assert got.present.tolist() == [True, True, True, True]
    empty = {"protos": Ragged(torch.zeros(4, 12).double(), torch.zeros(4, dtype=torch.bool))}
    assert FedProto().aggregate(empty, up, TASK)["protos"].present.tolist() == [True, True, True, False]


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
