"""kNN-Per: neighbours as scikit-learn's; scores by hand; what is memorised."""

import math

import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from support.helpers import DIGITS, client_net, own_rows, play, random_federation, simulate
from support.numbers import TIGHT, randn
from torch import Tensor, nn
from torch.testing import assert_close

from fedtune.experiment.algorithm import Data, Model
from fedtune.trainables.knnper import KNNPer


@pytest.mark.parametrize(("kernel", "weigh"), [("distance", lambda d: -d), ("square", lambda d: -(d**2) / 6)])
def test_neighbours_are_scikit_learns(kernel: str, weigh) -> None:
    """Rows that are missing are asked nothing, and weights are right where exp(-d) itself is 0."""
    features, y, z = randn(30, 6), torch.arange(30) % 4, randn(50, 6, seed=1)
    classes = nn.functional.one_hot(y, 4).double()
    classes[20:] = 0
    algorithm = KNNPer(neighbours=7, kernel=kernel)
    fit = KNeighborsClassifier(7, weights=lambda d: weigh(torch.tensor(d)).exp().numpy())
    fit.fit(features[:20].numpy(), y[:20].numpy())
    said = algorithm.neighbours_say(z, features, classes)
    assert_close(said, torch.from_numpy(fit.predict_proba(z.numpy())), **TIGHT)
    far = algorithm.neighbours_say(1e6 + z, features, classes)
    assert_close(far.sum(1), torch.ones(50, dtype=torch.float64), **TIGHT)


def test_of_fewer_rows_than_neighbours_all_are_asked_and_of_none_nothing() -> None:
    features, classes, z = randn(8, 6), torch.zeros(8, 3, dtype=torch.float64), randn(5, 6, seed=1)
    for kernel in ("distance", "square"):
        assert not KNNPer(kernel=kernel).neighbours_say(z, features, classes).any()
    classes[:2, 0], classes[2, 2] = 1, 1
    near = (-torch.cdist(z, features[:3])).exp()
    wanted = torch.stack([near[:, :2].sum(1), torch.zeros(5, dtype=torch.float64), near[:, 2]], 1)
    assert_close(KNNPer(neighbours=5).neighbours_say(z, features, classes), wanted / near.sum(1)[:, None], **TIGHT)


def by_hand(net: nn.Module, rows: tuple[Tensor, Tensor], x: Tensor, lam: float, k: int, preset: bool) -> Tensor:
    """Scores of x, one by one: sort the rows by distance, and add up the weights of the first k."""
    z, of_rows, logits = net.body(x), net.body(rows[0]), net.head(net.body(x))
    scores = torch.zeros_like(logits)
    for i in range(len(x)):
        d = [(float((z[i] - row).norm()), c) for row, c in zip(of_rows, rows[1].tolist(), strict=True)]
        for far, c in sorted(d)[:k]:
            scores[i, c] += math.exp(-(far**2) / z.shape[1] if preset else -far)
        scores[i] /= scores[i].sum()
    return lam * scores + (1 - lam) * (logits if preset else logits.softmax(1))


@pytest.mark.parametrize("preset", [False, True], ids=["text", "code"])
@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_a_client_is_scored_with_its_own_rows(executor: str, preset: bool) -> None:
    data = random_federation([12, 7], [[0, 1], [1, 2, 3]], other=9)
    config = dict(KNNPer.presets["as_published"]) if preset else {}
    sim = simulate("knnper", DIGITS, data, executor=executor, lam=0.6, neighbours=3, lr=0.1, **config)
    row, right, losses = play(sim, 2)[-1], [], []
    for k in range(2):
        (x, y), net = own_rows(sim, k, "test"), client_net(sim, k).eval()
        with torch.no_grad():
            scores = by_hand(net, own_rows(sim, k), x, 0.6, 3, preset)
        right.append((scores.argmax(1) == y).double().mean())
        losses.append(nn.functional.cross_entropy(scores if preset else scores.log(), y))
    assert_close(row["test_acc"], float(sum(right) / 2), **TIGHT)
    assert_close(row["test_loss"], float(sum(losses) / 2), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("rows", "capacity", "kept"), [(9, 4, [0, 2, 4, 6]), (3, 4, [0, 1, 2]), (4, 4, [0, 1, 2, 3])])
def test_at_most_the_capacity_is_memorised_spread_over_the_rows(rows: int, capacity: int, kept: list[int]) -> None:
    x, y = randn(11, 3), torch.arange(11) % 4
    data = Data(x, y, torch.arange(11) < rows, {})
    net = nn.Module()
    net.body = nn.Identity()
    m = Model(net, {"memory.classes": torch.zeros(capacity, 4, dtype=torch.float64)})
    found = KNNPer(capacity=capacity).memorised(m, data, {})
    assert_close(found["memory.features"][: len(kept)], x[kept])
    classes = torch.zeros(capacity, 4, dtype=torch.float64)
    classes[range(len(kept)), y[kept]] = 1
    assert_close(found["memory.classes"], classes)
