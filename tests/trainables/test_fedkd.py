"""FedKD: what is sent and when; the losses, the clipping and a whole round by hand."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.by_hand import mean_accuracy
from support.distillation import MIXED, WHOLE, cut, divergence, grads_of, nets_of, part_of, stepped
from support.helpers import DIGITS, next_task, own_rows, play, random_federation, simulate
from support.numbers import TIGHT, assert_close_numbers, assert_same_numbers, flat, randn
from support.rows import first
from torch import Tensor
from torch.func import vmap
from torch.testing import assert_close

from fedtune.core.errors import Diverged
from fedtune.core.trees import size, to_all
from fedtune.engine import evaluation
from fedtune.engine.simulation import Simulation
from fedtune.experiment.algorithm import Batch, Model
from fedtune.experiment.scenario import Scenario
from fedtune.nn import architectures
from fedtune.trainables.fedkd import FedKD, compress, pack, rank_of, unpack

ALL = {"energy_start": 1.0, "energy_end": 1.0}


def e(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def with_spectrum(squares: list[float], rows: int, columns: int, seed: int = 0) -> Tensor:
    """A matrix whose squared singular values are these."""
    k = len(squares)
    u, v = (torch.linalg.qr(randn(n, k, seed=seed + i))[0] for i, n in enumerate((rows, columns)))
    return u * torch.tensor(squares, dtype=torch.float64).sqrt() @ v.T


SPECTRUM = [50.0, 30.0, 15.0, 5.0]  # shares 0.5, 0.8, 0.95, 1


@pytest.mark.parametrize(
    ("energy", "want"),
    [(0.01, 1), (0.4999, 1), (0.5001, 2), (0.7999, 2), (0.8001, 3), (0.9499, 3), (0.9501, 4), (0.9999, 4), (1.0, 4)],
)
def test_the_rank_is_the_least_that_holds_the_energy(energy: float, want: int) -> None:
    s = torch.tensor(SPECTRUM, dtype=torch.float64).sqrt()
    for scale in (1.0, 1e-200, 1e200):  # squares neither vanish nor overflow
        assert rank_of(scale * s, e(energy)) == want


def test_the_rank_is_at_least_one_and_all_the_energy_is_all_the_rank() -> None:
    for s in ([0.0, 0.0, 0.0], [2.0, 0.0, 0.0], [7.0, 1e-9, 1e-12]):
        t = torch.tensor(s, dtype=torch.float64)
        assert rank_of(t, e(0.5)) == 1 and rank_of(t, e(1.0)) == 3
    # 9 of 10 values hold 0.92 of the energy: all ten are needed, where PFLlib's rule finds none
    assert rank_of(torch.tensor([1.0] * 9 + [0.9]), e(0.95)) == 10


@pytest.mark.parametrize(
    ("shape", "energy", "rank"),
    [((20, 9), 0.75, 2), ((9, 20), 0.75, 2), ((20, 9), 0.9, 3), ((4, 5, 2, 3), 0.4, 1), ((4, 5, 2, 3), 0.75, 2)],
)
def test_a_truncated_matrix_is_rebuilt_from_its_largest_triplets(shape: tuple, energy: float, rank: int) -> None:
    rows, columns = shape[0], int(np.prod(shape[1:]))
    w = with_spectrum(SPECTRUM, rows, columns).view(shape)
    wire = pack({"w": w, "b": randn(3)}, e(energy))
    (table, held), (_, dense) = wire["triplets"]["w"], wire["dense"]["w"]
    assert held.tolist() == [i < rank for i in range(len(held))] and dense.tolist() == [False]
    u, s, v = np.linalg.svd(w.numpy().reshape(rows, columns), full_matrices=False)
    assert_close(table[:rank, rows].numpy(), s[:rank], **TIGHT)
    want = sum(s[i] * np.outer(u[:, i], v[i]) for i in range(rank)).reshape(shape)
    got = unpack(to_all(wire, 2))
    for k in range(2):
        assert_close(got["w"][k].numpy(), want, **TIGHT)
        assert torch.equal(got["b"][k], randn(3))
    lost = np.square(w.numpy() - want).sum()
    assert abs(lost - sum(SPECTRUM[rank:])) < 1e-12  # Eckart and Young
    sent = size(to_all(wire, 2))
    assert sent.floats == 2 * (rank * (rows + 1 + columns) + 3) and sent.ints == 0


@pytest.mark.parametrize(
    ("shape", "energy", "rank"),
    [
        ((3, 8), 0.7, 2),  # 2 (3 + 1 + 8) = 3 · 8: not fewer, so dense
        ((1, 40), 0.5, 1),
        ((40, 1), 0.5, 1),
        ((6, 8), 0.96, 4),  # 60 numbers for 48
        ((4, 2, 2, 3), 0.9, 3),  # 3 (4 + 1 + 12) = 51 numbers for 48
        ((20, 9), 1.0, 4),  # 4 · 30 would be fewer than 180, but all the energy is the matrix itself
    ],
)
def test_a_matrix_goes_as_it_is_where_its_triplets_are_no_fewer_numbers(shape: tuple, energy: float, rank: int) -> None:
    rows, columns = shape[0], int(np.prod(shape[1:]))
    squares = SPECTRUM[: min(rows, columns)]
    w = with_spectrum(squares, rows, columns).view(shape)
    assert 1 + (np.cumsum(squares) < energy * sum(squares)).sum() == rank
    wire = pack({"w": w}, e(energy))
    assert wire["dense"]["w"].present.all() and not wire["triplets"]["w"].present.any()
    assert size(to_all(wire, 1)).floats == rows * columns
    assert torch.equal(unpack(to_all(wire, 3))["w"], w.expand(3, *shape))  # bit for bit


def test_stacked_matrices_choose_each_its_own_rank() -> None:
    ws = torch.stack([with_spectrum(s, 20, 9, i) for i, s in enumerate(([9.0, 1.0, 1.0, 1.0], SPECTRUM, [1.0] * 8))])
    wire = vmap(lambda w: pack({"w": w}, e(0.75)))(ws)
    assert wire["triplets"]["w"].present.sum(1).tolist() == [1, 2, 0]
    assert wire["dense"]["w"].present[:, 0].tolist() == [False, False, True]  # rank 6: 180 numbers for 180
    alone = [unpack(to_all(pack({"w": w}, e(0.75)), 1))["w"][0] for w in ws]
    assert_close(unpack(wire)["w"], torch.stack(alone), **TIGHT)


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_is_sent_as_it_is_and_decomposed_by_nobody(bad: float) -> None:
    ws = torch.stack([with_spectrum(SPECTRUM, 20, 9)] * 2)
    ws[1, 3, 4] = bad
    triplets, dense = vmap(lambda w: compress(w, e(0.5)))(ws)
    assert dense.present.tolist() == [[False], [True]] and triplets.present.sum(1).tolist() == [1, 0]
    assert_close(dense.values[1, 0], ws[1], equal_nan=True, **TIGHT)


def test_what_is_not_finite_ends_as_diverged(monkeypatch: pytest.MonkeyPatch) -> None:
    upload, seen = FedKD.upload, []

    def broken(alg: FedKD, m: Model, data: Any, down: dict) -> dict:
        name = "mentee.body.1.weight"
        seen.append(name)
        return upload(alg, Model(m.net, m.tensors | {name: torch.full_like(m[name], torch.inf)}), data, down)

    sim = simulate("fedkd", DIGITS, random_federation([5, 6]))
    monkeypatch.setattr(FedKD, "upload", broken)
    with pytest.raises(Diverged, match="round 1: the server's mentee became NaN or infinite"):
        play(sim, 1)
    assert seen


def test_a_decomposition_that_does_not_converge_ends_as_diverged(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise torch.linalg.LinAlgError("linalg.svd: The algorithm failed to converge")

    sim = simulate("fedkd", DIGITS, random_federation([5, 6]))
    monkeypatch.setattr(torch.linalg, "svd", fails)
    with pytest.raises(Diverged, match="singular values were not found"):
        play(sim, 1)


def test_the_energy_rises_in_a_line_to_its_end_in_the_last_round() -> None:
    alg = FedKD(energy_start=0.6, energy_end=0.9)
    got = [alg.energy(torch.tensor([t, 3])).item() for t in (1, 2, 3)]
    assert_close(got, [0.7, 0.8, 0.9], **TIGHT)
    assert all(FedKD(**ALL).energy(torch.tensor([t, 7])) == 1 for t in range(8))


@pytest.mark.parametrize("model", first(["cnn8", "fedgen-cnn"], 1))
def test_at_full_energy_it_sends_what_fml_sends(model: str) -> None:
    scenario, data = Scenario(model=model, features=8, participation=0.7), random_federation([5, 9, 7])
    kd, fml = simulate("fedkd", scenario, data, **ALL), simulate("fml", scenario, data)
    rows, wanted = play(kd, 3), play(fml, 3)
    matrices = [t for t in fml.state.server["shared"].values() if t.ndim > 1]
    bitmaps = sum(1 + -(-((t.numel() - 1) // (len(t) + 1 + t[0].numel())) // 8) for t in matrices)
    assert bitmaps > len(matrices)
    for row, want in zip(rows, wanted, strict=True):
        assert row["up_floats"] == want["up_floats"] > 0 and row["down_floats"] == want["down_floats"]
        assert row["up_ints"] == want["up_ints"] - 2  # two take part; FML's engine sends their rows
        assert row["down_ints"] == want["down_ints"] + 2 * 2  # t and T
        assert row["up_bytes"] == want["up_bytes"] - 2 * 8 + 2 * bitmaps
    less = play(simulate("fedkd", scenario, data, energy_start=0.6, energy_end=0.6), 3)
    assert all(
        a["up_floats"] < b["up_floats"] and a["down_floats"] < b["down_floats"] for a, b in zip(less, rows, strict=True)
    )


def test_at_full_energy_the_server_has_the_plain_mean_of_the_very_mentees() -> None:
    sim = simulate("fedkd", Scenario(model="fedgen-cnn", features=8), random_federation([5, 9, 7]), **ALL)
    play(sim, 2)
    group = sim.state.groups[0].tensors
    for n, t in sim.state.server["mentee"].items():
        assert_close(
            t.double(), group[f"mentee.{n}"].double().mean(0), rtol=0, atol=1e-12 if t.is_floating_point() else 0.5
        )


def losses(
    own: architectures.Net, mentee: architectures.Net, w: Tensor, x: Tensor, y: Tensor, over: str = "rows"
) -> list[Tensor]:
    """CE, CE', S, the two divergences and the distance of the features; nothing held constant."""
    h, small = own.body(x), mentee.body(x)
    mine, theirs = own.head(h), mentee.head(small)
    ce = F.cross_entropy(mine, y), F.cross_entropy(theirs, y)
    return [*ce, sum(ce), divergence(theirs, mine, over), divergence(mine, theirs, over), F.mse_loss(h, small @ w.T)]  # type: ignore[list-item]


