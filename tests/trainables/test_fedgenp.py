"""FedGenP: the conflict of a generator, its bound, its training and its end, by hand."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.generators import (
    as_net,
    at_work,
    cross_entropies,
    fresh,
    heads,
    inputs,
    labels,
    module,
    slopes,
    two_clients,
    variational,
)
from support.helpers import DIGITS, EARLY, next_task, play, record_uploads, simulate
from support.numbers import TIGHT, assert_close_numbers, assert_same_numbers, copied, flat, randn
from support.rows import first
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.testing import assert_close

from fedtune.core import randomness
from fedtune.core.trees import size, take
from fedtune.engine import engine
from fedtune.experiment.algorithm import Model, Task
from fedtune.nn import generators
from fedtune.trainables.fedavg import FedAvg
from fedtune.trainables.fedgenp import FedGenP

SMALL = EARLY["fedgenp"]
Z, C, D = 5, 4, 6  # of the nets made here; runs have D = 12
HEADS, NOISE, XI, Y = heads(3), randn(8, Z, seed=3), randn(8, D, seed=4), labels(8)
COUNTS = torch.tensor([[3, 0, 4, 1], [1, 0, 4, 4], [4, 8, 0, 3]])  # totals 8
ONE, TWO = {"beta": 0.0, "lam_kl": 0.0}, {"beta": 1.0, "lam_kl": 0.0}


def conflict(alg: FedGenP, k: int, net: dict[str, Tensor]) -> Tensor:
    return alg.conflict(copied(net), torch.tensor(k), NOISE, XI, Y, HEADS, COUNTS.double() / 8)


def gradients(alg: FedGenP, k: int, net: dict[str, Tensor]) -> dict[str, Tensor]:
    leaves = {n: t.clone().requires_grad_("running" not in n) for n, t in net.items()}
    loss = alg.conflict(leaves, torch.tensor(k), NOISE, XI, Y, HEADS, COUNTS.double() / 8)
    moving = {n: t for n, t in leaves.items() if t.requires_grad and n != "in.bias"}
    grads = torch.autograd.grad(loss, list(moving.values()), materialize_grads=True)
    return dict(zip(moving, grads, strict=True))


def apart(a: dict[str, Tensor], b: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: a[n] - b[n] for n in a}


@pytest.mark.parametrize("rectify", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_features_are_the_mean_plus_deviation_times_noise(training: bool, rectify: bool) -> None:
    net = fresh(heads=2)
    h, mu, logvar = FedGenP(rectify=rectify).imagine(copied(net), NOISE, XI, Y, training)
    want, mean, log, _ = variational(net, NOISE, XI, Y, training)
    assert_close(h, want.detach().clamp(min=0) if rectify else want.detach(), **TIGHT)
    assert_close(mu, mean.detach(), **TIGHT), assert_close(logvar, log.detach(), **TIGHT)
    assert (want < 0).any()


def test_the_logarithm_of_the_variance_stays_within_bounds() -> None:
    net = fresh(heads=2)
    net["out.weight"] = net["out.weight"] * 30
    _, _, logvar = FedGenP().imagine(copied(net), NOISE, XI, Y)
    free = module(net).eval()(inputs(NOISE, Y)).detach()[:, D:]
    assert free.min() < -8 and free.max() > 4
    assert_close(logvar, torch.as_tensor(np.minimum(np.maximum(free.numpy(), -8), 4)), **TIGHT)


@pytest.mark.parametrize("k", [0, 2])
@pytest.mark.parametrize("cap", [0.0, 1.0])
@pytest.mark.parametrize("beta", [1.0, 2.5, -1.0])
@pytest.mark.parametrize("weighing", ["equal", "labels"])
def test_the_conflict_by_loops(weighing: str, beta: float, cap: float, k: int) -> None:
    net = fresh(heads=2)
    h, mu, logvar, _ = variational(net, NOISE, XI, Y)
    ce, share = cross_entropies(HEADS, h, Y), COUNTS.numpy() / 8
    bound = cap * math.log(C) if cap else math.inf
    assert cap == 0 or (ce[k] > bound).any() and (ce[k] < bound).any()
    total = 0.0
    for b, c in enumerate(Y.tolist()):
        own = min(ce[k, b], bound)
        if weighing == "equal":
            total += np.mean([ce[i, b] for i in range(3) if i != k]) - beta * own
        else:  # the code: others by share of the label, one's own times the number of clients
            total += sum(share[i, c] * ce[i, b] for i in range(3) if i != k) - beta * 3 * share[k, c] * own
        m, v = mu[b].detach().numpy(), logvar[b].detach().numpy()
        total += 0.01 * sum(m[d] ** 2 + np.exp(v[d]) - v[d] - 1 for d in range(D)) / 2
    got = conflict(FedGenP(weighing=weighing, beta=beta, cap=cap, lam_kl=0.01), k, net)
    assert_close(got.item(), float(total / 8), **TIGHT)


def test_with_one_client_only_the_fooling_term_remains() -> None:
    net, one, alone = fresh(heads=2), heads(1), torch.ones(1, C).double()
    got = FedGenP(lam_kl=0.0, cap=0.0).conflict(copied(net), torch.tensor(0), NOISE, XI, Y, one, alone)
    assert_close(got.item(), float(-cross_entropies(one, variational(net, NOISE, XI, Y)[0], Y).mean()), **TIGHT)


def test_past_the_bound_a_row_pushes_no_more() -> None:
    net, k = fresh(heads=2), 1
    h, *_ = variational(net, NOISE, XI, Y)
    ce, bound = cross_entropies(HEADS, h, Y)[k], math.log(C)
    beyond = ce > bound
    assert beyond.any() and not beyond.all()
    got = apart(gradients(FedGenP(**TWO, cap=1.0), k, net), gradients(FedGenP(**ONE), k, net))
    h, _, _, whole = variational(net, NOISE, XI, Y)
    logits = h @ HEADS["head.weight"][k].T + HEADS["head.bias"][k]
    below = F.cross_entropy(logits, Y, reduction="none") * torch.as_tensor(~beyond)
    (-below.sum() / 8).backward()
    assert_close(got, slopes(whole), **TIGHT)


class Reversal(torch.autograd.Function):
    """The same forwards, minus beta backwards."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, beta: float) -> Tensor:
        ctx.beta = beta
        return h.view_as(h)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return -ctx.beta * grad, None


