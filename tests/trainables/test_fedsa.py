"""FedSA: anchors (start, margins, moves), the three terms, what is sent, and the three ways to predict."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.by_hand import SEEN, assert_loss, first_client, head_on, movable, three_of_four
from support.helpers import DIGITS, client_net, next_task, own_rows, play, random_federation, record_uploads, simulate
from support.numbers import TIGHT, numbers, randn
from torch import Tensor, nn
from torch.testing import assert_close

from fedtune.core import randomness
from fedtune.engine import engine
from fedtune.experiment.algorithm import Batch, Model, Ragged, Task
from fedtune.trainables.fedsa import FedSA, embedded, mar

C, D = 4, 12
TASK = Task(classes=C, features=D, clients=3, batch=4, seed=0)
HELD = [[0, 1], [1, 2], [2], [0, 2, 3], [1, 3]]  # client 2 has one class
ROWS = [8, 6, 5, 9, 7]


def margin_by_hand(vectors: dict[int, Tensor]) -> float:
    """Of a table class -> vector."""
    near = [min(float((v - w).norm()) for d, w in vectors.items() if d != c) for c, v in vectors.items() if vectors]
    return float(np.mean(near))


def own_margin(vectors: dict[int, Tensor]) -> float:
    return margin_by_hand(vectors) if len(vectors) > 1 else 0.0


def test_raw_anchors_are_gaussian_and_embedded_ones_by_hand() -> None:
    task = TASK._replace(classes=30, features=8)
    raw, again, other = (FedSA(embed=False).init(task._replace(seed=s))["anchors"] for s in (0, 0, 1))
    assert torch.equal(raw, again) and not torch.equal(raw, other)
    assert abs(raw.mean()) < 0.2 and abs(raw.std() - 1) < 0.15 and raw.min() < -1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(randomness.number(0, "embedding"))
        layers = [nn.Linear(8, 8), nn.Linear(8, 8)]
    h = raw.numpy()
    for layer in layers:
        h = h @ layer.weight.detach().double().numpy().T + layer.bias.detach().double().numpy()
        h = (h - h.mean(0)) / np.sqrt(h.var(0) + 1e-5)
        h = np.maximum(h, 0)
    got = FedSA().init(task)["anchors"]
    assert_close(got.numpy(), h, **TIGHT)
    assert not torch.equal(FedSA().init(task._replace(seed=1))["anchors"], got) and not got.requires_grad
    ours = [embedded(other, randomness.number(s, "embedding")) for s in (0, 1)]  # the same rows, each seed's H
    assert torch.equal(FedSA().init(task._replace(seed=1))["anchors"], ours[1]) and not torch.equal(*ours)


def test_margins_of_vectors_made_by_hand() -> None:
    line = torch.tensor([[0.0, 0], [3, 0], [3, 4], [0, 100]]).double()  # nearest other: 3, 3, 4, then √(9 + 96²)
    assert_close(mar(line).item(), (3 + 3 + 4 + (9 + 96**2) ** 0.5) / 4, **TIGHT)
    for there, want in (([1, 1, 1, 0], 10 / 3), ([1, 0, 1, 0], 5), ([0, 1, 1, 0], 4), ([0, 1, 0, 0], 0), ([0] * 4, 0)):
        assert_close(mar(line, torch.tensor(there).bool()).item(), float(want), **TIGHT)
    two = mar(torch.stack([line, 2 * line]), torch.tensor([[1, 1, 1, 0], [1, 0, 0, 1]]).bool())
    assert_close(two, torch.tensor([10 / 3, 200], dtype=torch.float64), **TIGHT)


@pytest.mark.parametrize("q", [1e-4, 0.1, 0.3])
def test_after_n_rounds_an_anchor_has_gone_all_but_the_nth_power_of_the_way(q: float) -> None:
    start, p = randn(C, D), randn(2, C, D, seed=1)
    counts = torch.tensor([[3, 0, 1, 0], [1, 0, 2, 0]])
    up = {"protos": Ragged(p, counts > 0), "counts": Ragged(counts, counts > 0), "ids": torch.tensor([0, 2])}
    none = Ragged(torch.zeros(C, D).double(), torch.zeros(C, dtype=torch.bool))
    server = {"anchors": start, "protos": none, "local": torch.zeros(3).double()}
    for _ in range(7):
        server = FedSA(drift=q).aggregate(server, up, TASK)
    for c, mean in ((0, (3 * p[0, 0] + p[1, 0]) / 4), (2, (p[0, 2] + 2 * p[1, 2]) / 3)):
        assert_close(server["anchors"][c], mean + (1 - q) ** 7 * (start[c] - mean), **TIGHT)
    assert torch.equal(server["anchors"][[1, 3]], start[[1, 3]])  # nobody saw them


def test_drift_0_keeps_anchors_bit_for_bit_and_another_moves_those_that_were_seen() -> None:
    data = random_federation([8, 6], [[0, 1], [1, 2]])
    for drift, moved in ((0.0, set()), (0.3, {0, 1, 2})):
        sim = simulate("fedsa", DIGITS, data, drift=drift)
        first = sim.state.server["anchors"]
        play(sim, 3)
        now = sim.state.server["anchors"]
        assert {c for c in range(C) if not torch.equal(now[c], first[c])} == moved


@pytest.mark.parametrize("weights", [(2.0, 0.0, 0.0), (0.0, 3.0, 0.0), (0.0, 0.0, 5.0), (2.0, 3.0, 5.0)])
@pytest.mark.parametrize("rule", ["larger", "none"])
def test_the_loss_by_hand(rule: str, weights: tuple[float, float, float]) -> None:
    """The term on the head's scores of the anchors moves the head alone, the other two the body alone."""
    m, x, _ = first_client(simulate("fedsa", DIGITS, random_federation([9])))
    m, y, a = movable(m), torch.tensor([0, 1, 1, 3, 0, 3, 1, 0, 1]), randn(C, D, seed=3)
    delta, z = torch.tensor(1.7, dtype=torch.float64), m.body(x)
    alg = FedSA(**dict(zip(("lam_r", "lam_m", "lam_cc"), weights, strict=True)), margin=rule)
    loss, tally = alg.loss(m, Batch(x, y, {}), {"anchors": a} | ({"margin": delta} if alg.has_margin() else {}))
    far = torch.stack([torch.stack([(row - anchor).norm() for anchor in a]) for row in z])
    far = far + delta * F.one_hot(y, C) * (rule != "none")
    terms = F.mse_loss(z, a[y]), F.cross_entropy(-far, y), F.cross_entropy(m.head(a), torch.arange(C))
    want = F.cross_entropy(m.head(z), y) + sum(w * term for w, term in zip(weights, terms, strict=True))
    assert_loss(loss, want, m)
    assert tally["counts"].tolist() == [3, 4, 0, 2]
    for c in (0, 1, 3):
        assert_close(tally["sums"][c], z[y == c].sum(0), **TIGHT)


