"""Device seconds: by hand and in closed form; clients that are lost, late or too many; choosing by losses."""

import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support.helpers import (
    CLOCK,
    DIGITS,
    EARLY,
    client_draws,
    play,
    random_federation,
    record_uploads,
    resumed,
    simulate,
)
from support.numbers import assert_close_rows, assert_same_numbers, copied, numbers

from fedtune.core.trees import Ragged, bytes_of_each, size, take
from fedtune.data import devices
from fedtune.engine import evaluation, polling
from fedtune.engine.clock import Clock
from fedtune.engine.cohort import participants
from fedtune.engine.simulation import Seeds
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.registry import find, names
from fedtune.experiment.scenario import Scenario
from fedtune.experiment.user_scenario import notes
from fedtune.runs.trial_states import unheard

ROWS = [9, 5, 7]
COLUMNS = {"sim_seconds", "round_seconds", "lost", "late", "surplus"}
SENDERS = [name for name in names() if name != "local"]
FEW = ("fedavg", "scaffold", "fedproto", "fedrep", "gfpl")


def timed(name: str = "fedavg", rows: list[int] | None = None, seed: int = 0, executor: str = "stack", **fields: Any):
    own = {n: fields.pop(n) for n in list(fields) if n not in Scenario.__dataclass_fields__}
    base = {"devices": "alike", "clients": len(rows or ROWS)} | fields
    return simulate(name, DIGITS.override(**base), random_federation(rows or ROWS), seed, executor, **own)


def without(rows: list[dict], *columns: str) -> list[dict]:
    return [{n: v for n, v in row.items() if n not in {*COLUMNS, *columns}} for row in rows]


# ------------------------------------------------------------------------------------------------------- off is off