@pytest.mark.parametrize("beta", [1.0, 0.3])
@pytest.mark.parametrize("k", [0, 2])
def test_the_minus_is_a_gradient_reversal_before_the_clients_head(k: int, beta: float) -> None:
    net = fresh(heads=2)
    got = gradients(FedGenP(beta=beta, cap=0.0, lam_kl=0.0), k, net)
    h, _, _, whole = variational(net, NOISE, XI, Y)
    loss = torch.zeros((), dtype=torch.float64)
    for i in range(3):
        z = Reversal.apply(h, beta) if i == k else h
        ce = F.cross_entropy(z @ HEADS["head.weight"][i].T + HEADS["head.bias"][i], Y)
        loss = loss + (ce if i == k else ce / 2)
    loss.backward()
    assert_close(got, slopes(whole), rtol=0, atol=1e-10)
    assert all(t.abs().max() > 1e-4 for t in got.values())


@pytest.mark.parametrize("t", first([100, 0, 1], 2))
def test_the_weights_decay_by_the_round_and_round_zero_has_none(t: int) -> None:
    values = {}
    for a, b in ((3.0, 2.0), (3.0, 0.0), (0.0, 2.0)):
        alg, m, batch, down, _ = at_work("fedgenp", a=a, b=b, a_decay=0.98, b_decay=0.93)
        flatly, *_ = at_work("fedgenp", a=a, b=b)
        plain = FedAvg().loss(m, batch, {})
        values[a, b] = alg.loss_at(t, m, batch, down if t else {}) - plain
        once = flatly.loss_at(1, m, batch, down) - plain
        if t == 0:
            assert values[a, b] == 0
        elif not b or not a:
            assert_close(values[a, b], once * (0.98 if a else 0.93) ** t, **TIGHT)
    assert_close(values[3, 2], values[3, 0] + values[0, 2], **TIGHT)  # the same draws and generators in all three
    assert t == 0 or min(abs(v) for v in values.values()) > 1e-5


def test_no_gradient_reaches_a_generator_and_its_target_moves_nothing() -> None:
    alg, m, batch, down, _ = at_work("fedgenp", a=3.0, b=2.0)
    assert not any(t.requires_grad for t in flat(down).values())
    leaves = {n: t.clone().requires_grad_() for n, t in m.tensors.items()}
    mine = Model(m.net, leaves)
    got = torch.autograd.grad(alg.loss_at(1, mine, batch, down), list(leaves.values()))
    # with the generated rows and the target as mere numbers, the gradient is the same
    y = torch.as_tensor((batch.eps["label"].numpy() * C).astype(int))
    net = {n: t.values for n, t in down["generator"].items()}
    h, _, _ = alg.imagine(net, batch.eps["noise"], batch.eps["xi"], y)
    paired, _, _ = alg.imagine(net, batch.eps["latent"], batch.eps["latent_xi"], batch.y)
    target = m.head(paired).softmax(1)
    logits = mine.head(mine.body(batch.x))
    loss = F.cross_entropy(logits, batch.y) + 3 * F.cross_entropy(mine.head(h), y)
    loss = loss + 2 * F.kl_div(logits.log_softmax(1), target, reduction="batchmean")
    for a, b in zip(got, torch.autograd.grad(loss, list(leaves.values())), strict=True):
        assert_close(a, b, **TIGHT)


