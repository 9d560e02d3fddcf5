"""Generators: the net is PyTorch's, labels follow their law, every loss by loops, the optimiser is torch.optim's."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.generators import C, D, H, Z, as_net, cross_entropies, fresh, heads, inputs, labels, module
from support.numbers import TIGHT, assert_close_numbers, assert_same_numbers, copied, randn
from torch import Tensor, nn
from torch.func import vmap
from torch.testing import assert_close

from fedtune.core.trees import take
from fedtune.nn import generators
from fedtune.nn.generator_losses import Term, diversity, fidelity, remoteness, total
from fedtune.nn.generators import (
    chunks,
    descend,
    draw_labels,
    entropy_cap,
    generate,
    head_losses,
    intra_inter_distance,
    label_counts,
    label_share,
    new_net,
    start_memory,
)
from fedtune.nn.prototypes import row_distance


@pytest.mark.parametrize("training", [True, False])
def test_a_generator_is_linear_batch_norm_relu_linear(training: bool) -> None:
    net, noise, y = fresh(), randn(9, Z), labels(9)
    want = module(net).train(training)
    before = copied(net)
    for _ in range(2):
        assert_close(generate(net, noise, y, training), want(inputs(noise, y)).detach(), **TIGHT)
    assert_close_numbers(net, as_net(want))  # running statistics
    moved = {n for n in net if not torch.equal(net[n], before[n])}
    assert moved == ({"norm.running_mean", "norm.running_var"} if training else set())


def test_it_starts_as_pytorch_starts_its_layers_and_leaves_the_global_stream_alone() -> None:
    chance = torch.get_rng_state()
    net = new_net(Z, C, H, D, 2, 11)
    assert torch.equal(torch.get_rng_state(), chance)
    with torch.random.fork_rng():
        torch.manual_seed(11)
        first, last = nn.Linear(Z + C, H), nn.Linear(H, 2 * D)
    want = {"in.weight": first.weight, "in.bias": first.bias, "out.weight": last.weight, "out.bias": last.bias}
    norm = {n: torch.zeros(H) for n in ("bias", "running_mean")} | {n: torch.ones(H) for n in ("weight", "running_var")}
    assert_same_numbers(net, want | {f"norm.{n}": t for n, t in norm.items()})


@pytest.mark.parametrize(("noise", "classes", "hidden", "size"), [(32, 10, 256, 19_744), (32, 26, 256, 23_840)])
def test_the_published_sizes(noise: int, classes: int, hidden: int, size: int) -> None:
    net = new_net(noise, classes, hidden, 32, 1, 0)
    assert sum(t.numel() for n, t in net.items() if "running" not in n) == size
    assert start_memory(net)["first"].shape == (size - hidden,)  # the bias before BatchNorm is not trained
    assert start_memory(net, 3)["second"].shape == (3, size - hidden) and start_memory(net, 3)["step"].shape == (3,)


def test_the_bias_before_batch_norm_never_matters_in_training() -> None:
    net, noise, y = fresh(), randn(9, Z), labels(9)
    other = net | {"in.bias": net["in.bias"] + 3 * randn(H, seed=5)}
    a, b = (generate(copied(n), noise, y, True) for n in (net, other))
    assert_close(a, b, **TIGHT)
    memory = {n: t.double() for n, t in start_memory(net).items()}

    def loss(g: dict[str, Tensor], s: int) -> tuple[Tensor, None]:
        return generate(g, noise, y, True).pow(2).mean(), None

    trained = [descend(n, memory, loss, 4, 0.01) for n in (net, other)]
    for name in ("in.weight", "norm.weight", "norm.bias", "out.weight", "out.bias"):
        assert_close(trained[0][0][name], trained[1][0][name], rtol=0, atol=1e-10)  # Adam divides by small gradients
    assert torch.equal(trained[1][0]["in.bias"], other["in.bias"])


def test_a_label_is_the_inverse_of_the_distribution_function() -> None:
    for seed in range(20):
        law = randn(7, seed=seed).abs() * (randn(7, seed=100 + seed) > 0)
        law[seed % 7] += 1
        u = torch.rand(200, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        mass = np.cumsum(law.numpy())
        want = np.searchsorted(mass, u.numpy() * mass[-1], side="right")
        assert draw_labels(law, u).tolist() == want.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_label_without_mass_is_ever_drawn_not_even_at_the_edges(dtype: torch.dtype) -> None:
    one = torch.ones((), dtype=dtype)
    below = torch.nextafter(one, 0 * one)
    assert below < 1
    for seed in range(200):
        held = randn(9, seed=seed) > 0
        held[seed % 9] = True
        law = (randn(9, seed=500 + seed).abs().to(dtype) * 10.0 ** (seed % 7 - 3)) * held
        mass = law.cumsum(0)
        edges = (mass / mass[-1]).clamp(max=float(below))  # where one class ends
        ends = torch.stack([0 * one, below, one])  # 1 is what a number just below it may be rounded to
        u = torch.cat([ends, edges, torch.nextafter(edges, one), torch.nextafter(edges, 0 * one)])
        got, own = draw_labels(law, u), held.nonzero()[:, 0].tolist()
        assert held[got].all() and got[:3].tolist() == [own[0], own[-1], own[-1]]


def test_counts_are_of_real_rows_and_shares_sum_to_one_where_somebody_has_the_class() -> None:
    y = torch.tensor([0, 2, 2, 1, 3, 0])
    mask = torch.tensor([True, True, True, False, True, False])
    assert label_counts(y, mask, 5).tolist() == [1, 0, 2, 1, 0]
    share = label_share(torch.tensor([[3, 0, 1, 0], [1, 0, 0, 5], [4, 0, 1, 0]]))
    assert_close(share, torch.tensor([[3 / 8, 0, 0.5, 0], [1 / 8, 0, 0, 1], [0.5, 0, 0.5, 0]]).to(share), **TIGHT)
    assert share.sum(0).tolist() == [1, 0, 1, 1]


def test_all_heads_at_once_are_cross_entropy_of_each() -> None:
    shared, h, y = heads(3), randn(8, D, seed=3), labels(8)
    got = head_losses(shared, h, y)
    for k in range(3):
        logits = h @ shared["head.weight"][k].T + shared["head.bias"][k]
        assert_close(got[k], F.cross_entropy(logits, y, reduction="none"), **TIGHT)
    assert_close(got.numpy(), cross_entropies(shared, h, y), **TIGHT)


def test_diversity_is_one_when_no_pair_is_kept() -> None:
    h, noise = randn(4, D, seed=1), randn(1, 4, Z, seed=2)
    for pairs, y in (("same", torch.arange(4)), ("other", torch.zeros(4, dtype=torch.long))):
        found, slope = diversity(1.0, noise, y[None], pairs, D)(h, 0)
        assert found.item() == 1.0
        assert (slope == 0).all()


def terms(w: float, shared: dict, share: Tensor, protos: Tensor, seen: Tensor) -> dict[str, tuple[Term, Any]]:
    """Every term in every form, for three steps, times w, and the same, without w, as autograd is given it."""
    noise, y = randn(3, 8, Z, seed=2), torch.stack([labels(8, s) for s in range(3)])

    def agree(h: Tensor, s: int, weighing: str) -> Tensor:
        weight = share[:, y[s]]
        weight = weight if weighing == "labels" else weight.mean(1, keepdim=True)
        return (weight * head_losses(shared, h, y[s])).mean(1).sum()

    def alike(h: Tensor, s: int, pairs: str) -> Tensor:
        apart = (h[:, None] - h).abs().mean(2) * (noise[s, :, None] - noise[s]).square().mean(2)
        same, diagonal = y[s, :, None] == y[s], torch.eye(8, dtype=torch.bool)
        kept = {"same": same & ~diagonal, "other": ~same, "all": torch.ones_like(same)}[pairs]
        return (-(apart * kept).sum() / (kept.sum() if pairs == "same" else 64)).exp()

    def far(h: Tensor, s: int, how: str, cap: float) -> Tensor:
        return (row_distance(h, protos[y[s]], how) * seen[y[s]]).mean().clamp(max=cap)

    found: dict[str, tuple[Term, Any]] = {}
    for weighing in ("labels", "mean"):
        found[f"fidelity {weighing}"] = fidelity(w, shared, share, y, weighing), partial(agree, weighing=weighing)
    for pairs in ("same", "other", "all"):
        found[f"diversity {pairs}"] = diversity(w, noise, y, pairs, D), partial(alike, pairs=pairs)
    for how in ("l2", "mse"):
        for cap in (math.inf, 0.1):
            found[f"{how} {cap}"] = remoteness(w, protos, seen, y, how, cap), partial(far, how=how, cap=cap)
    return found


@pytest.mark.parametrize("w", [1.0, -0.7])
def test_slopes_are_autograds(w: float) -> None:
    share, protos = torch.rand(3, C).double(), randn(C, D, seed=4)
    found = terms(w, heads(3), share, protos, torch.tensor([True, False, True, True]))
    assert len(found) == 9
    together = total(*[term for term, _ in found.values()])
    for s in range(3):
        h, values, slopes = randn(8, D, seed=20 + s), [], []
        for name, (term, plain) in found.items():
            leaf = h.clone().requires_grad_()
            want = w * plain(leaf, s)
            values.append(want.detach()), slopes.append(torch.autograd.grad(want, leaf)[0])
            got, slope = term(h, s)
            assert_close(got, values[-1], **TIGHT), assert_close(slope, slopes[-1], **TIGHT)
            assert (slope == 0).all() if "0.1" in name else slope.abs().max() > 1e-3, name
        got, slope = together(h, s)
        assert_close(got, sum(values), **TIGHT), assert_close(slope, sum(slopes), **TIGHT)


def test_distances_within_and_between_classes_by_loops() -> None:
    h, y = randn(12, D), torch.arange(12) % 3
    within, between = [], []
    for p in range(12):
        for q in range(12):
            apart = np.linalg.norm(h[p].numpy() - h[q].numpy())
            if p != q:
                (within if y[p] == y[q] else between).append(apart)
    got = intra_inter_distance(h, y)
    assert_close(torch.stack(got).numpy(), np.array([np.mean(within), np.mean(between)]), **TIGHT)


def test_the_entropy_cap_is_in_multiples_of_ln_c() -> None:
    assert entropy_cap(2.0, 10) == 2 * math.log(10) and entropy_cap(0.0, 10) == math.inf


NOISE, LABELS = randn(9, 8, Z, seed=7), torch.stack([labels(8, s) for s in range(9)])
AIM = randn(8, D, seed=8)


def objective(offset: int = 0) -> Any:
    return lambda net, s: (((generate(net, NOISE[s + offset], LABELS[s + offset], True) - AIM) ** 2).mean(), None)


@pytest.mark.parametrize("weight_decay", [0.0, 0.03])
@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_descent_is_that_of_torch_optim_over_two_calls(name: str, weight_decay: float) -> None:
    net = fresh()
    want, memory = module(net), start_memory(net)
    memory = {n: t.double() for n, t in memory.items()}
    kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[name]
    optimizer = kind([p for p in want.parameters() if p.requires_grad], lr=0.02, weight_decay=weight_decay)
    for s in range(9):
        optimizer.param_groups[0]["lr"] = 0.02 if s < 4 else 0.01
        optimizer.zero_grad()
        ((want(inputs(NOISE[s], LABELS[s])) - AIM) ** 2).mean().backward()
        optimizer.step()
    kept, before = copied(net), copied(memory)
    one, first = descend(net, memory, objective(), 4, 0.02, weight_decay, name)
    two, last = descend(one, first, objective(4), 5, 0.01, weight_decay, name)
    assert_close_numbers(two, as_net(want))
    assert last["step"] == (9 if name == "adam" else 0)
    assert_same_numbers(net, kept), assert_same_numbers(memory, before)  # nothing given is changed
    assert not any(t.requires_grad for t in two.values())


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_stacked_nets_that_stepped_unequally_often_are_each_alone(name: str) -> None:
    alone = []
    for k, steps in enumerate((0, 2, 5)):  # different pasts, different memories
        net = fresh(k)
        start = {n: t.double() for n, t in start_memory(net).items()}
        alone.append(descend(net, start, objective(), steps, 0.01, 0.02, name))
    nets, memories = ({n: torch.stack([a[i][n] for a in alone]) for n in alone[0][i]} for i in range(2))
    assert memories["step"].tolist() == ([0, 2, 5] if name == "adam" else [0, 0, 0])
    aims = randn(3, 8, D, seed=4)

    def together(stack: dict[str, Tensor], s: int) -> tuple[Tensor, None]:
        losses = vmap(lambda g, aim: ((generate(g, NOISE[s], LABELS[s], True) - aim) ** 2).mean())(stack, aims)
        return losses.sum(), None

    got = descend(nets, memories, together, 4, 0.01, 0.02, name)
    for k in range(3):

        def one(g: dict[str, Tensor], s: int, aim: Tensor = aims[k]) -> tuple[Tensor, None]:
            return ((generate(g, NOISE[s], LABELS[s], True) - aim) ** 2).mean(), None

        want = descend(*alone[k], one, 4, 0.01, 0.02, name)
        for mine, other in zip(got, want, strict=True):
            assert_close_numbers(take(mine, k), other)


def test_chunks_cover_every_net_once_and_hold_no_more_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    for rows, nets, numbers in ((100, 7, 30), (100, 7, 1000), (100, 7, 1), (100, 6, 50)):
        monkeypatch.setattr(generators, "_ROWS", rows)
        found = chunks(nets, numbers)
        assert [i for s in found for i in range(nets)[s]] == list(range(nets))
        assert all((s.stop - s.start) * numbers <= rows or s.stop - s.start == 1 for s in found)


def test_shares_are_as_exact_as_the_run() -> None:
    share = label_share(torch.tensor([[1], [2]])).double()
    assert_close(share[:, 0], torch.tensor([1 / 3, 2 / 3], dtype=torch.float64), **TIGHT)