def gradients(
    own: architectures.Net, mentee: architectures.Net, w: Tensor, x: Tensor, y: Tensor, coupled: bool
) -> list:
    """Of the own net, of the mentee and of W."""
    ce, ce2, hard, kl, kl2, apart = losses(own, mentee, w, x, y)
    if coupled:
        whole = ce + ce2 + (kl + kl2 + 2 * apart) / hard
        return [grads_of(whole, own), grads_of(whole, mentee), [torch.autograd.grad(whole, w)[0]]]
    # only the net's own parameters move: the other net and S enter as numbers
    one, other = ce + (kl + apart) / hard.item(), ce2 + (kl2 + apart) / hard.item()
    return [grads_of(one, own), grads_of(other, mentee), [torch.autograd.grad(other, w)[0]]]


def three(sim: Simulation, k: int) -> tuple[architectures.Net, architectures.Net, Tensor]:
    """Client k's own net, mentee and W, as it has them."""
    own, mentee, tensors = nets_of(sim, k, "mentee")
    return own, mentee, tensors["align.weight"].clone().requires_grad_()


@pytest.mark.parametrize("over", ["rows", "elements"])
@pytest.mark.parametrize("coupled", [False, True])
def test_the_loss_and_its_gradients_by_hand(coupled: bool, over: str) -> None:
    sim = simulate("fedkd", DIGITS, random_federation([6, 9]), coupled=coupled, kl_over=over, mentee="cnn8")
    group, (own, mentee, w), (x, y) = sim.state.groups[0], three(sim, 1), own_rows(sim, 1)
    leaves = {n: t[1].clone().requires_grad_() for n, t in group.tensors.items()}
    loss = sim.setup.algorithm.loss(Model(group.net, leaves), Batch(x, y, {}), {})
    ce, ce2, hard, kl, kl2, apart = (t.item() for t in losses(own, mentee, w, x, y, over))
    assert_close(loss.item(), ce + (kl + apart) / hard + ce2 + (kl2 + apart) / hard, **TIGHT)
    if over == "rows":
        want = gradients(own, mentee, w, x, y, coupled)
        names = [
            [n for n, _ in own.named_parameters()],
            [f"mentee.{n}" for n, _ in mentee.named_parameters()],
            ["align.weight"],
        ]
        for part, grads in zip(names, want, strict=True):
            for got, g in zip(
                torch.autograd.grad(loss, [leaves[n] for n in part], retain_graph=True), grads, strict=True
            ):
                assert_close(got, g, **TIGHT)