@pytest.mark.parametrize(
    "config", [{}, {"weighing": "labels", "rectify": True, "gen_optimizer": "sgd", "gen_lr": 0.01}], ids=["text", "not"]
)
def test_two_rounds_of_all_generators_training_by_hand(config: dict) -> None:
    work = {"gen_steps": 10, "gen_hidden": 16, "gen_batch": 8, "cap": 1.0, "lam_kl": 0.1, "gen_weight_decay": 0.01}
    sim = simulate("fedgenp", DIGITS, two_clients(), gen_lr_decay=0.9, **work, **config)
    alg, seen = sim.setup.algorithm, record_uploads(sim)
    wholes = [module(take(sim.state.server["nets"], k)) for k in range(2)]
    assert_same_numbers(as_net(wholes[0]), as_net(wholes[1]))  # one start for all
    kind = torch.optim.SGD if alg.gen_optimizer == "sgd" else torch.optim.Adam
    optimizers = [kind([p for p in w.parameters() if p.requires_grad], lr=1, weight_decay=0.01) for w in wholes]
    share = torch.tensor([[0.25, 0.25, 1, 1], [0.75, 0.75, 0, 0]], dtype=torch.float64)
    for t in range(2):
        play(sim, 1)
        up, stream, other = seen[t]["shared"], *(randomness.stream(0, n, t + 1) for n in ("generator", "variation"))
        noise = torch.randn(10, 2, 8, 32, generator=stream, dtype=torch.float64)
        y = (torch.rand(10, 2, 8, generator=stream, dtype=torch.float64) * 4).long()
        xi = torch.randn(10, 2, 8, 12, generator=other, dtype=torch.float64)
        for k in range(2):
            optimizers[k].param_groups[0]["lr"] = alg.gen_lr * 0.9**t
            for s in range(10):
                mu, logvar = wholes[k](inputs(noise[s, k], y[s, k])).chunk(2, 1)
                h = mu + (logvar.clamp(-8, 4) / 2).exp() * xi[s, k]
                h = h.relu() if alg.rectify else h
                ce = [
                    F.cross_entropy(h @ w.T + b, y[s, k], reduction="none")
                    for w, b in zip(up["head.weight"], up["head.bias"], strict=True)
                ]
                own = ce[k].clamp(max=math.log(4))
                pair = (ce[1 - k], own)
                if alg.weighing == "labels":
                    pair = (share[1 - k][y[s, k]] * ce[1 - k], 2 * share[k][y[s, k]] * own)
                zero = torch.zeros_like(mu)
                prior = kl_divergence(Normal(mu, (logvar.clamp(-8, 4) / 2).exp()), Normal(zero, zero + 1)).sum(1)
                optimizers[k].zero_grad()
                (pair[0] - pair[1] + 0.1 * prior).mean().backward()
                optimizers[k].step()
            assert_close_numbers(take(sim.state.server["nets"], k), as_net(wholes[k]))


def test_who_does_not_take_part_keeps_its_generator_and_its_memory() -> None:
    sim = simulate("fedgenp", DIGITS.override(participation=0.4), **SMALL)
    played = np.zeros(5)
    for t in range(1, 6):
        before = {n: copied(sim.state.server[n]) for n in ("nets", "memory")}
        play(sim, 1)
        here = engine.participants(sim.setup, t).tolist()
        played[here] += 10
        for k in range(5):
            for part in ("nets", "memory"):
                old, new = take(before[part], k), take(sim.state.server[part], k)
                same = {n for n in old if torch.equal(old[n], new[n])}
                assert same == (set(old) if k not in here else {"in.bias"} & set(old))
        assert sim.state.server["memory"]["step"].tolist() == played.tolist()
    assert len(set(played)) > 1  # unequal pasts


