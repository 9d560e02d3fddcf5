"""GFPL: the frame, the losses by hand, when events happen, what they send, and what they move."""

from typing import Any

import numpy as np
import pytest
import torch
from support.by_hand import cross_entropy, first_client, head_on, step
from support.helpers import DIGITS, EARLY, play, random_federation, record_uploads, simulate
from support.numbers import TIGHT, assert_same_numbers, copied, numbers, randn
from torch import Tensor, nn
from torch.testing import assert_close

from fedtune.core.errors import UserError
from fedtune.engine import engine
from fedtune.experiment.algorithm import DOWN, UP, Batch, Phase, Ragged, Task
from fedtune.experiment.scenario import Scenario
from fedtune.nn.mixtures import Mixtures
from fedtune.trainables.gfpl import GFPL, pack, unpack

D, C = 12, 4
TASK = Task(classes=C, features=D, clients=3, batch=4, seed=0)
HELD = [[0, 1], [1, 2], [0, 1]]  # nobody holds class 3, only client 1 holds class 2
EVENTFUL = EARLY["gfpl"]


def data(sizes: tuple[int, ...] = (24, 17, 9)) -> Any:
    return random_federation(sizes, HELD)


def rows_of(name: str, state: engine.State) -> dict[str, Tensor]:
    return {n: t.clone() for n, t in numbers(state).items() if f"/{name}." in n}


def test_the_ablation_without_the_dual_classifier_has_neither_projection_nor_frame() -> None:
    for dcs, parts in ((True, {"body", "head", "proj", "etf"}), (False, {"body", "head"})):
        tensors = simulate("gfpl", dcs=dcs).state.groups[0].tensors
        assert {n.split(".")[0] for n in tensors} == parts


@pytest.mark.parametrize("width", [0, 9, 30])
def test_every_client_holds_the_same_frame_and_it_is_equiangular(width: int) -> None:
    sim = simulate("gfpl", projection=width)
    frames = sim.state.groups[0].tensors["etf.columns"]
    assert frames.shape == (5, width or D, 10) and (frames == frames[0]).all()
    want = 10 / 9 * torch.eye(10, dtype=torch.float64) - 1 / 9
    assert_close(frames[0].T @ frames[0], want, **TIGHT)
    assert sim.state.groups[0].tensors["proj.weight"].shape == (5, width or D, D)


def test_a_projection_too_narrow_for_the_frame_is_refused() -> None:
    with pytest.raises(UserError, match="10 classes needs at least 9 dimensions, but got 8"):
        simulate("gfpl", projection=8)
    with pytest.raises(UserError, match="10 classes needs at least 9 dimensions, but got 6"):
        simulate("gfpl", DIGITS.override(features=6))


def test_the_frame_never_moves() -> None:
    sim = simulate("gfpl", DIGITS, data(), weight_decay=0.1, **EVENTFUL)
    before = copied(rows_of("etf", sim.state))
    play(sim, 2)
    assert_same_numbers(rows_of("etf", sim.state), before)


def test_the_dual_loss_by_hand() -> None:
    sim = simulate("gfpl", DIGITS, data())
    m, x, y = first_client(sim)
    f, label = m.body(x).numpy(), y.numpy()
    logits = head_on(m, f)
    ce = cross_entropy(logits, label)
    h = f @ m["proj.weight"].numpy().T + m["proj.bias"].numpy()
    h /= np.linalg.norm(h, axis=1, keepdims=True)
    dots = (h * m["etf.columns"].numpy().T[label]).sum(1)
    batch = Batch(x, y, {})
    assert_close(GFPL(lam=3.0).loss(m, batch, {}).item(), float(ce + 3 * np.mean(0.5 * (dots - 1) ** 2)), **TIGHT)
    assert_close(GFPL(dcs=False).loss(m, batch, {}).item(), float(ce), **TIGHT)
    # Eq. 14 is the same on features given
    features = Batch(m.body(x), y, {})
    assert_close(GFPL(lam=3.0).retrain_loss(m, features, {}), GFPL(lam=3.0).loss(m, batch, {}), **TIGHT)
    # prediction: g; the frame; the sum of softmaxes at temperature 1/16
    ways = GFPL().predict(m, x, {})
    frame = h @ m["etf.columns"].numpy()
    p, q = (np.exp(s) / np.exp(s).sum(1, keepdims=True) for s in (logits, 16 * frame))
    for name, want in (("classifier", logits), ("etf", frame), ("sum", np.log(p + q))):
        assert_close(ways[name].numpy(), want, **TIGHT)
    assert [list(GFPL(predictor=w).predict(m, x, {}))[0] for w in ways] == list(ways) == ["classifier", "etf", "sum"]
    assert list(GFPL(predictor="etf", dcs=False).predict(m, x, {})) == ["classifier"]


