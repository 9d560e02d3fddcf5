"""FedPA: schedules, pull, push and prototypes by hand."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.by_hand import SEEN, assert_one_step, first_client, step, three_of_four
from support.generators import as_net, cross_entropies, inputs, module, slopes, told_by
from support.helpers import DIGITS, EARLY, next_task, play, random_federation, record_uploads, simulate
from support.numbers import TIGHT, assert_close_numbers, assert_same_numbers, copied, flat, randn
from torch import Tensor
from torch.testing import assert_close

from fedtune.core import randomness
from fedtune.experiment.algorithm import Batch, Ragged, Task
from fedtune.nn.generators import Net, generate
from fedtune.trainables.fedavg import FedAvg
from fedtune.trainables.fedpa import FedPA

SMALL = EARLY["fedpa"]
D, C = 12, 4
OFF = {"lam_ge": 0.0, "lam_po": 0.0, "gamma_ad": 0.0}
FLAT = {n: 1.0 for n in ("ge_decay", "po_decay", "fid_decay", "div_decay", "ad_decay")}


def two() -> Any:
    """Rows of a class over the clients: [2, 2, 4, 0] and [6, 6, 0, 0], so that shares are exact; nobody has class 3."""
    return random_federation([8, 12], [[0, 1, 2, 2], [0, 1]])


def filled() -> Ragged:
    return three_of_four(randn(C, D, seed=9))


ALL = {"shared", "generator", "labels", "protos"}
ABLATIONS: dict[str, tuple[dict, set, set]] = {  # table IV: what is down from round 2 on, and what is up
    "all": ({}, ALL, {"protos", "counts"}),
    "no adversarial term": ({"gamma_ad": 0.0}, ALL, {"protos", "counts"}),
    "no generator": ({"lam_ge": 0.0}, {"shared", "protos"}, {"protos", "counts"}),
    "no alignment": ({"lam_po": 0.0}, {"shared", "generator", "labels"}, {"protos", "counts"}),
    "generator alone": ({"lam_po": 0.0, "gamma_ad": 0.0}, {"shared", "generator", "labels"}, {"counts"}),
    "alignment alone": ({"lam_ge": 0.0, "gamma_ad": 0.0}, {"shared", "protos"}, {"protos", "counts"}),
    "none": (OFF, {"shared"}, set()),
    # without generated features nobody hears of the push, so it needs no prototypes
    "push alone": ({"lam_ge": 0.0, "lam_po": 0.0}, {"shared"}, set()),
}


@pytest.mark.parametrize("which", ABLATIONS)
def test_an_ablation_sends_only_what_the_remaining_terms_need(which: str) -> None:
    config, down, up = ABLATIONS[which]
    sim = simulate("fedpa", DIGITS, two(), **SMALL, **config)
    seen, start = record_uploads(sim), copied(flat(sim.state.server["nets"]))
    for t in range(3):
        sent = sim.setup.algorithm.broadcast(sim.state.server, torch.arange(2), next_task(sim))
        assert set(sent) == (down if t else {"shared"})
        row = play(sim, 1)[0]
        assert set(seen[t]) - {"ids", "shared", "rows"} == up
        model = sum(v.numel() for v in sim.state.server["shared"].values())
        net = sum(v.numel() for v in sim.state.server["nets"].values())
        sizes = {"shared": model, "generator": net, "labels": C, "protos": 3 * D}  # three classes are held
        assert row["down_floats"] == 2 * sum(sizes[n] for n in sent)
        assert row["up_floats"] == 2 * model + 5 * D * ("protos" in up)
        assert row["up_ints"] == 2 + 2 * C * ("counts" in up)
    trained = not torch.equal(sim.state.server["nets"]["out.weight"], start["out.weight"])
    assert trained == ("generator" in down)
    assert bool(sim.state.server["protos"].present.any()) == ("protos" in up)


@pytest.mark.parametrize("lam_po", [0.0, 5.0])
def test_without_generated_features_the_push_changes_nothing(lam_po: float) -> None:
    a, b = (simulate("fedpa", DIGITS, two(), **SMALL, lam_ge=0.0, lam_po=lam_po, gamma_ad=g) for g in (0.0, 2.0))
    assert play(a, 3) == play(b, 3)
    assert_same_numbers(flat(a.state.server), flat(b.state.server))


def test_the_pull_falls_to_its_floor_in_round_174_as_the_paper_counts() -> None:
    alg = FedPA()
    for t in (0, 1, 100, 173):
        assert alg.pull(t) == 5 * 0.98**t > 0.15
    assert alg.pull(174) == alg.pull(1000) == 0.15 > 5 * 0.98**174
    assert alg.floor_round() == 175  # the engine's rounds start at 1


@pytest.mark.parametrize(("lam", "decay", "floor"), [(5, 0.98, 0.15), (1, 0.9, 0.5), (20, 0.95, 1.0), (0.5, 0.9, 0.5)])
def test_the_floor_round_is_the_first_whose_pull_is_the_floors(lam: float, decay: float, floor: float) -> None:
    alg, lower = (FedPA(lam_po=lam, po_decay=decay, po_floor=f) for f in (floor, floor / 2))
    first = next(r for r in range(2, 400) if alg.pull(r - 1) != lower.pull(r - 1))  # there is no pull in round 1
    assert alg.floor_round() == first


def test_no_pull_is_no_pull_whatever_the_floor() -> None:
    assert FedPA(lam_po=0.0).pull(0) == FedPA(lam_po=0.0).pull(200) == 0


@pytest.mark.parametrize("t", [0, 1, 100, 174])
def test_every_weight_decays_by_its_own_factor(t: int) -> None:
    decays = {"fid_decay": 0.91, "div_decay": 0.93, "ad_decay": 0.95}
    base = {"bounded": False, "gamma_fid": 2.0, "gamma_div": 3.0, "gamma_ad": 0.5, "reduce": "sum"}
    later = {"gamma_fid": 2 * 0.91**t, "gamma_div": 3 * 0.93**t, "gamma_ad": 0.5 * 0.95**t}
    got = generator_loss(FedPA(**base, **decays), t=t)
    part = [
        generator_loss(FedPA(**base | zero | {"bounded": False}, **FLAT))
        for zero in ({"gamma_div": 0.0, "gamma_ad": 0.0}, {"gamma_ad": 0.0}, {})
    ]
    values = [f(*POINT) for f in part]
    fid, div, ad = values[0] / 2, (values[1] - values[0]) / 3, (values[2] - values[1]) / 0.5
    want = later["gamma_fid"] * fid + later["gamma_div"] * div + later["gamma_ad"] * ad
    assert_close(got(*POINT), want, **TIGHT)


@pytest.mark.parametrize("t", [1, 100, 174, 200])
@pytest.mark.parametrize("distance", ["l2", "mse"])
def test_the_pull_by_hand_masks_a_class_without_a_prototype(distance: str, t: int) -> None:
    m, x, y = first_client(simulate("fedpa", DIGITS, random_federation([9]), **SMALL))
    z, p, total = m.body(x).numpy(), filled(), 0.0
    for row, c in zip(z, y.tolist(), strict=True):
        apart = row - p.values[c].numpy()
        if SEEN[c]:
            total += np.linalg.norm(apart) if distance == "l2" else np.mean(apart**2)
    assert not SEEN[y].all() and SEEN[y].any()
    alg = FedPA(distance=distance, lam_ge=0.0)
    batch = Batch(x, y, {})
    got = alg.loss_at(t, m, batch, {"protos": p}) - FedAvg().loss(m, batch, {})
    assert_close(got.item(), float(max(0.15, 5 * 0.98**t) * total / 9), rtol=0, atol=1e-11)  # the sum is about 40
    assert torch.equal(alg.loss_at(0, m, batch, {}), FedAvg().loss(m, batch, {}))


def test_two_clients_take_one_step_on_the_loss_by_hand() -> None:
    work = {"local_steps": 1, "batch": 8, "lr": 0.1, "momentum": 0.0}
    config = {"lam_ge": 3.0, "ge_decay": 0.9, "distance": "l2", "lam_po": 2.0, "po_decay": 0.9}
    sim = simulate("fedpa", DIGITS, two(), **SMALL, **work, **config)
    play(sim, 1)
    server, law = sim.state.server, torch.tensor([8, 8, 4, 0])

    def loss(_: int, net: Any, x: Tensor, y: Tensor, eps: dict) -> Tensor:
        told, z = told_by(law, eps["label"]), net.body(x)
        pull = torch.stack([(row - server["protos"].values[c]).norm() for row, c in zip(z, y, strict=True)]).mean()
        made = net.head(module(server["nets"]).eval()(inputs(eps["noise"], told)).detach())
        return F.cross_entropy(net.head(z), y) + 2.7 * F.cross_entropy(made, told) + 1.8 * pull

    assert_one_step(sim, loss)


# ------------------------------------------------------------------------------------------------ the generator

TASK = Task(classes=C, features=D, clients=3, batch=4, seed=0)
COUNTS = torch.tensor([[3, 0, 4, 0], [1, 0, 4, 5], [4, 8, 0, 3]])  # totals 8, 8, 8, 8
HEADS = {"head.weight": randn(3, C, D, seed=1), "head.bias": randn(3, C, seed=2)}
Y = torch.tensor([0, 1, 2, 3, 0, 2, 3, 3])
POINT: tuple[Net, Tensor, Tensor] = (
    {n: t.double() for n, t in FedPA(gen_hidden=16, noise_width=5).init(TASK)["nets"].items()},
    randn(8, 5, seed=3),
    Y,
)


def feature() -> Tensor:
    net, noise, y = POINT
    return module(net)(inputs(noise, y)).detach()


def generator_loss(alg: FedPA, last: Ragged | None = None, new: Ragged | None = None, t: int = 0) -> Any:
    """What the generator descends on in round t = 0, 1, …, by net, noise and labels, with its gradient."""
    found: list[Any] = []
    object.__setattr__(alg, "train_net", lambda server, task, loss: found.append(loss) or server)
    server = {n: v for n, v in FedPA(gen_hidden=16, noise_width=5).init(TASK).items() if n != "protos"}
    last = last or filled()
    new = new or Ragged(randn(3, C, D, seed=5), torch.zeros(3, C, dtype=torch.bool))
    alg.aggregate(
        server | {"protos": last},
        {"shared": HEADS, "rows": COUNTS.sum(1), "counts": COUNTS, "ids": torch.arange(3), "protos": new},
        TASK._replace(t=t + 1),
    )

    def loss(net: Net, noise: Tensor, y: Tensor) -> Tensor:
        h = generate(copied(net), noise, y, training=True)
        value, slope = found[0](noise[None], y[None])(h.detach(), 0)
        return value + (h * slope).sum() - (h * slope).sum().detach()

    return loss


def push(alg: Any, **setting: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The part of that loss with the minus, and its gradient: what gamma_ad adds."""
    net, noise, y = POINT
    parts = []
    for gamma in (1.5, 0.0):
        leaves = {n: t.clone().requires_grad_("running" not in n) for n, t in net.items()}
        algorithm = FedPA(**{"distance": "l2"} | alg, gamma_ad=gamma)
        loss = generator_loss(algorithm, **setting)(leaves, noise, y)
        moving = {n: t for n, t in leaves.items() if t.requires_grad}
        grads = torch.autograd.grad(loss, list(moving.values()))
        parts.append((loss.detach(), dict(zip(moving, grads, strict=True))))
    (whole, a), (rest, b) = parts
    return whole - rest, {n: a[n] - b[n] for n in a}