@pytest.mark.parametrize("rows", [1, 2 * 5 * 8 * 10])
def test_few_at_a_time_the_generators_are_the_same(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sims = [simulate("fedgenp", DIGITS, gen_batch=8, **SMALL) for _ in range(2)]
    want = play(sims[0], 3)
    monkeypatch.setattr(generators, "_ROWS", rows)
    assert len(generators.chunks(5, 5 * 8 * 10)) == (5 if rows == 1 else 3)
    got = play(sims[1], 3)
    assert [r["test_acc"] for r in got] == [r["test_acc"] for r in want]
    assert_close_numbers(flat(sims[1].state.server), flat(sims[0].state.server))


def test_who_comes_for_the_first_time_has_no_generator_and_trains_as_in_fedavg() -> None:
    sim = simulate("fedgenp", DIGITS.override(participation=0.4), a=3.0, b=2.0, **SMALL)
    net, been = (32 + 10) * 16 + 16 + 4 * 16 + 16 * 24 + 24, set()
    newcomers = 0
    for t in range(1, 6):
        chosen = engine.participants(sim.setup, t).tolist()
        assert set(sim.state.server["trained"].nonzero()[:, 0].tolist()) == been
        down = sim.setup.algorithm.broadcast(sim.state.server, torch.tensor(chosen), next_task(sim))
        if t > 1:
            assert down["generator"]["out.bias"].present.tolist() == [k in been for k in chosen]
            assert size(down["generator"]).floats == net * len(been & set(chosen))
            newcomers += len(set(chosen) - been)
        been |= set(chosen)
        play(sim, 1)
    assert newcomers
    alg, m, batch, down, _ = at_work("fedgenp", a=3.0, b=2.0)
    without = down | {"generator": {n: t._replace(present=torch.tensor(False)) for n, t in down["generator"].items()}}
    assert_close(alg.loss_at(1, m, batch, without), F.cross_entropy(m.head(m.body(batch.x)), batch.y), **TIGHT)
    assert alg.loss_at(1, m, batch, down) != alg.loss_at(1, m, batch, without)


def stop(patience: int, accuracy: Any, rounds: int = 100) -> int:
    """The first round after which generators have stopped; 0 if never."""
    alg = FedGenP(patience=patience, gen_hidden=16)
    task = Task(classes=C, features=D, clients=2, batch=4, seed=0)
    server = alg.init(task)
    for r in range(1, rounds + 1):
        server = alg.observe(server, accuracy(r), task._replace(t=r))
        if server["stopped"]:
            again = alg.observe(server, 1.0, task._replace(t=r + 1))
            assert again["stopped"], "it went on"
            return r
    return 0


@pytest.mark.parametrize("patience", [5, 10, 19, 30])
def test_without_a_rise_they_stop_after_patience_rounds_but_not_before_round_20(patience: int) -> None:
    assert stop(patience, lambda r: 0.5) == max(20, patience + 1)
    assert stop(patience, lambda r: 0.01 * min(r, 31)) == 31 + patience  # the last rise was in round 31
    assert stop(patience, lambda r: 0.5 if r == 31 else 0.3 + r / 1000 * (r < 31)) == 31 + patience  # a peak
    assert stop(patience, lambda r: 0.01 * r) == 0


@pytest.mark.parametrize("patience", [5, 10])
def test_a_rise_is_a_thousandth_within_patience_rounds(patience: int) -> None:
    assert stop(patience, lambda r: 0.3 + r * 0.00101 / patience) == 0
    assert stop(patience, lambda r: 0.3 + r * 0.00099 / patience) == max(20, patience + 1)


def test_without_patience_they_never_stop() -> None:
    assert stop(0, lambda r: 0.5, 200) == 0


def test_after_the_stop_generators_stay_bit_for_bit_and_clients_train_on() -> None:
    sim = simulate("fedgenp", DIGITS, two_clients(), lr=1e-5, momentum=0.0, a=0.1, patience=5, **SMALL)
    for r in range(1, 24):
        before = {n: copied(sim.state.server[n]) for n in ("nets", "memory", "shared")}
        row = play(sim, 1)[0]
        assert row["generators_stopped"] == (r > 20)  # known at the end of round 20, and reported by the next
        assert bool(sim.state.server["stopped"]) == (r >= 20)
        for name, of in (("nets", "out.weight"), ("memory", "step")):
            assert torch.equal(sim.state.server[name][of], before[name][of]) == (r > 20)
        if r > 20:
            assert_same_numbers(sim.state.server["nets"], before["nets"])
            assert_same_numbers(sim.state.server["memory"], before["memory"])
        assert not torch.equal(sim.state.server["shared"]["head.weight"], before["shared"]["head.weight"])
        assert row["down_floats"] > row["up_floats"] or r == 1  # they are still sent
