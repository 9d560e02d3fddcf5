"""FedProto: prototypes are means over rows, the loss and the nearest prototype by hand."""

from __future__ import annotations

import numpy as np
import torch
from support.by_hand import first_client
from support.helpers import DIGITS, TIGHT, client_net, own_rows, play, randn, random_federation, simulate
from torch.testing import assert_close

from fedtune.engine.engine import participants
from fedtune.experiment.algorithm import Batch, Data, Model, Ragged, Task
from fedtune.nn.prototypes import class_means
from fedtune.trainables.fedproto import FedProto

TASK = Task(classes=4, features=12, clients=3, batch=4, seed=0)
SEEN = torch.tensor([True, False, True, True])


def filled() -> Ragged:
    """Prototypes of three classes; the absent one is far off, so that reading it would show."""
    return Ragged(torch.where(SEEN[:, None], randn(4, 12, seed=9), 1e3), SEEN)


def scores(m: Model, x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    z = m.body(x).numpy()
    return z, z @ m["head.weight"].numpy().T + m["head.bias"].numpy()


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


def test_weighting_by_clients_is_the_plain_mean_of_those_who_hold_the_class() -> None:
    means, counts = randn(3, 4, 12), torch.tensor([[9, 1, 0, 0], [1, 0, 2, 0], [5, 0, 1, 0]])
    up = upload([(m * (n > 0)[:, None], n) for m, n in zip(means, counts, strict=True)])
    got = FedProto(weighting="clients").aggregate({"protos": filled()}, up, TASK)["protos"].values
    assert_close(got[0], means[:, 0].mean(0), **TIGHT)
    assert_close(got[1], means[0, 1], **TIGHT)
    assert_close(got[2], means[1:, 2].mean(0), **TIGHT)
    rows = FedProto().aggregate({"protos": filled()}, up, TASK)["protos"].values
    assert_close(rows[2], (2 * means[1, 2] + means[2, 2]) / 3, **TIGHT)


def test_the_loss_by_hand() -> None:
    m, x, y = first_client(simulate("fedproto", DIGITS, random_federation([9])))
    z, logits = scores(m, x)
    p, label = filled(), y.numpy()
    ce = np.mean([np.log(np.exp(r).sum()) - r[c] for r, c in zip(logits, label, strict=True)])
    known, target = SEEN[y].numpy(), p.values[y].numpy()
    pull = np.mean(((z - target) ** 2).sum(1) / 12 * known)
    assert pull > 0 and not SEEN[y].all()
    got = FedProto(lam=3.0).loss(m, Batch(x, y, {}), {"protos": p})
    assert_close(got.item(), float(ce + 3 * pull), **TIGHT)


def test_the_prediction_is_the_nearest_prototype_or_at_first_the_head() -> None:
    m, x, _ = first_client(simulate("fedproto", DIGITS, random_federation([9])))
    z, logits = scores(m, x)
    p = filled()
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


def test_the_upload_is_the_class_means_of_the_trained_features_and_their_counts() -> None:
    m, x, y = first_client(simulate("fedproto", DIGITS, random_federation([9])))
    mask = torch.arange(9) < 7
    up = FedProto().upload(m, Data(x, y, mask, {}), {"protos": filled()})
    z, _ = scores(m, x)
    held = np.bincount(y[:7].numpy(), minlength=4)
    assert up["counts"].values.tolist() == held.tolist() and up["protos"].present.tolist() == (held > 0).tolist()
    for c in np.flatnonzero(held):
        assert_close(up["protos"].values[c].numpy(), z[:7][y[:7].numpy() == c].mean(0), **TIGHT)


def test_a_round_by_hand_prototypes_come_from_the_models_after_training() -> None:
    data = random_federation([8, 6, 7], [[0, 1], [1, 2], [0, 2]])
    sim = simulate("fedproto", DIGITS, data)
    play(sim, 2)
    z, y = [], []
    for k in range(3):
        x, label = own_rows(sim, k)
        z.append(client_net(sim, k).eval().body(x).detach()), y.append(label)
    z, y = torch.cat(z), torch.cat(y)
    got = sim.state.server["protos"]
    assert got.present.tolist() == [True, True, True, False]
    for c in range(3):
        assert_close(got.values[c], z[y == c].mean(0), **TIGHT)


def test_a_class_without_holders_keeps_its_prototype_and_is_not_sent() -> None:
    data = random_federation([8, 6, 7, 5], [[0, 1], [1, 2], [2], [3]])
    sim = simulate("fedproto", DIGITS.override(participation=0.5), data)
    known: set[int] = set()
    for t in range(1, 6):
        before = sim.state.server["protos"]
        row = sim.step()
        held = [{0: {0, 1}, 1: {1, 2}, 2: {2}, 3: {3}}[k] for k in participants(sim.setup, t).tolist()]
        here = set().union(*held)
        after = sim.state.server["protos"]
        for c in range(4):
            assert torch.equal(after.values[c], before.values[c]) == (c not in here)
        assert row["down_floats"] == 2 * len(known) * 12
        assert row["up_floats"] == 12 * sum(map(len, held)) and row["up_ints"] == sum(map(len, held))
        known |= here
        assert {c for c in range(4) if after.present[c]} == known