def mean_apart(p: Ragged, distance: str) -> float:
    """The cap: between prototypes of different classes."""
    held = p.present.nonzero()[:, 0].tolist()
    size = np.linalg.norm if distance == "l2" else lambda v: np.mean(v**2)
    return float(np.mean([size((p.values[i] - p.values[j]).numpy()) for i in held for j in held if i != j]))


def mean_far(h: Tensor, p: Ragged, distance: str) -> float:
    """Over all rows; one whose class has no prototype adds nothing."""
    size = np.linalg.norm if distance == "l2" else lambda v: np.mean(v**2)
    pairs = zip(h.numpy(), Y.tolist(), strict=True)
    return sum(size(row - p.values[c].numpy()) for row, c in pairs if p.present[c]) / len(Y)


@pytest.mark.parametrize("distance", ["l2", "mse"])
def test_below_its_bound_the_push_is_minus_gamma_times_the_distance(distance: str) -> None:
    wide = Ragged(filled().values * 3, SEEN)
    assert mean_far(feature(), wide, distance) < mean_apart(wide, distance)
    got, grads = push({"distance": distance}, last=wide)
    assert_close(got.item(), -1.5 * mean_far(feature(), wide, distance), rtol=0, atol=1e-11)  # a difference of sums
    want = module(POINT[0])
    h, total = want(inputs(*POINT[1:])), torch.zeros((), dtype=torch.float64)
    for row, c in zip(h, Y.tolist(), strict=True):
        apart = row - wide.values[c]
        if SEEN[c]:
            total = total - 1.5 * (apart.norm() if distance == "l2" else apart.square().mean()) / 8
    total.backward()
    for name, grad in slopes(want).items():
        assert_close(grads[name], grad, rtol=0, atol=1e-11)
    before, step = mean_far(feature(), wide, distance), 1e-3
    moved = POINT[0] | {n: POINT[0][n] - step * g for n, g in grads.items()}
    assert mean_far(module(moved)(inputs(*POINT[1:])).detach(), wide, distance) > before