def test_where_both_nets_are_certain_nothing_divides_by_zero() -> None:
    sim = simulate("fedkd", DIGITS, random_federation([6]))
    group, (x, y) = sim.state.groups[0], own_rows(sim, 0)
    sure = {n: torch.zeros_like(t[0]) for n, t in group.tensors.items()}
    for n in ("head.bias", "mentee.head.bias"):
        sure[n][2] = 1e4  # both nets say class 2 for certain, and it is
    assert sim.setup.algorithm.loss(Model(group.net, sure), Batch(x, torch.full_like(y, 2), {}), {}) == 0


def compressed(net: dict[str, Tensor], energy: float) -> dict[str, Tensor]:
    """By numpy."""
    out = {}
    for n, t in net.items():
        out[n] = t
        if t.ndim > 1:
            u, s, v = np.linalg.svd(t.numpy().reshape(len(t), -1), full_matrices=False)
            rank = 1 + int((np.cumsum(s**2) < energy * (s**2).sum()).sum())
            if rank * (len(u) + 1 + v.shape[1]) < t.numel():
                out[n] = torch.as_tensor((u[:, :rank] * s[:rank]) @ v[:rank]).view(t.shape)
    return out


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("scenario", [DIGITS, MIXED], ids=["one", "three architectures"])
@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_two_rounds_by_hand(executor: str, scenario: Scenario, coupled: bool) -> None:
    def by_hand(sim: Simulation, t: int, bound: float) -> tuple[list, dict, list[float]]:
        energy, trained, norms = 0.6 + t / 5 * 0.3, [], []
        start = compressed(sim.state.server["mentee"], energy)
        for k in range(3):
            own, mentee, w = three(sim, k)
            mentee.load_state_dict(start)
            grads = gradients(own, mentee, w, *own_rows(sim, k), coupled)
            norms += [float(sum((g**2).sum() for g in part) ** 0.5) for part in grads]
            mine, small, align = (cut(part, bound) for part in grads)
            trained.append((stepped(own, mine, 0.1), stepped(mentee, small, 0.1 * 0.5), w.detach() - 0.1 * align[0]))
        sent = [compressed(m, energy) for _, m, _ in trained]
        return trained, {n: sum(m[n] for m in sent) / 3 for n in sent[0]}, norms

    config = {"executor": executor, "mentee": "cnn8", "mentee_rate": 0.5, "coupled": coupled, **WHOLE}
    data, scenario = random_federation([4, 8, 6]), scenario.override(rounds=5)
    norms = by_hand(simulate("fedkd", scenario, data, **config), 1, 0.0)[2]
    bound = float(np.median(norms))
    sim = simulate("fedkd", scenario, data, clip=bound, energy_start=0.6, energy_end=0.9, **config)
    for t in (1, 2):
        want, mean, norms = by_hand(sim, t, bound)
        assert min(norms) < bound < max(norms)
        play(sim, 1)
        assert_close_numbers(sim.state.server["mentee"], mean)
        for k in range(3):
            own, mentee, w = three(sim, k)
            assert_close_numbers(dict(own.state_dict()), want[k][0])
            assert_close_numbers(dict(mentee.state_dict()), want[k][1])
            assert_close(w.detach(), want[k][2], **TIGHT)