@pytest.mark.parametrize(
    ("start", "every", "rounds"),
    [
        (10, 10, [10, 20, 30]),
        (1, 1, list(range(1, 36))),
        (11, 10, [20, 30]),
        (5, 10, [10, 20, 30]),
        (7, 3, [9, 12, 15, 18, 21, 24, 27, 30, 33]),
        (12, 20, [20]),
        (36, 12, []),
        (1, 20, [20]),
    ],
)
@pytest.mark.parametrize("order", ["fresh", "stale"])
def test_events_are_the_multiples_of_s_t_from_t1_on(start: int, every: int, rounds: list[int], order: str) -> None:
    alg = GFPL(start=start, every=every, order=order)
    actions = {t: alg.round(TASK._replace(t=t)) for t in range(1, 36)}
    assert [t for t in actions if len(actions[t]) > 1] == rounds
    assert alg.first_event() == (rounds[0] if rounds else 36)
    for t, found in actions.items():
        shape = ["train" if isinstance(a, Phase) else a for a in found]
        event = ["train", UP, DOWN, "train"] if order == "fresh" else ["train", DOWN, "train", UP]
        assert shape == (event if t in rounds else ["train"])
    assert all(len(GFPL(start=start, every=every, pfg=False).round(TASK._replace(t=t))) == 1 for t in actions)