@pytest.mark.parametrize("distance", ["l2", "mse"])
def test_past_its_bound_the_push_is_constant_unless_it_is_unbounded(distance: str) -> None:
    near = Ragged(filled().values[:1] + 0.01 * randn(C, D, seed=4), SEEN)
    cap = mean_apart(near, distance)
    assert mean_far(feature(), near, distance) > cap > 0
    got, grads = push({"distance": distance}, last=near)
    assert_close(got.item(), -1.5 * cap, rtol=0, atol=1e-11)
    assert all((g == 0).all() for g in grads.values())
    free, grads = push({"distance": distance, "bounded": False}, last=near)
    assert_close(free.item(), -1.5 * mean_far(feature(), near, distance), rtol=0, atol=1e-11)
    assert grads["out.weight"].abs().max() > 1e-3


def test_the_push_is_from_the_new_prototypes_or_from_the_last() -> None:
    last, new = filled(), Ragged(randn(3, C, D, seed=6), COUNTS > 0)
    mean = torch.stack([(COUNTS[:, c, None] * new.values[:, c]).sum(0) / 8 for c in range(C)])
    for targets, want in (("new", Ragged(mean, torch.ones(C, dtype=torch.bool))), ("last", last)):
        got, _ = push({"targets": targets, "bounded": False}, last=last, new=new)
        assert_close(got.item(), -1.5 * mean_far(feature(), want, "l2"), rtol=0, atol=1e-11)
    none = Ragged(last.values, torch.zeros(C, dtype=torch.bool))
    for bounded in (True, False):  # at the end of round 0 there is no last one: no push
        got, grads = push({"targets": "last", "bounded": bounded}, last=none, new=new)
        assert got == 0 and all((g == 0).all() for g in grads.values())