def test_a_feature_that_lies_on_its_anchor_or_between_equal_ones_has_a_finite_slope() -> None:
    m, x, y = first_client(simulate("fedsa", DIGITS, random_federation([9])))
    z = m.body(x)
    for anchors in (torch.cat([z[:1], randn(C - 1, D)]), z[:1].expand(C, D)):
        leaves = {n: t.clone().requires_grad_() for n, t in m.tensors.items()}
        loss, _ = FedSA().loss(Model(m.net, leaves), Batch(x, y, {}), {"anchors": anchors, "margin": torch.ones(())})
        for g in torch.autograd.grad(loss, list(leaves.values())):
            assert g.isfinite().all()


@pytest.mark.parametrize("rule", ["larger", "global", "local"])
@pytest.mark.parametrize("net", ["mlp", "htmini3"])
def test_everyone_is_sent_the_anchors_and_its_margin_from_what_it_told_last(net: str, rule: str) -> None:
    data, scenario = random_federation(ROWS, HELD, scale=3.0), DIGITS.override(model=net, participation=0.6)
    sim = simulate("fedsa", scenario, data, margin=rule, lam_r=0.0, lam_m=0.1, lr=0.1, drift=0.3)
    seen, told, picked = record_uploads(sim), {}, set()
    for t in range(1, 7):
        anchors, everyone = sim.state.server["anchors"], torch.tensor([3, 0, 4, 1, 2])
        sent = sim.setup.algorithm.broadcast(sim.state.server, everyone, next_task(sim))
        common = margin_by_hand(dict(enumerate(anchors)))
        for row, k in enumerate(everyone.tolist()):
            own = own_margin(told.get(k, {}))
            want = {"larger": max(own, common), "global": common, "local": own}[rule]
            assert_close(sent["margin"][row].item(), want, **TIGHT)
            assert torch.equal(sent["anchors"][row], anchors)
            picked.add((k in told, own > common))
        ids = engine.participants(sim.setup, t).tolist()
        row = play(sim, 1)[0]
        assert row["down_floats"] == 3 * (C * D + 1) and row["down_ints"] == 0
        assert row["up_floats"] == D * sum(len(HELD[k]) for k in ids)
        assert row["up_ints"] == sum(len(HELD[k]) for k in ids)
        for i, k in enumerate(ids):
            told[k] = {c: seen[-1]["protos"].values[i, c] for c in HELD[k]}
    assert picked >= {(False, False), (True, False), (True, True)}  # newcomers; both sides of the larger