@pytest.mark.parametrize("threshold", [0.1, 300.0])
def test_an_event_costs_exactly_what_the_paper_counts(threshold: float) -> None:
    sim = simulate("gfpl", DIGITS, data((44, 17, 9)), **(EVENTFUL | {"threshold": threshold, "components": 4}))
    seen = record_uploads(sim)
    quiet, event = play(sim, 2)
    assert quiet["up_bytes"] == quiet["down_bytes"] == 0 and "fusion_ratio" not in quiet
    (up,) = seen
    per_class = [[22, 22], [9, 8], [5, 4]]  # rows of each own class; n_ij = min(n, N_ij // 5), at least one
    n = [[min(4, max(1, rows // 5)) for rows in own] for own in per_class]
    assert up["mixtures"].present.sum((1, 2)).tolist() == [sum(own) for own in n]
    assert event["up_floats"] == sum(map(sum, n)) * (2 * D + 1)
    assert event["up_ints"] == sum(map(len, HELD))
    assert up["counts"].values[0].tolist() == [22, 22, 0, 0]
    lengths = sim.state.server["mixtures"].present.sum(1).tolist()
    assert lengths[3] == 0 and event["down_floats"] == 3 * sum(lengths) * (2 * D + 1) and event["down_ints"] == 0
    assert event["components_in"] == sum(map(sum, n)) and event["components_out"] == sum(lengths)
    assert 0 < event["fusion_ratio"] == sum(lengths) / sum(map(sum, n)) <= 1
    assert event["clusters_complete"] == event["components_out"]
    assert event["clusters_single"] <= event["clusters_ball"] <= event["components_in"]
    if threshold == 300.0:
        assert event["fusion_ratio"] < 1


def uploads(clients: int = 3, seed: int = 0) -> dict:
    weights = torch.rand(clients, C, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.1
    present = torch.ones(clients, C, 2, dtype=torch.bool)
    present[0, 1, 1] = present[1, 2, 0] = False
    present[:, 3] = False
    weights = torch.where(present, weights, 0)
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-12)
    means, deviations = (randn(clients, C, 2, D, seed=seed + i) for i in (1, 2))
    mixture = Mixtures(weights, means, deviations**2 + 0.5)
    counts = torch.arange(10, 10 + clients * C).view(clients, C) * present.any(2)
    return {"mixtures": Ragged(pack(mixture), present), "counts": Ragged(counts, counts > 0)}


def aggregated(up: dict, **config: Any) -> dict:
    alg = GFPL(**config)
    server = alg.init(TASK)
    return alg.aggregate(server, up, TASK)


def test_all_fused_is_the_moments_of_the_pooled_rows_and_weights_add_to_one() -> None:
    up = uploads()
    local, counts = unpack(up["mixtures"].values), up["counts"].values
    for weighing in ("rows", "pi"):
        got = unpack(aggregated(up, threshold=300.0, weighing=weighing)["mixtures"].values)
        for c in range(3):
            w = local.weights[:, c] * (counts[:, c, None] if weighing == "rows" else 1)
            w = (w / w.sum()).flatten()
            mu, v = (t[:, c].flatten(0, 1) for t in (local.means, local.variances))
            mean = w @ mu
            assert_close(got.weights[c], torch.ones(1, dtype=torch.float64), **TIGHT)
            assert_close(got.means[c, 0], mean, **TIGHT)
            assert_close(got.variances[c, 0], w @ (v + (mu - mean) ** 2), **TIGHT)


def pool(present: list[int], r: int = 50, **config: Any) -> tuple[Any, Ragged]:
    """Draws from mixtures with present[c] components of class c, component j of class c near 100 c + 10 j."""
    width = max(present)
    centre = 100.0 * torch.arange(C)[:, None] + 10 * torch.arange(width) - 30
    mixture = Mixtures(
        torch.full((C, width), 0.5).double(),
        centre[..., None].expand(C, width, D).double().clone(),
        torch.full((C, width, D), 0.01).double(),
    )
    here = torch.arange(width) < torch.tensor(present)[:, None]
    table = Ragged(pack(mixture), here)
    g = torch.Generator().manual_seed(0)
    eps = {
        "component": torch.rand(C, r, generator=g, dtype=torch.float64),
        "value": torch.randn(C, r, D, generator=g, dtype=torch.float64),
    }
    return GFPL(pseudo=r, **config).pseudo_features({"mixtures": table}, eps), table


def test_pseudo_features_are_as_many_for_each_class_and_come_from_its_own_components() -> None:
    found, _ = pool([1, 2, 0, 3])
    assert found.x.shape == (C * 50, D) and torch.bincount(found.y).tolist() == [50] * 4
    assert torch.bincount(found.y[found.mask], minlength=C).tolist() == [50, 50, 0, 50]
    assert found.x.isfinite().all()
    for c, components in ((0, 1), (1, 2), (3, 3)):
        which = ((found.x[found.y == c] - 100 * c + 30) / 10).round().unique()
        assert which.tolist() == list(range(components))


def test_clipping_cuts_pseudo_features_at_zero() -> None:
    free, _ = pool([1, 1, 1, 1])
    cut, _ = pool([1, 1, 1, 1], clip=True)
    assert free.x.min() < 0 and torch.equal(cut.x, free.x.clamp(min=0))


def test_retraining_passes_over_all_pseudo_features_drawn_anew_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulate("gfpl", DIGITS, data(), **(EVENTFUL | {"pseudo": 6, "retrain_epochs": 3}))
    seen, plan = [], engine.train.__globals__["plan"]

    def kept(pools: list, phase: Phase, *rest: Any) -> Any:
        found = plan(pools, phase, *rest)
        seen.append((pools, found)) if phase.pool else None
        return found

    monkeypatch.setitem(engine.train.__globals__, "plan", kept)
    play(sim, 2)
    ((pools, planned),) = seen
    assert len(pools) == 3 and planned.steps == [3 * -(-18 // 4)] * 3  # classes 0, 1, 2 of 6 draws each
    for p in pools:
        assert p.counts.tolist() == [18] * 3
        for rows in p.rows[:, :18]:
            assert torch.bincount(p.y[rows]).tolist() == [6, 6, 6]
    real = [p.x[p.rows[0, :18]] for p in pools]
    assert not torch.equal(real[0], real[1]) and not torch.equal(real[1], real[2])
    assert not torch.equal(pools[0].x[pools[0].rows[0, :18]], pools[0].x[pools[0].rows[1, :18]])  # a client's own draws


def moved_by_retraining(order: str, config: dict, rounds: int, model: str = "mlp", executor: str = "stack") -> set[str]:
    """Parts whose tensors differ between a round with its retraining and the same one cut off before it."""
    scenario = Scenario(model=model, features=D)
    states = []
    for cut in (False, True):
        sim = simulate("gfpl", scenario, data(), executor=executor, **(EVENTFUL | config | {"order": order}))
        play(sim, rounds - 1)
        if cut:
            alg = sim.setup.algorithm
            kept = tuple(a for a in alg.round(sim.setup.task_in(rounds)) if not (isinstance(a, Phase) and a.pool))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(type(alg), "round", lambda *_, kept=kept: kept)
                play(sim, 1)
        else:
            play(sim, 1)
        states.append(numbers(sim.state))
    a, b = states
    return {n.split("/")[1].split(".")[0] for n in a if n.startswith("client") and not torch.equal(a[n], b[n])}


@pytest.mark.parametrize("executor", ["stack", "loop"])
@pytest.mark.parametrize("model", ["mlp", "fedgen-cnn"])
@pytest.mark.parametrize(
    ("config", "parts"),
    [({}, {"head", "proj"}), ({"retrain": "projection"}, {"proj"}), ({"dcs": False}, {"head"})],
    ids=["both", "projection", "without DCS"],
)
def test_retraining_moves_the_two_classifiers_and_neither_body_nor_statistics(
    config: dict, parts: set, model: str, executor: str
) -> None:
    assert moved_by_retraining("fresh", config, 2, model, executor) == parts


def test_stale_order_retrains_on_the_event_before_so_not_at_the_first() -> None:
    assert moved_by_retraining("stale", {}, 2) == set()
    assert moved_by_retraining("stale", {}, 4) == {"head", "proj"}


def test_stale_order_sends_down_what_the_event_before_left() -> None:
    sim = simulate("gfpl", DIGITS, data(), **(EVENTFUL | {"order": "stale"}))
    rows = play(sim, 2)
    known = int(sim.state.server["mixtures"].present.sum())
    rows += play(sim, 2)
    assert [r["down_floats"] for r in rows] == [0, 0, 0, 3 * known * (2 * D + 1)]
    assert rows[1]["up_floats"] > 0 and rows[3]["up_floats"] > 0


def test_retraining_is_plain_sgd_on_the_loss_over_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EVENTFUL | {"retrain_lr": 0.05, "retrain_epochs": 2, "lam": 1.5}
    sim = simulate("gfpl", DIGITS, data(), momentum=0.5, **config)
    play(sim, 1)
    calls: list[tuple[dict, dict]] = []
    train = engine.train

    def kept(net: nn.Module, tensors: dict, down: dict, phase: Phase, *rest: Any) -> Any:
        out = train(net, tensors, down, phase, *rest)
        calls.append((copied(tensors), out[0]))
        return out

    plans, plan = [], train.__globals__["plan"]
    monkeypatch.setattr(engine, "train", kept)
    monkeypatch.setitem(train.__globals__, "plan", lambda *a: plans.append((a[0], plan(*a))) or plans[-1][1])
    play(sim, 1)
    (before, after), (pools, planned) = calls[-1], plans[-1]
    x, y = torch.cat([p.x for p in pools]), torch.cat([p.y for p in pools])
    for k in range(3):
        head, proj = nn.Linear(D, C).double(), nn.Linear(D, D).double()
        for part, name in ((head, "head"), (proj, "proj")):
            part.load_state_dict({n: before[f"{name}.{n}"][k] for n in ("weight", "bias")})
        optimizer = torch.optim.SGD([*head.parameters(), *proj.parameters()], lr=0.05, momentum=0.5)
        for rows in planned.rows[k, : planned.steps[k]]:
            h = proj(x[rows])
            dots = (h / h.norm(dim=1, keepdim=True) * before["etf.columns"][k].T[y[rows]]).sum(1)
            loss = nn.functional.cross_entropy(head(x[rows]), y[rows]) + 1.5 * (0.5 * (dots - 1) ** 2).mean()
            step(optimizer, loss)
        for part, name in ((head, "head"), (proj, "proj")):
            for n, t in part.state_dict().items():
                assert_close(after[f"{name}.{n}"][k], t, **TIGHT)