@pytest.mark.parametrize("pairs", ["same", "other", "all"])
@pytest.mark.parametrize("weighing", ["labels", "mean"])
@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_the_generators_loss_by_hand(reduce: str, weighing: str, pairs: str) -> None:
    how = {"reduce": reduce, "weighing": weighing, "pairs": pairs, "distance": "l2"}
    alg = FedPA(gamma_fid=2.0, gamma_div=3.0, gamma_ad=0.5, **how)
    got = generator_loss(alg)(*POINT).item()
    h, noise = feature(), POINT[1].numpy()
    ce, share = cross_entropies(HEADS, h, Y), COUNTS.numpy() / 8
    weight = share[:, Y]
    fid = sum(np.mean(weight[k] * ce[k]) if weighing == "labels" else weight[k].mean() * ce[k].mean() for k in range(3))
    total, kept = 0.0, 0
    for p in range(8):
        for q in range(8):
            alike = Y[p] == Y[q]
            if (pairs == "same" and (p == q or not alike)) or (pairs == "other" and alike):
                continue
            kept += 1
            total += np.abs((h[p] - h[q]).numpy()).mean() * ((noise[p] - noise[q]) ** 2).mean()
    div = np.exp(-total / (kept if pairs == "same" else 64))
    ad = min(mean_far(h, filled(), "l2"), mean_apart(filled(), "l2"))
    want = 2 * fid / (3 if reduce == "mean" else 1) + 3 * div - 0.5 * ad
    assert_close(got, float(want), **TIGHT)


def test_a_round_of_the_generators_training_by_hand() -> None:
    small = {"gen_steps": 12, "gen_hidden": 16, "gen_batch": 8}
    sim = simulate("fedpa", DIGITS, two(), **small, distance="l2", gamma_ad=0.7, bounded=False)
    whole, seen = module(sim.state.server["nets"]), record_uploads(sim)
    play(sim, 1)
    up, protos = seen[0]["shared"], sim.state.server["protos"]
    share = np.array([[0.25, 0.25, 1, 0], [0.75, 0.75, 0, 0]])
    stream = randomness.stream(0, "generator", 1)
    noise = torch.randn(12, 8, 32, generator=stream, dtype=torch.float64)
    u = torch.rand(12, 8, generator=stream, dtype=torch.float64)
    optimizer = torch.optim.Adam([p for p in whole.parameters() if p.requires_grad], lr=3e-4)
    for s in range(12):
        y = told_by(torch.tensor([8, 8, 4, 0]), u[s])
        h, fid = whole(inputs(noise[s], y)), torch.zeros((), dtype=torch.float64)
        for k in range(2):
            ce = F.cross_entropy(h @ up["head.weight"][k].T + up["head.bias"][k], y, reduction="none")
            fid = fid + (torch.as_tensor(share[k][y]) * ce).mean() / 2
        kept = [(p, q) for p in range(8) for q in range(8) if p != q and y[p] == y[q]]
        far = [(h[p] - h[q]).abs().mean() * (noise[s, p] - noise[s, q]).square().mean() for p, q in kept]
        ad = torch.stack([(h[b] - protos.values[y[b]]).norm() for b in range(8)]).mean()
        step(optimizer, (25 * fid + torch.exp(-torch.stack(far).mean()) - 0.7 * ad))
    assert_close_numbers(sim.state.server["nets"], as_net(whole))
