"""Codecs, devices, lost clients, choices and privacy together: none changes what another counts."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from support.helpers import CLOCK, DIGITS, EARLY, play, random_federation, record_uploads, resumed, simulate
from support.numbers import assert_close_rows, assert_same_numbers, copied

from fedtune.engine import codecs
from fedtune.engine.clipping import Clipping
from fedtune.engine.engine import stages
from fedtune.engine.simulation import Seeds
from fedtune.engine.wire import Codec
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import OF_CODECS

ROWS = [9, 5, 7, 6, 4, 8]
SEVERAL = ("fedavg", "scaffold", "fedproto", "gfpl", "local", "ditto", "fedbabu", "feddyn", "fedala")
HARD = {
    "clients": 6,
    "participation": 0.5,
    "devices": "exponential",
    "lost_share": 0.2,
    "deadline": 0.6,
    "over_ask": 1.5,
    "row_seconds": 0.03,
}


def takes(name: str, codec: str) -> str:
    """The codec, or another that all algorithms take."""
    return "int8" if name in ("fedproto", "gfpl") else codec


def run(name: str, codec: str, executor: str = "stack", seed: int = 0, **fields: Any):
    scenario = DIGITS.override(**HARD | fields)
    data = random_federation(ROWS, seed=seed)
    return simulate(name, scenario, data, seed, executor, compress=takes(name, codec), **EARLY[name])


CHOSEN = itertools.cycle(["uniform", "power-of-choice", "oort"])


@pytest.mark.parametrize(("name", "selection"), list(zip(SEVERAL, CHOSEN, strict=False)))
def test_a_run_saved_between_rounds_goes_on_as_if_undisturbed(name: str, selection: str, tmp_path: Path) -> None:
    codec = {"uniform": "topk", "power-of-choice": "qsgd", "oort": "randk"}[selection]
    _, whole, second = resumed(lambda: run(name, codec, selection=selection), 2, tmp_path)
    for a, b in zip(second.state.groups, whole.state.groups, strict=True):
        assert_same_numbers(a.wire, b.wire)


@pytest.mark.parametrize("name", SEVERAL)
def test_seeds_in_a_stack_and_executors_give_the_numbers_of_single_runs(name: str) -> None:
    seeds, scenario = (0, 1), DIGITS.override(**HARD, compress=takes(name, "randk"))
    data = {seed: random_federation(ROWS, seed=seed) for seed in seeds}
    runs = Seeds(Experiment(algorithm=name, scenario=scenario, pinned=EARLY[name]), {}, data, torch.float64)
    together = [runs.steps() for _ in range(3)]
    for i, seed in enumerate(seeds):
        stacked = [{n: v for n, v in row[i].items() if n not in CLOCK} for row in together]
        alone = play(run(name, "randk", seed=seed), 3)
        assert_close_rows(stacked, alone)
    assert_close_rows(play(run(name, "randk", "loop", seed=1), 3), alone)


@pytest.mark.parametrize("codec", [c for c in OF_CODECS if c != "none"])
def test_the_clock_counts_packed_bytes_and_those_of_who_sends_in_vain(codec: str) -> None:
    """Equal devices, no rows: all that differs between codecs is the upload's time."""
    same = {"clients": 6, "participation": 1.0, "devices": "alike", "row_seconds": 0.0, "up_mbps": 0.01}
    sim = simulate("fedavg", DIGITS.override(**same), random_federation(ROWS), compress=codec)
    trained = [t.numel() for _, t in sorted(sim.state.server["shared"].items())]
    of_one = codecs.length(sim.setup.scenario, trained, 8).bytes + 8  # and the number of rows
    (row,) = play(sim, 1)
    down = row["down_bytes"] / 6
    assert row["up_bytes"] == 6 * of_one
    assert row["round_seconds"] == pytest.approx(8e-6 * (down / 10 + of_one / 0.01), rel=1e-12)
    late = simulate("fedavg", DIGITS.override(**same, deadline=1e-6), random_federation(ROWS), compress=codec)
    (row,) = play(late, 1)
    assert row["late"] == 6 and row["up_bytes"] == 6 * of_one


@pytest.mark.parametrize("why", ["lost", "late", "surplus"])
def test_who_does_not_count_keeps_what_was_left(why: str) -> None:
    hard = {"lost": {"lost_share": 0.4}, "late": {"deadline": 0.9}, "surplus": {"over_ask": 2.0}}[why]
    fields = {"clients": 6, "participation": 0.5, "devices": "exponential", "row_seconds": 0.05, "up_mbps": 1e3}
    sim = simulate("fedavg", DIGITS.override(**fields | hard), random_federation(ROWS), compress="topk")
    sent, counted = record_uploads(sim), 0
    for _ in range(8):
        before, done = copied(sim.state.groups[0].wire), len(sent)
        (row,) = play(sim, 1)
        after, taken = sim.state.groups[0].wire, sent[-1]["ids"].tolist() if len(sent) > done else []
        counted += row[why]
        if not after:
            continue
        old = before.get("residual", torch.zeros_like(after["residual"]))
        assert [k for k in range(6) if not torch.equal(old[k], after["residual"][k])] == taken
    assert counted


def test_an_update_is_compressed_before_it_is_clipped() -> None:
    private = DIGITS.override(privacy="client", update_clip=0.01, averaging="clients")
    for codec in ("topk", "qsgd", "int8"):
        sim = simulate("fedavg", private, compress=codec, update_noise=0.0)
        assert [type(stage) for stage in stages(sim.setup)] == [Codec, Clipping]
        start, sent = copied(sim.state.server["shared"]), record_uploads(sim)
        (row,) = play(sim, 1)
        moved = [sent[0]["shared"][n] - start[n] for n in start]
        norms = torch.stack([d.flatten(1).square().sum(1) for d in moved]).sum(0).sqrt()
        assert row["clip_share"] == 1.0 and torch.allclose(norms, torch.full_like(norms, 0.01), rtol=1e-9)
        if codec == "topk":  # the noise is 0, so what is sent is as sparse as the codec makes it
            places = sum((d != 0).flatten(1).sum(1) for d in moved)
            numbers_sent = codecs.kept(sim.setup.scenario, sum(t.numel() for t in start.values()))
            assert (places <= numbers_sent).all()
        assert row["up_bytes"] == 5 * codecs.length(sim.setup.scenario, [t.numel() for t in start.values()], 8).bytes


def test_groups_of_several_architectures_share_a_codec_and_a_clock() -> None:
    mixed = DIGITS.override(**HARD | {"model": "mlp,cnn8", "clients": 6})
    for name in ("fedproto", "fedgh"):
        a, b = (simulate(name, mixed, random_federation(ROWS), executor=e, compress="int8") for e in ("stack", "loop"))
        assert len(a.state.groups) == 2
        assert_close_rows(play(a, 3), play(b, 3))
    # one architecture in two groups: who is in which changes nothing
    for name in ("fedavg", "scaffold", "ditto"):
        one, two = (
            simulate(name, DIGITS.override(**HARD), random_federation(ROWS), compress="topk", groups=g, **EARLY[name])
            for g in (None, [[1, 4], [0, 2, 3, 5]])
        )
        assert_close_rows(play(one, 4), play(two, 4))