@pytest.mark.parametrize(("mentee", "want"), [("", "mlp"), ("cnn8-wide", "cnn8-wide")])
def test_the_mentee_starts_alike_on_the_server_and_at_every_client(mentee: str, want: str) -> None:
    sim = simulate("fedkd", MIXED, mentee=mentee)
    server = sim.state.server["mentee"]
    form = architectures.build(want, (1, 8, 8), sim.setup.task.classes, 12)
    assert {n: t.shape for n, t in server.items()} == {n: t.shape for n, t in form.state_dict().items()}
    assert len(sim.state.groups) == 3
    for group in sim.state.groups:
        own = {n.removeprefix("mentee."): t for n, t in group.tensors.items() if n.startswith("mentee.")}
        for k in range(len(group.ids)):
            assert_same_numbers({n: t[k] for n, t in own.items()}, server)
    other = simulate("fedkd", MIXED, mentee=mentee, seed=1).state.server["mentee"]
    assert not torch.equal(other["head.weight"], server["head.weight"])


def test_only_the_mentee_and_the_clock_are_sent_and_the_mentee_predicts_nothing() -> None:
    sim = simulate("fedkd", DIGITS, random_federation([5, 9, 6, 7]), lr=0.1)
    play(sim, 3)
    down = sim.setup.algorithm.broadcast(sim.state.server, torch.arange(4), next_task(sim))
    assert set(down) == {"mentee", "clock"} and all(t.shape[0] == 4 for t in flat(down).values())
    before = evaluation.score(sim.setup, sim.state).row
    worse = sim.state.server | {"mentee": {n: torch.zeros_like(t) for n, t in sim.state.server["mentee"].items()}}
    after = evaluation.score(sim.setup, sim.state._replace(server=worse)).row
    apart = {n for n in before if before[n] != after[n]}
    assert apart and all(n.endswith("_mentee") for n in apart)


def test_an_evaluation_decomposes_nothing_and_scores_the_servers_mentee(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulate("fedkd", DIGITS, random_federation([5, 9, 6]), lr=0.1, energy_start=0.5, energy_end=0.5)
    play(sim, 3)
    monkeypatch.setattr(torch.linalg, "svd", None)
    row = evaluation.score(sim.setup, sim.state).row
    task = sim.setup.task
    net = part_of(
        architectures.build(task.models[0], task.shape, task.classes, task.features), sim.state.server["mentee"]
    )
    assert abs(row["test_acc_mentee"] - mean_accuracy(sim, "test", lambda _, x: net(x))) < 1e-12
