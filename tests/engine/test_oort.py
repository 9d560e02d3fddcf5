"""Oort by hand: scores, who explores, the pacer, and what a run learns of its clients."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.helpers import (
    CLOCK,
    DIGITS,
    client_net,
    own_rows,
    play,
    random_federation,
    record_uploads,
    resumed,
    simulate,
)
from support.numbers import assert_close_rows, assert_same_numbers

from fedtune.data import devices
from fedtune.engine import oort
from fedtune.engine.simulation import Seeds
from fedtune.experiment.experiment import Experiment

ROWS = [9, 5, 7, 6, 4, 8]
CHOOSE = {"clients": 6, "participation": 0.5, "selection": "oort"}
HARD = CHOOSE | {"devices": "exponential", "lost_share": 0.2, "deadline": 0.6, "over_ask": 1.5, "row_seconds": 0.03}


def arms(utility: list[float], seconds: list[float], last: list[int], share: float = 0.3) -> dict[str, torch.Tensor]:
    known = {"utility": utility, "seconds": seconds, "last": last, "share": share}
    return oort.arms({}, len(last)) | {n: torch.tensor(v, dtype=torch.float64) for n, v in known.items()}


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_scores_by_hand() -> None:
    state = arms([8.0, 0.0, 2.0, 5.0, 6.0], [4.0, 0.0, 1.0, 2.0, 8.0], [3, 0, 1, 7, 7])
    preferred = np.quantile([4.0, 1.0, 2.0, 8.0], 0.3)
    u = [v * min(1, preferred / t) ** 2 for v, t in ((8.0, 4.0), (2.0, 1.0), (5.0, 2.0), (6.0, 8.0))]
    cap = np.quantile(u, 0.9)
    want = [
        (min(v, cap) - min(u)) / (max(u) - min(u)) + math.sqrt(0.1 * math.log(9) / last)
        for v, last in zip(u, (3, 1, 7, 7), strict=True)
    ]
    known, got = oort.scores(state, 9)
    assert known.tolist() == [0, 2, 3, 4]
    assert got.tolist() == pytest.approx(want, rel=1e-12)


def test_equal_utilities_and_tasks_without_time_have_scores_too() -> None:
    _, got = oort.scores(arms([2.0, 2.0], [0.0, 0.0], [1, 1]), 2)
    assert got.tolist() == pytest.approx([math.sqrt(0.1 * math.log(2))] * 2, rel=1e-12)


def test_who_has_never_taken_part_is_explored_the_faster_first_and_who_was_asked_in_vain_later() -> None:
    state, expected = arms([0.0] * 5, [0.0] * 5, [0] * 5), torch.tensor([3.0, 1.0, 2.0, 1.0, 9.0])
    assert oort.chosen(state, 1, 3, expected, stream()).tolist() == [1, 2, 3]
    state["asked"][1] = 1.0  # and was lost
    assert oort.chosen(state, 2, 3, expected, stream()).tolist() == [0, 2, 3]
    assert oort.chosen(state, 2, 5, expected, stream()).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("t", "exploited"), [(2, 2), (11, 5), (53, 13), (54, 13), (200, 14)])
def test_the_explored_share_falls_from_nine_tenths_to_three(t: int, exploited: int) -> None:
    assert exploited == math.floor(20 * (1 - max(0.3, 0.9 * 0.98 ** (t - 1))) + 1e-9)
    state = arms([1.0] * 30 + [0.0] * 30, [1.0] * 60, [1] * 30 + [0] * 30)
    some = oort.chosen(state, t, 20, torch.ones(60), stream()).tolist()
    assert sum(k < 30 for k in some) == exploited and len({*some}) == 20


def test_too_few_of_one_kind_are_made_up_by_the_other() -> None:
    few_new = arms([1.0] * 8 + [0.0], [1.0] * 9, [1] * 8 + [0])
    assert 8 in (some := oort.chosen(few_new, 2, 5, torch.ones(9), stream()).tolist()) and len(some) == 5
    few_known = arms([1.0] + [0.0] * 8, [1.0] * 9, [1] + [0] * 8)
    assert len(some := oort.chosen(few_known, 300, 5, torch.ones(9), stream()).tolist()) == 5 and 0 in some


def test_who_has_taken_part_is_drawn_in_proportion_to_the_scores_of_all_near_the_cut_off() -> None:
    state = arms([9.0, 5.0, 4.0, 0.0], [1.0] * 4, [400, 400, 400, 4_000_000])
    _, score = oort.scores(state, 401)
    assert score[3] < 0.05 * score.max() < score[2]
    drawn = Counter(k for seed in range(4000) for k in oort.chosen(state, 401, 1, torch.ones(4), stream(seed)).tolist())
    assert drawn[3] == 0
    for k in range(3):
        assert drawn[k] / 4000 == pytest.approx((score[k] / score[:3].sum()).item(), abs=0.025)


@pytest.mark.parametrize(
    ("factor", "share"), [(1.0, 0.35), (1.09, 0.35), (0.91, 0.35), (3.0, 0.3), (0.1, 0.3), (6.1, 0.25)]
)
def test_the_pacer_moves_the_quantile_of_times(factor: float, share: float) -> None:
    state, both = oort.arms({}, 4), torch.tensor([1, 3])
    for t in range(1, 41):
        u = torch.tensor([1.0, 2.0], dtype=torch.float64) * (factor if t > 20 else 1.0)
        state = oort.learnt(state, t, both, u, both, torch.ones(4, dtype=torch.float64))
        assert state["share"] == pytest.approx(0.3 if t < 40 else share)
    assert state["before"] == pytest.approx(60 * factor) and state["now"] == 0
    assert state["asked"].tolist() == [0, 40, 0, 40] and state["last"].tolist() == [0, 40, 0, 40]


# ------------------------------------------------------------------------------------------------------------ in runs


def run(name: str = "fedavg", seed: int = 0, executor: str = "stack", **fields: Any):
    return simulate(name, DIGITS.override(**CHOOSE | fields), random_federation(ROWS, seed=seed), seed, executor)


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_a_run_learns_utility_and_time_of_those_who_took_part(executor: str) -> None:
    sim = run(executor=executor, lr=0.1, row_seconds=0.3, lag=2.0, devices="lognormal", lost_share=0.3)
    sent, model = record_uploads(sim), sum(t.numel() * 8 for t in sim.state.server["shared"].values())
    utility, seconds, last = torch.zeros(6), [0.0] * 6, [0] * 6
    d, lost = sim.setup.devices, 0
    for t in range(1, 6):
        before = len(sent)
        losses = [torch.nn.functional.cross_entropy(client_net(sim, k).eval()(x), y, reduction="none")
                  for k in range(6) for x, y in [own_rows(sim, k)]]  # fmt: skip
        (row,) = play(sim, 1)
        ids = sent[-1]["ids"].tolist() if len(sent) > before else []
        lost += row["lost"]
        assert len(ids) + row["lost"] == 3
        assert row["up_bytes"] == len(ids) * (model + 8 + 4) and row["down_bytes"] == 3 * model
        for k in ids:
            utility[k], last[k] = ROWS[k] * losses[k].square().mean().sqrt(), t
            passes = -(-ROWS[k] // 4) * 4 * 0.3 * d.slow[k].item()
            seconds[k] = 2.0 + 8e-6 * (model / 10 + model + 8 + 4) + passes
        if ids:
            assert row["round_seconds"] == pytest.approx(max(seconds[k] for k in ids), rel=1e-9)
        known = sim.state.extra["arms"]
        assert known["last"].tolist() == last and known["seconds"].tolist() == pytest.approx(seconds, rel=1e-9)
        assert known["utility"].tolist() == pytest.approx(utility.tolist(), rel=1e-6)
    assert lost


def test_the_fastest_begin(tmp_path: Path) -> None:
    table = tmp_path / "phones.csv"
    table.write_text("client,slow,up_mbps\n0,1,0.001\n1,9,1\n2,1,1\n3,9,1\n4,9,1\n5,1,1\n")
    sim = run(devices=devices.taken(str(table))[0], participation=0.34)
    sent = record_uploads(sim)
    play(sim, 1)
    assert sent[0]["ids"].tolist() == [2, 5]


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedproto", "fedfomo"])
def test_a_resumed_run_and_a_stack_of_seeds_choose_the_same(name: str, tmp_path: Path) -> None:
    _, whole, second = resumed(lambda: run(name, **HARD), 3, tmp_path)
    assert_same_numbers(second.state.extra["arms"], whole.state.extra["arms"])
    scenario, seeds = DIGITS.override(**HARD), (0, 1)
    data = {seed: random_federation(ROWS, seed=seed) for seed in seeds}
    runs = Seeds(Experiment(algorithm=name, scenario=scenario), {}, data, torch.float64)
    together = [runs.steps() for _ in range(4)]
    for i, seed in enumerate(seeds):
        stacked = [{n: v for n, v in row[i].items() if n not in CLOCK} for row in together]
        assert_close_rows(stacked, play(run(name, seed, **HARD), 4))


def test_who_sends_nothing_is_drawn_as_ever() -> None:
    a, b = (play(run("local", selection=how, devices="alike"), 2) for how in ("uniform", "oort"))
    assert a == b