def test_the_margin_that_was_sent_is_the_one_that_trains() -> None:
    data, ends = random_federation([8, 6, 7]), []
    for bias in (0.0, 5.0):
        sim = simulate("fedsa", DIGITS, data, margin="local")
        sim.state.server["local"] = sim.state.server["local"] + torch.tensor([0.0, bias, 0.0])
        play(sim, 1)
        ends.append(numbers(sim.state))
    apart = [any(not torch.equal(t, ends[1][n]) for n, t in ends[0].items() if f"client {k}/" in n) for k in range(3)]
    assert apart == [False, True, False]


def test_it_predicts_by_prototypes_anchors_and_head() -> None:
    m, x, _ = first_client(simulate("fedsa", DIGITS, random_federation([9])))
    z = m.body(x).numpy()
    (p, _), a = three_of_four(randn(C, D, seed=9)), randn(C, D, seed=8)
    ways = FedSA().predict(m, x, {"protos": Ragged(p, SEEN), "anchors": a})
    assert list(ways) == ["nearest", "anchor", "head"]
    for name, table, classes in (("nearest", p, [0, 2, 3]), ("anchor", a, [0, 1, 2, 3])):
        far = [[np.linalg.norm(row - table[c].numpy()) for c in classes] for row in z]
        assert_close(-ways[name][:, classes].numpy(), np.array(far), **TIGHT)
    assert (ways["nearest"][:, 1] == -torch.inf).all()
    assert_close(ways["head"].numpy(), head_on(m, z), **TIGHT)
    for first in ("nearest", "anchor", "head"):
        got = FedSA(predictor=first).predict(m, x, {"protos": Ragged(p, SEEN), "anchors": a})
        assert next(iter(got)) == first and set(got) == set(ways)
    none = Ragged(p, torch.zeros(C, dtype=torch.bool))
    got = FedSA().predict(m, x, {"protos": none, "anchors": a})
    assert torch.equal(got["nearest"], got["head"])


def test_an_evaluation_scores_all_three_by_what_the_server_holds_now() -> None:
    sim = simulate("fedsa", DIGITS, random_federation([8, 12, 9], other=8), lam_r=0.1)
    for _ in range(2):
        row = play(sim, 1)[0]
        server, right = sim.state.server, {"nearest": [], "anchor": [], "head": []}
        for k in range(3):
            net, (x, y) = client_net(sim, k).eval(), own_rows(sim, k, "test")
            z = net.body(x).detach()
            for way, table in (("nearest", server["protos"].values), ("anchor", server["anchors"])):
                right[way].append(((z[:, None] - table).norm(dim=2).argmin(1) == y).double().mean().item())
            right["head"].append((net.head(z).argmax(1) == y).double().mean().item())
        assert_close(row["test_acc"], np.mean(right["nearest"]).item(), **TIGHT)
        for way in ("anchor", "head"):
            assert_close(row[f"test_acc_{way}"], np.mean(right[way]).item(), **TIGHT)
        assert len({round(float(np.mean(v)), 9) for v in right.values()}) > 1