@pytest.mark.parametrize("executor", ["stack", "loop"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedpft", "gfpl", "local", "fedala"])
def test_a_clock_alone_changes_no_number(name: str, executor: str) -> None:
    share = {"participation": 0.67}
    plain = simulate(name, DIGITS.override(**share), random_federation(ROWS), executor=executor, **EARLY[name])
    clock = timed(name, executor=executor, **share, **EARLY[name])
    a, b = play(plain, 3), play(clock, 3)
    assert a == without(b) and not COLUMNS & a[0].keys() and b[0].keys() >= COLUMNS
    assert_same_numbers(numbers(plain.state), numbers(clock.state))
    assert "clock" not in plain.state.extra and clock.state.extra["clock"] == b[-1]["sim_seconds"]


# ----------------------------------------------------------------------------------------------------------- times


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_device_seconds_by_hand(executor: str, tmp_path: Path) -> None:
    table = tmp_path / "phones.csv"
    table.write_text("client,slow,up_mbps,down_mbps,lag\n2,3,0.5,20,1\n0,1,1,10,0\n1,2,4,5,0.25\n")
    name, _ = devices.taken(str(table))
    sim = timed(devices=name, row_seconds=0.01, server_seconds=0.5, local_epochs=2, batch=4, executor=executor)
    down = sum(t.numel() * 8 for t in sim.state.server["shared"].values())
    up = down + 8  # and the number of rows
    passes = [2 * math.ceil(n / 4) * 4 for n in ROWS]
    each = [
        0.00 + 8 * down / 1e6 / 10 + passes[0] * 0.01 * 1 + 8 * up / 1e6 / 1,
        0.25 + 8 * down / 1e6 / 5 + passes[1] * 0.01 * 2 + 8 * up / 1e6 / 4,
        1.00 + 8 * down / 1e6 / 20 + passes[2] * 0.01 * 3 + 8 * up / 1e6 / 0.5,
    ]
    rows = play(sim, 2)
    for t, row in enumerate(rows, 1):
        assert row["round_seconds"] == pytest.approx(max(each) + 0.5, rel=1e-12)
        assert row["sim_seconds"] == pytest.approx(t * (max(each) + 0.5), rel=1e-12)
        assert (row["lost"], row["late"], row["surplus"]) == (0, 0, 0)


def test_second_steps_batches_and_early_ends_count_as_they_are_made() -> None:
    for name, own in (("fedala", {}), ("perfedavg", {}), ("gfpl", EARLY["gfpl"]), ("ditto", {}), ("fedsam", {})):
        sim = timed(name, [6], row_seconds=1.0, up_mbps=1e9, down_mbps=1e9, batch=4, **own)
        (row,) = play(sim, 1)
        phases = [a for a in sim.setup.algorithm.round(sim.setup.task_in(1)) if not isinstance(a, str)]
        if all(p.pool is None and p.until is None and p.steps is None and p.share == 1 for p in phases):
            drawn = [client_draws(sim, 1, 0).steps[0] for _ in phases]  # of the first phase
            if len(phases) == 1:
                p = phases[0]
                want = drawn[0] * 4 * p.batches + (drawn[0] // p.repeat * 4 * p.batches if p.after else 0)
                assert row["round_seconds"] == pytest.approx(want, abs=1e-3)
        assert row["round_seconds"] > 1


def test_the_network_and_the_rows_scale_as_declared() -> None:
    slow, fast = (play(timed(rows=[8], up_mbps=mbps), 2) for mbps in (0.5, 1.0))
    for a, b in zip(slow, fast, strict=True):
        assert a["round_seconds"] - b["round_seconds"] == pytest.approx(8 * b["up_bytes"] / 1e6, rel=1e-9)
    free = {"up_mbps": 1e9, "down_mbps": 1e9}
    once, twice, none = (play(timed(row_seconds=s, **free), 1)[0]["round_seconds"] for s in (1.0, 2.0, 0.0))
    assert twice - none == pytest.approx(2 * (once - none), rel=1e-12) and none < 1e-2


@pytest.mark.parametrize(("clients", "rounds", "harmonic"), [(10, 10_000, 2.929), (100, 2_000, 5.187)])
def test_exponential_devices_wait_for_the_harmonic_number(clients: int, rounds: int, harmonic: float) -> None:
    sim = timed(rows=[2] * clients, devices="exponential", row_seconds=0.5, up_mbps=1e9, down_mbps=1e9)
    ids, phase = torch.arange(clients), sim.setup.algorithm.phases(sim.setup.task)[0]
    total = 0.0
    for t in range(1, rounds + 1):
        clock = Clock(s=sim.setup, t=t, asked=ids, waits=True, polling=0.0)
        clock.trains(ids, phase, torch.ones(clients))
        total += clock.columns(clock.taken(ids), 0.0)["round_seconds"]
    assert total / rounds == pytest.approx(0.5 * sim.setup.scenario.batch * harmonic, rel=0.02)


def test_lognormal_devices_have_the_declared_spread_and_belong_to_the_client() -> None:
    network = devices.Network(up_mbps=2.0, down_mbps=8.0, lag=0.0, speed_spread=0.6, mbps_spread=0.3)
    d = devices.of("lognormal", network, (), 4000, 0)
    z = d.slow.log()
    assert abs(z.mean()) < 0.04 and abs(z.std() - 0.6) < 0.03
    x = (d.up_mbps / 2).log()
    assert abs(x.std() - 0.3) < 0.02 and abs((x * z).mean() / 0.18) < 0.06
    assert torch.allclose(d.down_mbps / d.up_mbps, torch.tensor(4.0, dtype=torch.float64), rtol=1e-12)
    assert devices.of("lognormal", network, (), 7, 0).slow.equal(d.slow[:7])
    assert not devices.of("lognormal", network, (), 7, 1).slow.equal(d.slow[:7])


def test_each_clients_bytes_add_up_to_the_messages() -> None:
    present = torch.tensor([[True, False, True], [False, False, False]])
    tree = {
        "a": torch.zeros(2, 5),
        "b": {"n": torch.zeros(2, dtype=torch.long)},
        "r": Ragged(torch.zeros(2, 3, 4), present),
    }
    each = bytes_of_each(tree, 2)
    assert each.tolist() == [20 + 8 + 2 * 16 + 1, 20 + 8 + 1] and each.sum() == size(tree).bytes
    assert [bytes_of_each(take(tree, slice(k, k + 1)), 1).item() for k in (0, 1)] == each.tolist()


# ----------------------------------------------------------------------------------------------- lost, late, surplus


@pytest.mark.parametrize("executor", ["stack", "loop"])
@pytest.mark.parametrize("why", [{"lost_share": 1.0}, {"deadline": 1e-6}], ids=["lost", "late"])
def test_a_round_without_an_upload_changes_only_clock_and_bytes(why: dict, executor: str) -> None:
    for name in ("fedavg", "scaffold", "fedpft", "fedproto", "ditto"):
        sim = timed(name, executor=executor, lag=0.25, **why, **EARLY[name])
        before, sent = copied(numbers(sim.state)), record_uploads(sim)
        rows = play(sim, 2)
        assert_same_numbers(numbers(sim.state), before)  # SCAFFOLD's c_k, FedPFT's `sent`, Ditto's own model
        assert not sent and unheard(rows, sim.setup.scenario.least_asked)
        for row in rows:
            lost = "lost_share" in why
            assert (row["lost"], row["late"], row["surplus"]) == ((3, 0, 0) if lost else (0, 3, 0))
            if name != "fedpft":  # which trains and sends first
                received = 0.25 + 8e-6 * row["down_bytes"] / 3 / 10  # nobody can tell sooner that nobody will answer
                assert row["round_seconds"] == pytest.approx(why.get("deadline", received), rel=1e-12)
            assert row["up_bytes"] == 0 if lost else row["up_bytes"] > 0
            assert row["down_bytes"] > 0 or name == "fedpft"  # which sends first
            assert row["train_loss"] is None


def test_a_round_in_which_all_are_lost_lasts_until_the_last_has_received(tmp_path: Path) -> None:
    table = tmp_path / "phones.csv"
    table.write_text("client,slow,up_mbps,down_mbps,lag\n0,1,1,10,0\n1,2,4,0.5,0.25\n2,3,0.5,20,1\n")
    profile, _ = devices.taken(str(table))
    (row,) = play(timed(devices=profile, lost_share=1.0, server_seconds=0.5, row_seconds=9.0), 1)
    each = [lag + 8 * row["down_bytes"] / 3 / 1e6 / mbps for lag, mbps in ((0, 10), (0.25, 0.5), (1, 20))]
    assert row["round_seconds"] == pytest.approx(max(each) + 0.5, rel=1e-12) and max(each) > 0.25
    sim, nobody = timed(lost_share=1.0, lag=9.0), torch.arange(0)  # as with Poisson sampling
    assert Clock(s=sim.setup, t=1, asked=nobody, waits=True, polling=0.0).columns(nobody, 2.0)["sim_seconds"] == 2.0
    (note,) = notes(DIGITS.override(lost_share=1.0))
    assert "no server learns anything" in note and not notes(DIGITS.override(lost_share=0.99))
    (note,) = notes(DIGITS.override(devices=profile, clients=2))
    assert note.endswith("rows of clients that there are not: 2") and not notes(
        DIGITS.override(devices=profile, clients=3)
    )


def test_lost_clients_are_drawn_each_round_by_their_own_chance() -> None:
    sim = timed(rows=[2] * 10, lost_share=0.3)
    ids = torch.arange(10)
    lost = [Clock(s=sim.setup, t=t, asked=ids, waits=True, polling=0.0).lost.tolist() for t in range(1, 2001)]
    share = torch.zeros(10)
    for some in lost:
        share[some] += 1 / len(lost)
    assert (share - 0.3).abs().max() < 0.05 and len({*map(tuple, lost)}) > 100
    few = [set(Clock(s=sim.setup, t=t, asked=ids[:4], waits=True, polling=0.0).lost.tolist()) for t in range(1, 50)]
    assert few == [set(some) & {0, 1, 2, 3} for some in lost[:49]]  # whoever else is asked


@pytest.mark.parametrize("executor", ["stack", "loop"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedproto"])
def test_who_is_lost_or_late_might_as_well_not_have_been_drawn(name: str, executor: str, tmp_path: Path) -> None:
    """A client that is always late, or surplus, against the same rounds without it."""
    slow = tmp_path / "slow.csv"
    slow.write_text("client,slow\n0,1\n1,1000\n2,1\n")
    profile, _ = devices.taken(str(slow))
    free = {"row_seconds": 0.01, "up_mbps": 1e9, "down_mbps": 1e9}
    late = timed(name, executor=executor, devices=profile, deadline=5.0, **free)
    rows = play(late, 2)
    assert [(r["late"], r["lost"], r["surplus"]) for r in rows] == [(1, 0, 0)] * 2
    assert [r["round_seconds"] for r in rows] == [5.0, 5.0]
    alone = timed(name, executor=executor, **free)
    chosen = torch.tensor([0, 2])
    for t in (1, 2):
        play_with(alone, chosen, t)
    assert_close_numbers_of(late, alone)


def play_with(sim: Any, ids: torch.Tensor, t: int) -> None:
    from fedtune.engine import engine
    from fedtune.engine.cohort import Poll
    from fedtune.engine.seed_stack import SeedStack

    sim.state, _ = engine.run_rounds(SeedStack((sim.setup,)), {0: sim.state}, {0: Poll(ids)})[0]  # type: ignore[misc]


def assert_close_numbers_of(a: Any, b: Any) -> None:
    x, y = numbers(a.state), numbers(b.state)
    for n in x:
        assert torch.allclose(x[n].double(), y[n].double(), rtol=1e-12, atol=1e-14), n


def test_of_more_that_are_asked_the_first_to_answer_are_taken() -> None:
    sim = timed(rows=[4] * 10, participation=0.4, over_ask=1.5, devices="lognormal", row_seconds=1.0)
    sent = record_uploads(sim)
    slow = sim.setup.devices.slow
    for t in range(1, 6):
        (row,) = play(sim, 1)
        order = torch.randperm(10, generator=torch.Generator().manual_seed(address(t)))[:6]
        first = sorted(sorted(order.tolist(), key=lambda k: slow[k])[:4])
        assert sent[-1]["ids"].tolist() == first and row["surplus"] == 2 and row["late"] == 0
        of_one = sum(v.numel() * 8 for v in sim.state.server["shared"].values())
        assert row["up_bytes"] == 6 * (of_one + 8) and row["down_bytes"] == 6 * of_one
        assert row["round_seconds"] < 8 * slow[first].max() + 1


def address(t: int) -> int:
    from fedtune.core import randomness

    return randomness.number(0, "participants", t)


def lost_share_matters(name: str) -> None:
    data = random_federation([6] * 6, total=3)
    scenario = DIGITS.override(rounds=2)
    a, b = (simulate(name, scenario.override(lost_share=p), data, **EARLY[name]) for p in (0.0, 0.9))
    x, y = play(a, 2), play(b, 2)
    assert sum(r["lost"] for r in y) >= 5
    assert unheard(y, 6) == all(r["lost"] == 6 for r in y) and not unheard(x, 6)
    if x[-1]["up_bytes"] or x[0]["up_bytes"]:
        assert sum(r["up_bytes"] for r in y) < sum(r["up_bytes"] for r in x)
        p, q = numbers(a.state), numbers(b.state)
        assert any(p[n].shape != q[n].shape or not torch.equal(p[n], q[n]) for n in p)


@pytest.mark.parametrize("name", FEW)
def test_losing_clients_changes_results(name: str) -> None:
    lost_share_matters(name)


@pytest.mark.long
@pytest.mark.parametrize("name", [n for n in SENDERS if n not in FEW])
def test_losing_clients_changes_results_of_every_algorithm(name: str) -> None:
    lost_share_matters(name)


def test_who_sends_nothing_loses_nothing() -> None:
    assert find("local").releases == "nothing"
    a, b = (play(timed("local", **f), 2) for f in ({}, {"lost_share": 0.9, "deadline": 1e-6, "over_ask": 2.0}))
    assert a == b and a[-1]["sim_seconds"] > 0


# ------------------------------------------------------------------------------------------------------------ choice


def test_as_many_offered_as_wanted_is_uniform_bit_for_bit() -> None:
    base = {"rows": [4] * 6, "participation": 0.5}
    a, b = (play(timed(**base, **f), 3) for f in ({}, {"selection": "power-of-choice", "offered": 3}))
    assert a == b


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_the_clients_with_the_largest_training_loss_are_chosen(executor: str) -> None:
    choose = {"selection": "power-of-choice", "participation": 0.34, "row_seconds": 0.3, "lag": 2.0}
    sim = timed(rows=[6, 4, 9, 5, 7, 8], executor=executor, lr=0.1, **choose)
    sent, model = record_uploads(sim), sum(t.numel() * 8 for t in sim.state.server["shared"].values())
    for t in range(1, 5):
        offered = torch.randperm(6, generator=torch.Generator().manual_seed(address(t)))[:4]
        losses = evaluation.training_losses(sim.setup, sim.state, offered).tolist()
        by_hand = [by_itself(sim, k) for k in offered.tolist()]
        assert losses == pytest.approx(by_hand, rel=1e-9)
        best = sorted(sorted(range(4), key=lambda i: -by_hand[i])[:2])
        (row,) = play(sim, 1)
        assert sent[-1]["ids"].tolist() == sorted(offered[best].tolist())
        assert row["down_bytes"] == (4 + 2) * model and row["up_bytes"] == 2 * (model + 8) + 4 * 4
        rows = sim.setup.federation.train.counts.tolist()
        poll = 2.0 + max(rows[k] for k in offered.tolist()) * 0.1 + 8e-6 * (model / 10 + 4)
        task = 2.0 + max(-(-rows[k] // 4) * 4 for k in sent[-1]["ids"].tolist()) * 0.3 + 8e-6 * (model / 10 + model + 8)
        assert row["round_seconds"] == pytest.approx(poll + task, rel=1e-9)


def by_itself(sim: Any, k: int) -> float:
    from support.helpers import client_net, own_rows

    x, y = own_rows(sim, k)
    return torch.nn.functional.cross_entropy(client_net(sim, k).eval()(x), y).item()


def test_of_two_clients_one_of_loss_0_is_never_chosen() -> None:
    sim = timed(rows=[6, 6], selection="power-of-choice", participation=0.5, offered=2)
    f = sim.setup.federation
    loss = type(sim.setup.algorithm).predict

    def sure(self: Any, m: Any, x: torch.Tensor, down: Any) -> torch.Tensor:
        scores = loss(self, m, x, down)
        easy = x.flatten(1).sum(1) > 1e5  # client 1's rows, which are of one class
        return torch.where(easy[:, None], torch.nn.functional.one_hot(first, scores.shape[1]) * 1e4, scores)

    mine = f.train.rows[1, :6]
    f.x[mine] = f.x[mine].abs() + 1e5
    f.y[mine] = int(f.y[mine[0]])
    first = f.y[mine[0]]
    cls = type("Sure", (type(sim.setup.algorithm),), {"predict": sure, "__module__": __name__})
    sim.setup = sim.setup._replace(algorithm=cls())
    assert evaluation.training_losses(sim.setup, sim.state, torch.tensor([1, 0]))[0] == 0
    from fedtune.engine import polling

    for t in range(8):
        assert polling.asked(sim.setup, sim.state._replace(round=t)).asked.tolist() == [0]


# ---------------------------------------------------------------------------------------------- resume, stacks, ends

HARD = {
    "devices": "exponential",
    "lost_share": 0.2,
    "deadline": 0.6,
    "over_ask": 1.5,
    "participation": 0.5,
    "row_seconds": 0.03,
}


@pytest.mark.parametrize("executor", ["stack", "loop"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedproto"])
def test_a_resumed_run_goes_on_with_its_clock(name: str, executor: str, tmp_path: Path) -> None:
    rows, choose = [9, 5, 7, 6, 4, 8], HARD | {"selection": "power-of-choice"}
    expected, *_ = resumed(lambda: timed(name, rows, executor=executor, **choose), 2, tmp_path)
    assert any(r["lost"] or r["late"] or r["surplus"] for r in expected)


def test_what_a_poll_takes_counts_as_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = polling.asked

    def slow(*of: Any) -> Any:
        time.sleep(0.3)
        return asked(*of)

    sim = timed(selection="power-of-choice", participation=0.34)
    sim.step()  # the first one takes longer
    monkeypatch.setattr(polling, "asked", slow)
    assert sim.step()["eval_seconds"] > 0.3


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedproto"])
def test_a_stack_of_seeds_equals_single_runs(name: str) -> None:
    rows, seeds = [9, 5, 7, 6, 4, 8], (0, 1, 2)
    scenario = DIGITS.override(clients=6, **HARD)
    data = {seed: random_federation(rows, seed=seed) for seed in seeds}
    runs = Seeds(Experiment(algorithm=name, scenario=scenario), {}, data, torch.float64)
    together = [runs.steps() for _ in range(3)]
    for i, seed in enumerate(seeds):
        stacked = [{n: v for n, v in row[i].items() if n not in CLOCK} for row in together]
        assert_close_rows(stacked, play(simulate(name, scenario, data[seed], seed), 3))


def test_the_executors_agree() -> None:
    a, b = (play(timed("scaffold", [9, 5, 7, 6], executor=e, **HARD), 3) for e in ("stack", "loop"))
    assert_close_rows(without(a, "up_floats"), without(b, "up_floats"))
    assert [[r[n] for n in COLUMNS] for r in a] == [[r[n] for n in COLUMNS] for r in b]


def test_poisson_draws_with_a_deadline_take_all_who_are_in_time() -> None:
    sim = timed(rows=[4] * 8, sampling="poisson", participation=0.4, deadline=1e9, devices="lognormal")
    sent, drawn = record_uploads(sim), [participants(sim.setup, t).tolist() for t in range(1, 6)]
    rows = play(sim, 5)
    assert [up["ids"].tolist() for up in sent] == [ids for ids in drawn if ids]
    assert all(r["late"] == r["lost"] == r["surplus"] == 0 for r in rows)
