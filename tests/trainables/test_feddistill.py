"""FedDistill: the targets (whose, of which round), the loss and the ledger by hand."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.by_hand import SEEN, assert_loss, first_client, movable, three_of_four
from support.helpers import DIGITS, client_net, next_task, own_rows, play, random_federation, simulate
from support.numbers import TIGHT, numbers, randn
from torch import Tensor
from torch.testing import assert_close

from fedtune.engine import engine
from fedtune.experiment.algorithm import Batch
from fedtune.trainables.feddistill import FedDistill

C = 4
HELD = [[0, 1], [1, 2], [2, 0, 1], [3], [1, 3]]
ROWS = [8, 6, 9, 5, 7]


def clients(sim: Any) -> dict[str, Tensor]:
    return {n: t for n, t in numbers(sim.state).items() if n.startswith("client")}


@pytest.mark.parametrize("executor", ["stack", "loop"])
@pytest.mark.parametrize("leave", [True, False])
def test_a_client_alone_has_nobody_to_learn_from_but_itself(leave: bool, executor: str) -> None:
    data = random_federation([11])
    distill = simulate("feddistill", DIGITS, data, executor=executor, lam=5.0, leave_one_out=leave)
    local = simulate("local", DIGITS, data, executor=executor)
    for t in (1, 2, 3):
        row = play(distill, 1)[0]
        play(local, 1)
        mine, alone = clients(distill), numbers(local.state)
        assert all(torch.equal(mine[n], alone[n]) for n in alone) == (leave or t == 1)
        assert row["up_floats"] == C * C and row["down_floats"] == (0 if leave or t == 1 else C * C)


def test_a_client_whose_classes_no_other_has_trains_as_local_and_the_others_do_not() -> None:
    data = random_federation([8, 6, 7], [[0, 1], [2], [1, 0]])
    distill, local = simulate("feddistill", DIGITS, data, lam=5.0), simulate("local", DIGITS, data)
    play(distill, 3), play(local, 3)
    mine, alone = clients(distill), numbers(local.state)
    same = {k: all(torch.equal(mine[n], alone[n]) for n in alone if f"client {k}/" in n) for k in range(3)}
    assert same == {0: False, 1: True, 2: False}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_loss_has_pytorchs_divergence_on_the_rows_with_a_target(temperature: float) -> None:
    m, x, y = first_client(simulate("feddistill", DIGITS, random_federation([9])))
    m, s, known = movable(m), three_of_four(3 * randn(C, C, seed=9)), SEEN[y]
    got = FedDistill(lam=3.0, temperature=temperature).loss(m, Batch(x, y, {}), {"targets": s})
    logits = m.head(m.body(x))
    q, p = (logits[known] / temperature).log_softmax(1), (s.values[y[known]] / temperature).softmax(1)
    assert 0 < known.sum() < 9
    assert_loss(got, F.cross_entropy(logits, y) + 3 * F.kl_div(q, p, reduction="sum") / 9, m)


def mean_of_others(table: dict[int, dict[int, Tensor]], i: int, c: int, leave: bool) -> Tensor | None:
    """From a table client -> class -> logits."""
    told = [own[c] for k, own in table.items() if c in own and not (leave and k == i)]
    return torch.stack(told).mean(0) if told else None


def assert_targets(sim: Any, table: dict[int, dict[int, Tensor]], ids: list[int]) -> list[int]:
    """What each of these clients would receive now; returns how many classes each hears of."""
    alg, heard = sim.setup.algorithm, []
    values, present = alg.broadcast(sim.state.server, torch.tensor(ids), next_task(sim))["targets"]
    for row, i in enumerate(ids):
        want = {c: mean_of_others(table, i, c, alg.leave_one_out) for c in range(sim.setup.task.classes)}
        assert present[row].tolist() == [v is not None for v in want.values()]
        for c, v in want.items():
            if v is not None:
                assert_close(values[row, c], v, **TIGHT)
        heard.append(int(present[row].sum()))
    return heard


@pytest.mark.parametrize("leave", [True, False])
@pytest.mark.parametrize("net", ["mlp", "htmini3"])
@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_targets_are_means_of_what_each_other_client_told_last_and_are_paid_for(
    executor: str, net: str, leave: bool
) -> None:
    data = random_federation(ROWS, HELD)
    scenario = DIGITS.override(model=net, participation=0.4)
    sim = simulate("feddistill", scenario, data, executor=executor, leave_one_out=leave)
    table: dict[int, dict[int, Tensor]] = {}
    fresh, kept = set(), set()
    for t in range(1, 6):
        ids = engine.participants(sim.setup, t).tolist()
        assert_targets(sim, table, [3, 0, 4])  # of any clients, in any order
        heard = assert_targets(sim, table, ids)
        row = play(sim, 1)[0]
        for k in ids:  # what it tells is of its model as it has become
            net_k, (x, y) = client_net(sim, k).eval(), own_rows(sim, k)
            logits = net_k(x).detach()
            table[k] = {c: logits[y == c].mean(0) for c in set(y.tolist())}
        assert row["down_floats"] == C * sum(heard) and row["down_ints"] == row["up_ints"] == 0
        assert row["up_floats"] == C * sum(len(HELD[k]) for k in ids)
        assert row["up_bytes"] == 8 * row["up_floats"] + len(ids)  # and a bitmap of four classes each
        fresh |= set(ids)
        kept |= fresh - set(ids)
    assert len(fresh) == 5 and kept
